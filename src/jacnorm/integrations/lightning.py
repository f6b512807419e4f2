"""A callback for Lightning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from ..errors import InputError
from ..penalties import Penalty
from ..pytorch.outputs import Output
from ..request import BatchNorm
from .distributed import share_vectors
from .indexing import labels_of, split_index
from .watch import OnceAnEpoch, Watch, measures


class JacobianPenalty(Callback):
    """A callback that adds the penalty to the loss of any LightningModule, and logs both.

        Trainer(callbacks=[JacobianPenalty(jn.SpectralPenalty(weight=0.01))])

    The penalty is added to the loss that `training_step` returns, so accumulation, precision and strategy
    apply to the sum. Once per epoch the callback logs `penalty.report`. The state of the penalty is saved in
    Lightning's checkpoints. Wrap the data set in `indexing.WithIndex`, so that the penalty stores a vector
    per sample. Raises `InputError` if the module uses manual optimization.

    penalty
        The penalty. If it needs labels, it gets the second part of the batch, or its entry "labels" or
        "label".
    module
        The attribute of the LightningModule that is penalized, at its first call in each step. The default is
        the LightningModule itself (`self(x)`), or its only child with parameters (`self.net(x)`).
    batch_norm, precision
        As in `linearize`.
    output
        As in `linearize`: for a network that returns more than one tensor, the tensor that J is the Jacobian
        of. It is not needed for logits.
    """

    def __init__(
        self,
        penalty: Penalty,
        module: str | None = None,
        *,
        batch_norm: BatchNorm = "flowing",
        output: Output = None,
        precision: torch.dtype | None = None,
    ):
        self.penalty, self.module, self.batch_norm, self.output = penalty, module, batch_norm, output
        self.precision = precision
        self._seen: list[Tensor] = []
        self._reports = OnceAnEpoch(penalty)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise InputError(
                "With manual optimization the callback cannot change the loss. In training_step, call "
                "J = jacnorm.linearize(self.net, x) and add penalty(J) before self.manual_backward(loss)."
            )
        how: Any = {"batch_norm": self.batch_norm, "output": self.output, "precision": self.precision}
        watch = Watch(*self._watched(pl_module), linearize=self.penalty.linearize, **how)
        pl_module.training_step = self._penalized(pl_module, watch)  # type: ignore[method-assign]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pl_module.__dict__.pop("training_step", None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        pl_module.__dict__.pop("training_step", None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._seen and trainer.world_size > 1:
            share_vectors(self.penalty, torch.cat(self._seen))
        self._seen = []

    def state_dict(self) -> dict[str, Any]:
        return {"penalty": self.penalty.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.penalty.load_state_dict(state_dict["penalty"])

    def _penalized(self, pl_module: LightningModule, watch: Watch) -> Callable[..., Any]:
        plain = pl_module.training_step

        @wraps(plain)
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            batch, index = split_index(batch)
            with watch.step() as seen:
                result = plain(batch, *args, **kwargs)
                if result is None:  # Lightning skips the batch
                    return None
                labels = labels_of(batch) if self.penalty.needs_labels else None
                value, samples = self.penalty(seen.J, index=index, labels=labels), len(seen.J.output)
                loss = result if isinstance(result, Tensor) else result["loss"]
                found = self._reports.report(pl_module.current_epoch, seen.J, index, loss, labels)
            if index is not None:
                self._seen.append(index)
            pl_module.log_dict({**measures(self.penalty, value), **found}, batch_size=samples)
            if isinstance(result, Tensor):
                return result + value
            return {**result, "loss": loss + value}

        return training_step

    def _watched(self, pl_module: LightningModule) -> list[nn.Module]:
        if self.module is not None:
            return [pl_module.get_submodule(self.module)]
        children = {name: c for name, c in pl_module.named_children() if any(True for _ in c.parameters())}
        watched: list[nn.Module] = [pl_module] if is_overridden("forward", pl_module) else []
        watched += children.values() if len(children) == 1 else ()
        if not watched:
            raise InputError(
                f"{type(pl_module).__name__} has no forward of its own and several networks "
                f"({', '.join(children)}): say which one to penalize, JacobianPenalty(penalty, module=…)."
            )
        return watched
