"""Minimum-norm attacks of foolbox."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EvaluationError
from ..progress import progress
from .common import CHUNK

# Wide, so that it does not limit the search: the distance to a boundary has no box.
NO_BOX = (-1000.0, 1000.0)
HALVINGS = 10


def l2_distance(model: nn.Module, images: Tensor, labels: Tensor, *, steps: int = 100) -> Tensor:
    """Length of the shortest perturbation that DDN (Rony et al., 2019) or DeepFool (Moosavi-Dezfooli et al.,
    2016) finds, moved back along its own line to the boundary, (N,). inf: none found.

    It is an upper bound of the distance to the decision boundary. (The L2 FMN of foolbox 3.3.4 never projects
    onto its ball, so it is not used here.)
    """
    foolbox = need_foolbox()
    attacks = (foolbox.attacks.DDNAttack(steps=steps), foolbox.attacks.L2DeepFoolAttack(steps=50))
    found = []
    with progress(len(images), "distance by attack") as bar:
        for x, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            perturbed = [_run(attack, model, x, y, NO_BOX) for attack in attacks]
            found.append(_shortest(model, x, y, perturbed))
            bar.update(len(x))
    return torch.cat(found)


def linf_perturbed(model: nn.Module, images: Tensor, labels: Tensor, *, steps: int) -> Tensor:
    """The images that FMN (Pintor et al., 2021) ends with, in [0, 1]."""
    return _run(need_foolbox().attacks.LInfFMNAttack(steps=steps), model, images, labels, (0.0, 1.0))


def need_foolbox() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses a deprecated import from scipy
            import foolbox
    except ImportError as error:
        raise EvaluationError(
            f"minimum-norm attacks need foolbox ({error}): pip install 'jacnorm[lab]'"
        ) from error
    return foolbox


def _run(attack: Any, model: nn.Module, x: Tensor, y: Tensor, bounds: tuple[float, float]) -> Tensor:
    frozen = copy.deepcopy(model).requires_grad_(False).eval()  # foolbox calls backward()
    wrapped = need_foolbox().PyTorchModel(frozen, bounds=bounds, device=x.device)
    with torch.random.fork_rng():  # DDN draws from the global generator where the gradient is zero
        torch.manual_seed(0)
        found: Tensor = attack.run(wrapped, x, y)
    return torch.where(found.isfinite(), found, x)  # NaN comes from a division by zero. It does not count


@torch.no_grad()
def _shortest(model: nn.Module, x: Tensor, y: Tensor, perturbed: Iterable[Tensor]) -> Tensor:
    best = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
    for end in perturbed:
        fooled = model(end).argmax(1) != y
        length = (_to_the_boundary(model, x, y, end) - x).flatten(1).norm(dim=1)
        best = torch.where(fooled & (length < best), length, best)
    return best


def _to_the_boundary(model: nn.Module, x: Tensor, y: Tensor, end: Tensor) -> Tensor:
    """The first point outside, between x and a perturbed end, by binary search."""
    inner, outer = torch.zeros_like(x[:, :1, :1, :1]), torch.ones_like(x[:, :1, :1, :1])
    for _ in range(HALVINGS):
        middle = (inner + outer) / 2
        outside = (model(x + middle * (end - x)).argmax(1) != y)[:, None, None, None]
        inner, outer = torch.where(outside, inner, middle), torch.where(outside, middle, outer)
    return x + outer * (end - x)
