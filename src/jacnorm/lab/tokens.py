"""Tokens, and the embedding where J begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .errors import UsageError


def find_embedding(model: nn.Module, tokens: Tensor, at: str | None) -> str:
    """The name of the `nn.Embedding` that the model calls with the tokens."""
    embeddings = {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    if at is not None:
        if at not in embeddings:
            raise UsageError(f"at={at!r} names no nn.Embedding of the model: it has {_listed(embeddings)}")
        return at
    seen: list[str] = []

    def look(name: str) -> Any:
        return lambda module, inputs: (
            seen.append(name) if torch.equal(torch.as_tensor(inputs[0]), tokens) else None
        )

    hooks = [module.register_forward_pre_hook(look(name)) for name, module in embeddings.items()]
    try:
        with torch.no_grad():
            model(tokens)
    except InputError as error:  # the outputs cannot be used
        raise UsageError(str(error)) from error
    except Exception as error:  # a user's code may raise anything
        raise UsageError(
            f"the net does not take tokens of shape {tuple(tokens.shape[1:])}, from {int(tokens.min())} "
            f"to {int(tokens.max())}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if len(set(seen)) != 1:
        raise UsageError(
            f"which embedding takes the tokens? Say at=… (--at …): the model has {_listed(embeddings)}"
        )
    return seen[0]


def _listed(embeddings: dict[str, Any]) -> str:
    return ", ".join(embeddings) or "none"


def check_vocabulary(model: nn.Module, at: str, tokens: Tensor, what: str) -> None:
    """Check that the embedding has a row for each token. PyTorch's own error does not name the token."""
    module: Any = model.get_submodule(at)
    bad = (tokens >= module.num_embeddings).nonzero()
    if len(bad):
        row = int(bad[0, 0])
        raise UsageError(
            f"{what}: sample {row} has the token {int(tokens[row].max())}; the embedding {at!r} knows "
            f"0 to {module.num_embeddings - 1}"
        )
