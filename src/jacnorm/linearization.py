"""From a model and a batch to the Jacobian of each sample, as an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from .checks import check_input, check_output, check_vector, run
from .engines.autograd import Graph
from .engines.batchnorm import Gate
from .engines.recorder import Recorder, WeightedLayer
from .engines.rules import NoRule
from .engines.tape import Tape
from .errors import InputError, UnsupportedModelError
from .estimators.gram import rows
from .estimators.operator import Transposed, is_wide
from .forwarding import replaced_forward
from .precision import at_least_single, without_autocast
from .verify import Verdict, check_independent, disagreement, verdict

Engine = Literal["auto", "layerwise", "autograd"]
BatchNorm = Literal["fixed", "flowing"]


class Linearization:
    """The Jacobian J of `model` at each sample of `x`: J v, Jᵀ u, and `output`, which is model(x).

    Products are per sample and differentiable with respect to the model's parameters. They are taken in the
    precision that the model ran in and returned in `dtype`, float32 or better. `engine` says what
    computes them and `reason` why it is not the layerwise engine (None if it is). `layers` are the linear
    and convolution layers that were called, as operators; `tape` is the recorded network, if there is one.
    """

    def __init__(
        self,
        products: Tape | Graph,
        model: Callable[..., Tensor],
        x: Tensor,
        output: Tensor,
        layers: list[WeightedLayer],
        reason: str | None,
    ):
        self.model, self.output, self.layers, self.reason = model, output, layers, reason
        self.input_shape, self.output_shape = x.shape, output.shape
        self.input_dtype, self.dtype, self.device = x.dtype, at_least_single(x.dtype), x.device
        self._products = products
        self._versions = [layer.weight._version for layer in layers]

    @property
    def tape(self) -> Tape | None:
        return self._products if isinstance(self._products, Tape) else None

    @property
    def engine(self) -> Literal["layerwise", "autograd"]:
        return "autograd" if self.tape is None else "layerwise"

    def jvp(self, v: Tensor) -> Tensor:
        """J v for v shaped like x: the paper's forward mode."""
        check_vector("v", v, self.input_shape, "the input")
        self._check_unchanged()
        return self._take(self._products.jvp, v.to(self.input_dtype))

    def vjp(self, u: Tensor) -> Tensor:
        """Jᵀ u for u shaped like the output: the paper's backward mode."""
        check_vector("u", u, self.output_shape, "the output")
        self._check_unchanged()
        result = self._take(self._products.vjp, u.to(self.output.dtype))
        return u.new_zeros(self.input_shape, dtype=self.dtype) if result is None else result

    def _take(self, product: Callable[[Tensor], Any], w: Tensor) -> Any:
        with without_autocast(self.device):  # whoever asks: each recorded call has its own
            result = _outside_inference_mode(product, w)
        return None if result is None else result.to(at_least_single(result.dtype))

    def _check_unchanged(self) -> None:
        if any(n != layer.weight._version for n, layer in zip(self._versions, self.layers, strict=True)):
            raise InputError(
                "The model's weights have changed since linearize(); its masks belong to the old ones. "
                "Linearize again after optimizer.step()."
            )

    def dense(self) -> Tensor:
        """All of J, shape (B, n_out, n_in): one product for each output, or input if they are fewer."""
        return rows(self) if is_wide(self) else rows(Transposed(self)).mT

    def __repr__(self) -> str:
        shapes = f"{tuple(self.input_shape)} -> {tuple(self.output_shape)}"
        why = "" if self.reason is None else f", reason={self.reason!r}"
        return f"Linearization({shapes}, engine={self.engine!r}{why})"


def linearize(
    model: Callable[..., Tensor],
    x: Tensor,
    *args: Any,
    engine: Engine = "auto",
    batch_norm: BatchNorm = "fixed",
    **kwargs: Any,
) -> Linearization:
    """Run `model` once on the batch `x` and return its Jacobian at each sample.

    Further arguments are the model's own, as in linearize(model, x, mask=mask); J takes them for constants.

    engine
        "layerwise" replays the layers without biases and with the recorded masks (the paper's
        Algorithm 1), which needs a piecewise linear model; "autograd" takes any differentiable one;
        "auto" takes the first where it can.
    batch_norm
        In training mode the batch's statistics are held fixed, as the paper has it. "flowing" lets the
        penalty's gradient pass through the variance, so that it does not depend on the scale of the
        weights before the norm.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> J = linearize(model, torch.randn(2, 4))
    >>> J
    Linearization((2, 4) -> (2, 3), engine='layerwise')
    >>> J.jvp(torch.ones(2, 4)).shape, J.vjp(torch.ones(2, 3)).shape, J.dense().shape
    (torch.Size([2, 3]), torch.Size([2, 4]), torch.Size([2, 3, 4]))
    """
    check_input(x)
    if engine not in ("auto", "layerwise", "autograd"):
        raise InputError(f"engine={engine!r}: choose 'auto', 'layerwise' or 'autograd'.")
    if batch_norm not in ("fixed", "flowing"):
        raise InputError(f"batch_norm={batch_norm!r}: choose 'fixed' or 'flowing'.")
    if isinstance(model, DistributedDataParallel):
        return _inside_ddp(model, x, args, kwargs, engine, batch_norm)
    known = verdict(model, x, args, kwargs)
    wants_gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone() if x.is_inference() else x
        J = None
        if engine != "autograd" and known.layerwise and (known.independent or len(x) == 1):
            J = _record(model, x, args, kwargs, batch_norm)
        if J is None:
            J = _record_and_verify(model, x, args, kwargs, engine, batch_norm, known)
    J.output = J.output if wants_gradients else J.output.detach()
    return J


