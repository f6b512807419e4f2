"""`local_lipschitz`: how much a model stretches small changes of given inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import fields
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from .errors import InputError, warn
from .estimators import Estimate, InducedNorm, induced_norm, spectral_norm
from .estimators.induced import order
from .estimators.measure import SMALL
from .linearization import Linearization
from .pytorch.modules import modules_of, random_state
from .pytorch.outputs import Output
from .pytorch.progress import Progress
from .recording import linearize
from .trust.checks import check_count

MAX_BYTES = 1 << 30
AT_A_TIME = 512  # samples, so that progress is visible
KRYLOV = 40  # vectors per side that Lanczos keeps; in practice it needs no more
Two = Literal[2, "2"]
Result = TypeVar("Result", Estimate, InducedNorm)


Batches = Tensor | Iterable[Any]  # a tensor, a DataLoader, or any other iterable of batches


@overload
def local_lipschitz(
    model: Callable[..., Any],
    x: Batches,
    *,
    norm: Two = 2,
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
    at: str | None = None,
    output: Output = None,
) -> Estimate: ...


@overload
def local_lipschitz(
    model: Callable[..., Any],
    x: Batches,
    *,
    norm: Literal[1, "1", "inf"],
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
    at: str | None = None,
    output: Output = None,
) -> InducedNorm: ...


@torch.no_grad()
def local_lipschitz(
    model: Callable[..., Any],
    x: Batches,
    *,
    norm: float | str = 2,
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
    at: str | None = None,
    output: Output = None,
) -> Estimate | InducedNorm:
    """The local Lipschitz constant of `model` at each sample of `x`: ‖J(x_i)‖.

    THIS IS NOT A CERTIFICATE. It is the smallest constant that holds for infinitely small changes of these
    inputs. Over a ball of any radius, and at other points, the true constant can be larger. To certify
    robustness, use a method that bounds the whole ball.

    model
        A module, or any function of x. It runs in the mode that it is in: call model.eval() first, unless
        you mean the network in training. A warning is given if it draws random numbers, as dropout does in
        training mode.
    x
        A batch (B, *input), or an iterable of batches such as a DataLoader. If a batch is a list or tuple,
        such as inputs and labels, its first tensor is x. If a batch is a dict (Hugging Face), it is passed to
        the model by name, and x is the main input of the model, or the first entry.
    norm
        The norm in which changes of the input are measured: 2, 1 or "inf". Changes of the output are always
        measured in the 2-norm.
    tol
        The relative tolerance of σ, for norm 2.
    max_bytes
        About how much memory to use. Large sets are measured in parts that fit, of one sample at least.
    at, output
        As in `linearize`: the layer at which J begins (for tokens, an embedding), and which output is meant.

    Returns an `Estimate` for norm 2, with `sigma` (N,) and `residual` (N,), which says how far off it may be.
    For norms 1 and "inf" returns an `InducedNorm`, with `lower` (N,) and `upper` (N,). N counts the samples
    of all batches. Raises `InputError` if an argument does not fit or x has no batches, and any error of
    `linearize`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    >>> L = local_lipschitz(model, torch.randn(5, 1, 2, 2))
    >>> L.sigma.shape, bool(L.converged.all())
    (torch.Size([5]), True)
    >>> torch.allclose(L.sigma, torch.linalg.matrix_norm(model[1].weight, 2))
    True
    """
    p = order(norm)
    check_count("max_bytes", max_bytes)

    def linearized(part: Tensor, others: dict[str, Any]) -> Linearization:
        return linearize(model, part, at=at, output=output, **others)

    def measure(part: Any, others: dict[str, Any]) -> Any:
        if not isinstance(first := _first(part), Tensor):
            raise InputError(f"x must be a tensor or an iterable of batches; found {type(first).__name__}.")
        device = first.device
        before = random_state(device)
        J = linearized(part, others)
        if not torch.equal(before, random_state(device)):
            _tell_of_randomness(model)
        return spectral_norm(J, tol=tol) if p == 2 else induced_norm(J, p)

    found, done, progress = [], 0, Progress("measuring σ", _length(x))
    try:
        for part, others in _batches(x, model):
            for piece in _pieces(part, others, model, max_bytes, linearized):
                found.append(measure(piece, others))
                progress.done(done := done + len(_first(piece)))
    finally:
        progress.close()
    if not found:
        raise InputError("x has no batches: there is nothing to measure.")
    return _joined(found)


def _length(x: Any) -> int | None:
    """The number of samples, if it is known."""
    if isinstance(x, Tensor):
        return len(x) if x.dim() else None
    data = getattr(x, "dataset", None)
    return len(data) if isinstance(data, Sized) else None


def _batches(x: Any, model: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Pairs of x and the further arguments of the model. A tuple is one batch with several inputs."""
    if isinstance(x, Tensor | tuple | str) or not isinstance(x, Iterable):
        yield x, {}
    else:
        for batch in x:
            yield _inputs(batch, model)


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) and x else x


def _inputs(batch: Any, model: Any) -> tuple[Any, dict[str, Any]]:
    """x of a batch, and the further arguments of the model."""
    if isinstance(batch, Mapping) and batch:
        main = getattr(model, "main_input_name", None)
        name = main if main in batch else next(iter(batch))
        return batch[name], {other: value for other, value in batch.items() if other != name}
    return (batch[0] if isinstance(batch, list | tuple) and batch else batch), {}


def _pieces(
    x: Any, others: Mapping[str, Any], model: Any, max_bytes: int, linearized: Callable[..., Linearization]
) -> Sequence[Any]:
    """Parts of a batch that fit into memory. A batch with further arguments stays in one piece."""
    if not isinstance(x, Tensor) or x.dim() == 0 or len(x) <= 1 or others or not _can_be_taken_apart(model):
        return [x]
    fitting = max_bytes // _bytes_of_one(linearized(x[:1], {}))
    return x.split(max(1, min(fitting, AT_A_TIME)))


def _tell_of_randomness(model: Any) -> None:
    modules = [m for root in modules_of(model).values() for m in root.modules()]
    training = next((type(m).__name__ for m in modules if m.training and "Drop" in type(m).__name__), None)
    which = f" ({training} is in training mode)" if training else ""
    warn(
        f"The model draws random numbers{which}: σ belongs to the network that was drawn, and differs from "
        "run to run. Call model.eval() first, unless you mean that."
    )


def _bytes_of_one(J: Linearization) -> int:
    """The memory to measure one sample: its activations (recorded, and those of a sweep), and the vectors of
    the method, which are all rows of J or a Krylov basis of both sides."""
    n_in, n_out = J.input_shape.numel(), J.output_shape.numel()
    vectors = 2 * min(n_in, n_out) * n_in if min(n_in, n_out) <= SMALL else KRYLOV * (n_in + n_out)
    return 3 * J.activation_bytes + J.output.element_size() * vectors


def _can_be_taken_apart(model: Any) -> bool:
    """Whether a batch can be split. It cannot if batch norm may use the statistics of the batch: in training
    mode, or without running statistics."""
    owner = getattr(model, "__self__", model)
    return isinstance(owner, nn.Module) and not any(
        m.training or (isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None)
        for m in owner.modules()
    )


def _joined(parts: Sequence[Result]) -> Result:
    """The results of all parts as one: samples are concatenated, the number of rounds is the largest."""
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(parts[0])):
        values = [getattr(part, name) for part in parts]
        joined[name] = torch.cat(values) if isinstance(values[0], Tensor) else max(values)
    return type(parts[0])(**joined)
