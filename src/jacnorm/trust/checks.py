"""Checks of inputs and outputs. Each raises an error that says what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, JacnormError, ModelError, NonFiniteError, UnsupportedModelError
from ..pytorch.tracing import tracing


def check_input(x: object, at: str | None = None, model: object = None) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"x must be a tensor, found {type(x).__name__}.")
    if x.is_complex() and at is None:
        raise InputError(
            f"x has dtype {x.dtype}: a Jacobian needs real inputs. Take the real and imaginary parts as two "
            "numbers: linearize(lambda x: model(torch.view_as_complex(x)), torch.view_as_real(x)). If the "
            "output is complex as well, end the model in torch.view_as_real. (x.float() would lose the "
            "imaginary part.)"
        )
    if not x.is_floating_point() and at is None:
        raise InputError(
            f"x has dtype {x.dtype}: a Jacobian needs real inputs. Convert images with x.float(); for "
            f"tokens, let J begin where they are embedded: at={_embedding(model)!r}."
        )
    if x.dim() == 0 or x.numel() == 0:
        raise InputError(
            f"x has shape {tuple(x.shape)}: the first axis is the batch, and nothing may be empty. "
            "For a single sample pass x.unsqueeze(0)."
        )


def _embedding(model: object) -> str:
    """The name of the layer that embeds tokens, or a placeholder if it is unknown."""
    named = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    known = getattr(model, "get_input_embeddings", lambda: None)()  # Hugging Face's
    found = [name for name, module in named.items() if module is known]
    found += [name for name, module in named.items() if isinstance(module, nn.Embedding)]
    return next(iter(found), "embedding")


def check_precision(precision: object, x: Tensor) -> None:
    if precision not in (torch.bfloat16, torch.float16):
        raise InputError(
            f"precision={precision!r}: choose torch.bfloat16 or torch.float16, or leave it out for the "
            "precision of the model."
        )
    if x.dtype == torch.float64:
        raise InputError(
            f"precision={precision} is for models in float32, and x has dtype {x.dtype}. Leave precision= "
            "out, or convert model and x with .float()."
        )


def run(model: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """model(x, …). An error of the model becomes a `ModelError`; errors of jacnorm pass unchanged."""
    try:
        return model(x, *args, **kwargs)
    except (torch.OutOfMemoryError, JacnormError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError) as error:
        kind = "" if isinstance(error, RuntimeError | ValueError | TypeError) else f"{type(error).__name__}: "
        raise ModelError(
            f"The model failed on x of shape {tuple(x.shape)}, dtype {x.dtype}: "
            f"{kind}{str(error).rstrip('.')}. "
            f"{_advice(error, kwargs)}"
        ) from error


def _advice(error: Exception, kwargs: dict[str, Any]) -> str:
    if isinstance(error, TypeError) and "missing" in str(error) and "argument" in str(error):
        return (
            "It needs more arguments than x. Bind them in a function that you define once, outside the loop: "
            "def f(x): return model(x, t)"
        )
    unknown = re.search("unexpected keyword argument '(.+?)'", str(error))
    if unknown and unknown[1] in kwargs:
        near = get_close_matches(unknown[1], ("engine", "batch_norm", "at", "to", "precision"), 1)
        return f"Did you mean {near[0]}=?" if near else "Arguments unknown to linearize go to the model."
    if "inference tensor" in str(error).lower():
        return "Its weights or buffers were made under torch.inference_mode: make the model outside of it."
    if "could not create a primitive" in str(error):
        return "This machine cannot run it in half precision: use model.float() and x.float()."
    if re.search("same dtype|scalar type|Input type", str(error)):
        return "x must have the dtype of the weights."
    return "The first axis of x is the batch; for a single sample pass x.unsqueeze(0)."


def check_output(output: object, x: Tensor, model: object) -> None:
    if not isinstance(output, Tensor):
        raise InputError(
            f"The model's output is a {type(output).__name__}, not a tensor: output= takes the name or the "
            "position of a tensor, or a function that takes it from the result."
        )
    if not output.is_floating_point():
        advice = ": end the model in torch.view_as_real" if output.is_complex() else ""
        raise InputError(f"The model's output has dtype {output.dtype}; it must be real numbers{advice}.")
    if output.dim() == 0 or len(output) != len(x) or output.numel() == 0:
        raise InputError(
            f"The output has shape {tuple(output.shape)} for a batch of {len(x)}: its first axis must "
            "be the batch, one output for each sample. For a single sample pass x.unsqueeze(0)."
        )
    if not (tracing() or output.is_meta or _finite(output)):
        raise NonFiniteError(f"The model's output has NaN or inf: {_culprit(x, model)}")


def _finite(output: Tensor) -> bool:
    try:
        return math.isfinite(output.detach().sum()) or bool(torch.isfinite(output).all())
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise UnsupportedModelError(
            "linearize is called under vmap, which cannot look at values. It takes a batch as it is: call it "
            "outside, once for each network if there are several, and use vmap on J.vjp or J.jvp if need be."
        ) from error


def check_vector(name: str, vector: object, shape: torch.Size, of: str) -> None:
    if not isinstance(vector, Tensor) or not vector.is_floating_point():
        kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise InputError(f"{name} must be a tensor of real numbers, found {kind}.")
    if vector.shape != shape:
        raise InputError(
            f"{name} has shape {tuple(vector.shape)}; it must have the shape of {of}, {tuple(shape)}."
        )


def check_labels(labels: object, shape: torch.Size) -> Tensor:
    """The labels as whole numbers, (B,). The output must be a row of scores per sample."""
    if len(shape) != 2 or shape[1] < 2:
        raise InputError(f"Margins need a row of scores for each sample, found an output of {tuple(shape)}.")
    labels = as_tensor(labels)
    if labels.shape != shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; it must hold the class of "
            f"each of the {shape[0]} samples, as whole numbers."
        )
    if not tracing():
        first, last = (int(n) for n in labels.aminmax())
        if first < 0 or last >= shape[1]:
            raise InputError(
                f"labels goes from {first} to {last}; the model has {shape[1]} classes, from 0 on."
            )
    return labels.long()


def is_number(value: object) -> bool:
    """NumPy's count, too."""
    return isinstance(value, Real)


