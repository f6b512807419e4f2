"""How sensitive a network is, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .. import Linearization, NonFiniteError, SingularVectors, linearize, singular_vectors, spectral_norm

CHUNK = 500
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Sensitivity:
    """σ of each sample, how good the number is, and the predicted class."""

    sigma: Tensor  # (N,)
    residual: Tensor  # (N,)
    converged: Tensor  # (N,)
    predicted: Tensor  # (N,)

    def most_sensitive(self, count: int) -> Tensor:
        return self.sigma.argsort(descending=True)[:count]


@torch.no_grad()
def sensitivities(
    model: nn.Module, x: Tensor, *, tol: float = 1e-3, quiet: bool = False, at: str | None = None
) -> Sensitivity:
    """σ of the model at each input x. With `at`, J begins at the output of this submodule."""
    model.eval()
    parts: list[tuple[Tensor, ...]] = []
    with tqdm(total=len(x), unit=" samples", disable=True if quiet else None, desc="measuring") as bar:
        for start, chunk in zip(range(0, len(x), CHUNK), x.split(CHUNK), strict=True):
            J = _linearized(model, chunk, at, start)
            e = spectral_norm(J, tol=tol)
            predicted = J.output.flatten(1).argmax(1)
            parts.append((e.sigma, e.residual, e.converged, predicted))
            bar.update(len(chunk))
    return Sensitivity(*(torch.cat(part).cpu() for part in zip(*parts, strict=True)))


def _linearized(model: nn.Module, chunk: Tensor, at: str | None, start: int) -> Linearization:
    """If the result is NaN, the error names the first such sample."""
    try:
        return linearize(model, chunk, at=at)
    except NonFiniteError as error:
        bad = (~torch.isfinite(model(chunk).flatten(1))).any(1).nonzero()
        first = f"First for sample {start + int(bad[0, 0])}: " if len(bad) else ""
        raise NonFiniteError(f"{first}{error}") from error


@torch.no_grad()
def directions(model: nn.Module, x: Tensor, k: int, at: str | None = None) -> SingularVectors:
    """The k most sensitive directions of each input, with their singular values."""
    found = singular_vectors(linearize(model.eval(), x, at=at), k)
    return SingularVectors(*(part.cpu() for part in found))


def summary(s: Sensitivity, labels: Tensor, classes: tuple[str, ...], top: int) -> dict[str, Any]:
    """The numbers of a report: quantiles overall and per class, and the most sensitive samples."""
    labels = labels.cpu()
    by_class = {
        name: _quantiles(s.sigma[labels == i]) | {"images": int((labels == i).sum())}
        for i, name in enumerate(classes)
        if (labels == i).any()
    }
    most = [
        {
            "index": int(i),
            "sigma": float(s.sigma[i]),
            "label": classes[int(labels[i])],
            "predicted": classes[int(s.predicted[i])],
        }
        for i in s.most_sensitive(top)
    ]
    relative = s.residual / s.sigma.clamp_min(torch.finfo(s.sigma.dtype).tiny)
    return {
        "images": len(s.sigma),
        "accuracy": float((s.predicted == labels).double().mean()),
        "sigma": _quantiles(s.sigma),
        "by_class": by_class,
        "most_sensitive": most,
        "not_converged": int((~s.converged).sum()),
        "worst_relative_residual": float(relative.max()),
    }


def _quantiles(sigma: Tensor) -> dict[str, float]:
    points = torch.tensor(QUANTILES, dtype=sigma.dtype)
    values = sigma.quantile(points).tolist()
    names = [f"{100 * q:g}%" for q in QUANTILES]
    return {"mean": float(sigma.mean()), **dict(zip(names, values, strict=True))}
