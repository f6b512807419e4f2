"""The wheel, built from the source archive and installed alone, works; both have all that belongs to them."""

import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

import jacnorm

ROOT = Path(__file__).parent.parent

SMOKE = """
import sys
import torch
import jacnorm as jn

assert jn.__file__.startswith(sys.prefix), jn.__file__
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
J = jn.linearize(model, torch.randn(5, 4))
exact = torch.linalg.matrix_norm(J.dense(), 2)
torch.testing.assert_close(jn.spectral_norm(J).sigma, exact.detach())
(wanted,) = torch.autograd.grad(exact.mean(), model[0].weight)
jn.SpectralPenalty(weight=1, iterations=200)(J).backward()
torch.testing.assert_close(model[0].weight.grad, wanted, rtol=1e-3, atol=1e-5)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Built from a copy, with the setuptools at hand: no network, and nothing is left in the checkout.

    `build` makes the wheel from the source archive, not from the copy.
    """
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "build", "--no-isolation", copy, cwd=copy)
    (path,) = (copy / "dist").glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(archive):
    (path,) = archive.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment that sees the wheel, and of what is installed here only torch, numpy and their needs.

    (To download torch for every test would take minutes; the point is that nothing else is there.)
    """
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    lent = folder / "lent"
    lent.mkdir()
    for entry in needed("torch", "numpy"):
        (lent / entry.name).symlink_to(entry)
    (site / "lent.pth").write_text(f"{lent}\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    return python.parent


def needed(*names):
    """The folders and files in site-packages of some distributions and of all that they require."""
    seen, entries = set(), set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        tops = {file.parts[0] for file in found.files} - {"..", "__pycache__"}
        entries |= {Path(found.locate_file(top)) for top in tops}
        required = [r for r in found.requires or () if "extra ==" not in r and "platform" not in r]
        waiting += [re.match(r"[\w.-]+", r)[0] for r in required]
    return entries


def package():
    """The files of the package, as the wheel names them."""
    source = ROOT / "src" / "jacnorm"
    files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(ROOT / "src")) for path in files}


def run(*command, cwd=None, code=0):
    # -I would be simpler, but the command `jacnorm` is a script; PYTHONPATH may point at the checkout.
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_archive_holds_the_source(archive):
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert archive.name == f"jacnorm-{jacnorm.__version__}.tar.gz"
    assert inside >= {"README.md", "LICENSE", "pyproject.toml"}
    assert inside >= {f"src/{name}" for name in package()}
    assert not [name for name in inside if name.startswith("tests")]


def test_it_holds_the_package_and_nothing_else(wheel):
    inside = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == package()
    assert "jacnorm/py.typed" in inside
    assert "jacnorm/lab/report/page.html" in inside


def test_it_works_with_torch_and_numpy_alone(environment, tmp_path):
    run(environment / "python", "-c", SMOKE, cwd=tmp_path)


def test_the_command_knows_its_version(environment, tmp_path):
    assert run(environment / "jacnorm", "--version", cwd=tmp_path) == f"jacnorm {jacnorm.__version__}\n"


def test_the_command_says_which_extra_is_missing(environment, tmp_path):
    told = run(environment / "jacnorm", "demo", cwd=tmp_path, code=2)
    assert re.fullmatch(r"jacnorm: the command line needs \w+: pip install 'jacnorm\[lab\]'\n", told)
