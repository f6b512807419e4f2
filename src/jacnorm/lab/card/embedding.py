"""The model as a function of its embedded tokens, and attacks that change one token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attacks.losses import cross_entropy

TRIES = 50  # changes that are tried per text


class FromEmbedding(nn.Module):
    """The model as a function of the embedded tokens (N, length, width)."""

    def __init__(self, model: nn.Module, at: str, tokens: Tensor):
        super().__init__()
        self.model, self.at, self.tokens = model, at, tokens

    def forward(self, embedded: Tensor) -> Tensor:
        hook = self.model.get_submodule(self.at).register_forward_hook(lambda *_: embedded)
        try:
            return self.model(self.tokens)
        finally:
            hook.remove()


def swapped(model: nn.Module, at: str, tokens: Tensor, labels: Tensor) -> Tensor:
    """Which texts are fooled by one changed token, (N,).

    The tried changes raise the loss most, to first order.
    """
    module: Any = model.get_submodule(at)
    with torch.no_grad():
        embedded = module(tokens)
    leaf = embedded.detach().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(FromEmbedding(model, at, tokens)(leaf), labels).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
    vocabulary = module.weight.detach()
    gain = gradient @ vocabulary.T - (gradient * embedded).sum(-1, keepdim=True)  # (N, length, tokens)
    return _any_fooled(model, tokens, labels, gain.masked_fill(_forbidden(module, tokens), -torch.inf))


def swapped_at_random(
    model: nn.Module, at: str, tokens: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """The same for changes drawn at random, without gradients."""
    module: Any = model.get_submodule(at)
    shape = (*tokens.shape, module.num_embeddings)
    drawn = torch.rand(shape, generator=generator, device=tokens.device)
    return _any_fooled(model, tokens, labels, drawn.masked_fill(_forbidden(module, tokens), -torch.inf))


def blind_to(model: nn.Module, at: str, tokens: Tensor, labels: Tensor) -> int:
    """The number of texts for which the gradient of the loss is zero."""
    leaf = model.get_submodule(at)(tokens).detach().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(FromEmbedding(model, at, tokens)(leaf), labels).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
    return int((~gradient.flatten(1).any(1)).sum())


def _forbidden(module: Any, tokens: Tensor) -> Tensor:
    """Forbidden changes: a token to itself, padding to a token, and a token to padding."""
    found = nn.functional.one_hot(tokens, module.num_embeddings).bool()
    if module.padding_idx is not None:
        found[tokens == module.padding_idx] = True
        found[..., module.padding_idx] = True
    return found


@torch.no_grad()
def _any_fooled(model: nn.Module, tokens: Tensor, labels: Tensor, score: Tensor) -> Tensor:
    tries = min(TRIES, int(score[0].numel()))
    best = score.flatten(1).topk(tries, 1)
    fooled = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for value, place in zip(best.values.T, best.indices.T, strict=True):
        position, word = place // score.shape[2], place % score.shape[2]
        changed = tokens.scatter(1, position[:, None], word[:, None])
        fooled |= (model(changed).argmax(1) != labels) & value.isfinite()
    return fooled