def check_positive(name: str, value: float) -> None:
    if not is_number(value) or not value > 0 or value == float("inf"):
        raise InputError(
            f"{name}={value!r}: it must be a positive, finite number (for the default, leave it out)."
        )


def check_weight(value: float) -> None:
    if not is_number(value) or not 0 <= value < float("inf"):
        raise InputError(f"weight={value!r}: it must be a finite number, zero or more.")


def check_fraction(name: str, value: float) -> None:
    if not (is_number(value) and 0 < value <= 1):
        raise InputError(f"{name}={value!r}: it must be above 0 and at most 1.")


def check_whole(name: str, value: int) -> None:
    if not isinstance(value, Integral):
        raise InputError(f"{name}={value!r}: it must be a whole number.")


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}={value!r}: it must be a whole number, 1 or more.")


def _culprit(x: Tensor, model: object) -> str:
    if not torch.isfinite(x).all():
        return "so has x itself."
    if isinstance(model, nn.Module):
        for name, parameter in model.named_parameters():
            if not torch.isfinite(parameter).all():
                return f"so has the parameter {name!r}. Has training diverged? Lower the learning rate."
    return (
        "x and the parameters are finite, so an activation overflowed. Try float64, a smaller learning "
        "rate, or normalized inputs."
    )


def as_tensor(values: Any) -> Tensor:
    """The values as a tensor. A tensor stays on its device (torch.as_tensor would move it to the default
    device); other values go to the CPU."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Found {values!r:.80}, which is no tensor: give a tensor or a list of numbers."
        ) from error
