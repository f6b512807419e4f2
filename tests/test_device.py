"""The library makes tensors where the input is. (No test here needs a device: `meta` stands for one.)"""

import ast
from pathlib import Path

import pytest
import torch
from cases import CALLS, LAYERS
from torch import nn

import jacnorm as jn
from jacnorm import recording
from jacnorm.engines import recorder
from jacnorm.engines.pairing import Pairing
from jacnorm.trust import checks

SOURCES = Path(jn.__file__).parent
# Without device= these go to the CPU, or to whatever the user has made the default device.
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "normal", "ones"),
    *(
        "rand",
        "randint",
        "randn",
        "randperm",
        "scalar_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    ),
}


def made_without_device(source):
    """Line and name of each such call."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        is_said = any(keyword.arg == "device" for keyword in node.keywords)
        if is_torch and node.func.attr in FACTORIES and not is_said:
            yield node.lineno, node.func.attr


def test_what_makes_a_tensor_without_a_device_is_found():
    source = "import torch\ntorch.zeros(3)\ntorch.zeros(3, device=x.device)\ny.new_zeros(3)\ntorch.eye(\n3)"
    assert list(made_without_device(source)) == [(2, "zeros"), (5, "eye")]


def test_every_tensor_is_made_on_a_device_that_is_said():
    """(The lab says once for a whole run which device it is on.)"""
    files = [file for file in SOURCES.rglob("*.py") if "lab" not in file.relative_to(SOURCES).parts]
    assert len(files) > 80
    found = [
        f"{f.relative_to(SOURCES)}:{line} {name}"
        for f in files
        for line, name in made_without_device(f.read_text())
    ]
    assert not found


@pytest.fixture
def without_values(monkeypatch):
    """Tensors on `meta` have a shape and a device and no numbers: what looks at these is left out."""
    monkeypatch.setattr(recording, "check_independent", lambda *_, **__: True)
    monkeypatch.setattr(recording, "check_call", lambda *_, **__: None)
    monkeypatch.setattr(recorder, "one_way_only", lambda _: False)
    monkeypatch.setattr(checks, "_finite", lambda _: True)


def on_meta(case):
    model, x = case.make()
    return model.to("meta") if isinstance(model, nn.Module) else model, x.to("meta")


def is_of_one_device(case):
    """Some cases hold constants on the CPU."""
    model, x = on_meta(case)
    try:
        model(x.requires_grad_()).sum().backward()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def sweep(case):
    """Jᵀu, J v, and the gradient of uᵀJ v, all on one device, or PyTorch complains."""
    model, x = on_meta(case)
    J, pairing = jn.linearize(model, x), Pairing()
    assert J.engine == "layerwise", (case, J.reason)
    with torch.no_grad():
        pulled = J.vjp(torch.ones(J.output_shape, dtype=J.dtype, device="meta"), pairing)
        pushed = J.jvp(torch.ones(J.input_shape, dtype=J.dtype, device="meta"), pairing)
    assert pulled.device == pushed.device == x.device, case
    value = pairing.handed_over(torch.zeros((), device="meta"), 1.0)
    if value.requires_grad or J.output.requires_grad:
        (J.output.sum() + value).backward()


@pytest.mark.usefixtures("without_values")
def test_sweeps_stay_on_the_device_of_the_input():
    served = [case for case in LAYERS + CALLS if is_of_one_device(case)]
    assert len(served) > 0.85 * len(LAYERS + CALLS)
    for case in served:
        sweep(case)
