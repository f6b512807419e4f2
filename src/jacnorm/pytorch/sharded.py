"""Models whose weights are spread over processes by `fully_shard` (FSDP2).

Outside of a layer's forward pass its weights are not available: the tensors that the model computed with have
no storage. Sweeps gather the weights again, layer by layer, into the same tensors. A gradient that is added
to these tensors goes the way of the loss's gradient: FSDP reduces both together.

All processes gather together, so they must sweep together. Every decision that leads to a sweep is therefore
made by all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from ..errors import UnsupportedModelError
from .modules import modules_of
from .switches import Switch

FSDP, DTENSOR, PIPELINES = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.pipelining",
)


class Sharding:
    """The sharded modules behind a model, and the processes that hold their parts."""

    def __init__(self, modules: Sequence[Any]):
        self.modules = modules
        self.groups = [group for module in modules for group in groups_of(module)]
        meshes = {group.mesh_info.mesh for group in self.groups}
        if len(meshes) > 1:
            raise UnsupportedModelError(
                f"The model's layers are sharded over {len(meshes)} different meshes, but only one is "
                "supported: call fully_shard with the same mesh for all of them."
            )
        info = self.groups[0].mesh_info if self.groups else None
        # Those that share a copy of the weights, and those that have the same part of different copies.
        both = (getattr(info, f"{which}_process_group", None) for which in ("shard", "replicate"))
        self.processes: list[Any] = [processes for processes in both if processes is not None]
        self._device = self.groups[0].device if self.groups else torch.device("cpu")

    def agreed(self, value: int) -> int:
        """The largest `value` among all processes."""
        if not self.processes:
            return int(value)
        numbers = torch.tensor(int(value), device=self._device)
        for processes in self.processes:
            torch.distributed.all_reduce(numbers, torch.distributed.ReduceOp.MAX, group=processes)
        return int(numbers)

    @property
    def parts(self) -> Iterator[nn.Parameter]:
        """The parts of the weights that this process holds and its optimizer updates."""
        return (p.sharded_param for group in self.groups for p in group.fsdp_params)

    @contextmanager
    def noting(self, count: Callable[[], int], within: Callable[[int, int, Any], None]) -> Iterator[None]:
        """For each module, call `within` with the counts between which its weights are available."""
        begun, handles = dict[int, int](), []
        for module in self.modules:
            handles.append(module.register_forward_pre_hook(lambda m, _: begun.__setitem__(id(m), count())))
            handles.append(
                module.register_forward_hook(lambda m, _, __: within(begun.pop(id(m)), count(), m))
            )
        try:
            with _switch:
                yield
        finally:
            for handle in handles:
                handle.remove()


def sharding_of(model: Any) -> Sharding | None:
    """The sharding of a model, or None if it is not sharded. Raises if this kind is not supported."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    _check_pipeline(model)
    modules = [m for root in modules_of(model).values() for m in root.modules()]
    fsdp = sys.modules.get(FSDP)
    sharded = [] if fsdp is None else [m for m in modules if isinstance(m, fsdp.FSDPModule)]
    _check_wrappers(modules, fsdp)
    known = {id(p) for m in sharded for group in groups_of(m) for p in _all_forms(group)}
    _check_parameters(modules, known)
    return Sharding(sharded) if sharded else None


def groups_of(module: Any) -> Sequence[Any]:
    state = module._get_fsdp_state()
    groups: Sequence[Any] = (
        state._fsdp_param_groups
        if hasattr(state, "_fsdp_param_groups")
        else ([] if state._fsdp_param_group is None else [state._fsdp_param_group])
    )
    return groups


def _all_forms(group: Any) -> Iterator[Any]:
    for p in group.fsdp_params:
        if p.is_dtensor:  # tensor parallel besides: gathered, it is still a part
            continue
        yield p.sharded_param
        yield getattr(p, "_sharded_post_forward_param", None)
        yield getattr(p, "_unsharded_param", None)


def _check_pipeline(model: Any) -> None:
    owner = getattr(model, "__self__", model)
    if any(kind.__module__.startswith(PIPELINES) for kind in type(owner).__mro__):
        raise UnsupportedModelError(
            f"{type(owner).__name__} runs a pipeline, of which each process has only a stage, so no process "
            "has the whole J. Linearize a model that is whole in each process, or sharded by fully_shard."
        )


def _check_wrappers(modules: Sequence[nn.Module], fsdp: Any) -> None:
    if fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in modules):
        raise UnsupportedModelError(
            "FullyShardedDataParallel (FSDP1) keeps the weights of several layers in one tensor, which "
            "jacnorm cannot follow. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)."
        )


def _check_parameters(modules: Sequence[nn.Module], known: set[int]) -> None:
    """Refuse weights of which a layer uses only a part."""
    tensors = sys.modules.get(DTENSOR)
    if tensors is None:
        return
    for module in modules:
        for name, p in module.named_parameters(recurse=False):
            if isinstance(p, tensors.DTensor) and id(p) not in known:
                raise UnsupportedModelError(
                    f"{name} of {type(module).__name__} is spread over processes as {p.placements} (tensor "
                    "parallel?), and its layer computes with a part of it. jacnorm supports models that are "
                    "whole in each process, or sharded by fully_shard."
                )


# Sweeps. ---------------------------------------------------------------------------------------------------


def gathered(steps: Iterable[Any]) -> Iterator[Any]:
    """The steps, each while its weights are available. Weights that were gathered for it are freed again."""
    held: list[Any] = []
    try:
        for step in steps:
            for module in [m for m in held if m not in step.within]:
                _let_go(module, held)
            for module in step.within:
                if not all(group.is_unsharded for group in groups_of(module)):
                    held.append(module)
                    module.unshard()
            yield step
    finally:
        for module in list(held):
            _let_go(module, held)


def _let_go(module: Any, held: list[Any]) -> None:
    held.remove(module)
    module.reshard()


# What FSDP does while a model is recorded. -----------------------------------------------------------------


def _register(apply: Any, group: Any, *tensors: Any) -> Any:
    """The identity through which FSDP passes the arguments of a module, made visible to a recorder."""
    if has_torch_function(tensors):
        return handle_torch_function(_register, tensors, apply, group, *tensors)
    return apply(group, *tensors)


_register.__name__ = "backward_hook"


@contextmanager
def _unseen() -> Iterator[None]:
    """Hide the calls by which FSDP gathers weights: they are not calls of the model."""
    inside: Any = sys.modules[f"{FSDP}._fully_shard._fsdp_param_group"]
    group, function = inside.FSDPParamGroup, inside.RegisterPostBackwardFunction
    plain = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "reshard")}
    apply = function.apply
    for name, method in plain.items():
        setattr(group, name, _hidden(method))
    function.apply = staticmethod(lambda *values: _register(apply, *values))
    try:
        yield
    finally:
        for name, method in plain.items():
            setattr(group, name, method)
        del function.apply


def _hidden(method: Any) -> Any:
    def hidden(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return hidden


_switch = Switch(_unseen)


def is_of_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(FSDP)