# ---- Running the model ------------------------------------------------------------------------------


def _record(model: Any, x: Tensor, args: Any, kwargs: Any, batch_norm: BatchNorm) -> Linearization | None:
    """A model that had a rule for every call: record them and nothing else. None if it has changed."""
    inside = x.clone()  # so that the model may write into its input
    recorder = Recorder(inside, flowing=batch_norm == "flowing", gate=None)
    try:
        with recorder:
            output = run(model, inside, *args, **kwargs)
        check_output(output, x, model)
        return Linearization(recorder.tape(output), model, x, output, recorder.layers, None)
    except NoRule:
        recorder.roll_back()
        return None


def _record_and_verify(
    model: Any, x: Tensor, args: Any, kwargs: Any, engine: Engine, batch_norm: BatchNorm, known: Verdict
) -> Linearization:
    """Record the calls and autograd's graph in one run, so that either engine can serve."""
    gate = Gate()
    leaf = _leaf(x)
    inside = leaf.clone()
    reason = {"auto": known.reason, "layerwise": None, "autograd": "asked for"}[engine]
    recorder = Recorder(inside, flowing=batch_norm == "flowing", gate=gate, reason=reason)
    with recorder, sdpa_kernel(SDPBackend.MATH):
        output = run(model, inside, *args, **kwargs)
    check_output(output, x, model)
    graph = Graph(leaf, output, gate)
    tape, reason = _tape(recorder, output)
    with without_autocast(x.device):
        if not known.independent:
            known.independent = check_independent(graph, output)
        if tape is not None:
            reason = disagreement(tape, graph, output, x, recorder.eps)
    if engine != "autograd":
        known.layerwise, known.reason = reason is None, reason
    if reason is not None and engine == "layerwise":
        raise UnsupportedModelError(
            f"The layerwise engine cannot take this model: {reason}. Use engine='auto' or engine='autograd'."
        )
    products = graph if reason is not None or tape is None else tape
    return Linearization(products, model, x, output, recorder.layers, reason)


def _inside_ddp(
    model: Any, x: Tensor, args: Any, kwargs: Any, engine: Engine, batch_norm: BatchNorm
) -> Linearization:
    """The module inside is what has a Jacobian; what the wrapper hangs on the output is for the loss alone.

    (With static_graph it starts to reduce the gradients as soon as anything is pulled back through it.)
    """
    plain, found = model.module.forward, list[Linearization]()

    def forward(z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found.append(linearize(plain, z, *args, engine=engine, batch_norm=batch_norm, **kwargs))
        return found[0].output

    with replaced_forward(model.module, forward):
        output = model(x, *args, **kwargs)
    J = found[0]
    J.model, J.output = model, output
    return J


def _leaf(x: Tensor) -> Tensor:
    """x under a name of its own: another argument that depends on x, too, counts as a constant."""
    if x.requires_grad:
        return x.view_as(x)
    try:
        return x.detach().requires_grad_()
    except RuntimeError as error:
        raise UnsupportedModelError(
            "A transform of torch.func (grad, vjp, vmap, …) goes through linearize only where the layerwise "
            "engine serves and knows the model: call linearize once outside of it. For other models give "
            "functional_call parameters that require gradients, and differentiate with torch.autograd.grad."
        ) from error


def _tape(recorder: Recorder, output: Tensor) -> tuple[Tape | None, str | None]:
    try:
        return (None, recorder.reason) if recorder.reason else (recorder.tape(output), None)
    except NoRule as no:
        return None, str(no)


def _outside_inference_mode(product: Callable[[Tensor], Any], w: Tensor) -> Any:
    """Autograd does not work in inference mode, nor with tensors made there."""
    if not torch.is_inference_mode_enabled():
        return product(w)
    with torch.inference_mode(False), torch.no_grad():
        return product(w.clone())
