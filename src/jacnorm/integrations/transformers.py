"""Hugging Face's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from ..penalties import Penalty
from ..pytorch.outputs import Output
from ..pytorch.switches import unfused_attention
from ..request import BatchNorm
from .distributed import share_vectors
from .indexing import labels_of, split_index
from .watch import OnceAnEpoch, Watch, measures

STATE = "penalty.pt"


class RegularizedTrainer(Trainer):
    """A Trainer that adds the penalty to the loss, and logs it.

        RegularizedTrainer(model, args, train_dataset=…, penalty=jn.SpectralPenalty(weight=0.01))

    J is the Jacobian of the logits with respect to the main input of the model (`pixel_values`), or, if that
    input is tokens, with respect to their embeddings. Once per epoch the Trainer logs `penalty.report`. The
    state of the penalty is saved in the checkpoints. If the training set has a column `index` with the
    positions of the samples (`indexing.WithIndex` makes one), the penalty stores a vector per sample. To
    combine it with your own Trainer, write class Mine(RegularizedTrainer, YourTrainer).

    Arguments besides these are those of Trainer:

    penalty
        The penalty.
    batch_norm, precision
        As in `linearize`.
    output
        As in `linearize`: the tensor that J is the Jacobian of, instead of the logits.
    """

    def __init__(
        self,
        *args: Any,
        penalty: Penalty,
        batch_norm: BatchNorm = "flowing",
        output: Output = None,
        precision: torch.dtype | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.penalty = penalty
        module = self.accelerator.unwrap_model(self.model)
        how: Any = {"batch_norm": batch_norm, "output": output, "precision": precision}
        self._watch = Watch(module, linearize=penalty.linearize, **how)
        self._reports = OnceAnEpoch(penalty)
        self._measured: list[dict[str, Tensor]] = []  # since the last log
        self._seen: list[Tensor] = []  # in this epoch
        self.add_callback(_AfterEpoch(self))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        inputs, index = split_index(inputs)
        if not model.training or not torch.is_grad_enabled():
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = labels_of(inputs) if self.penalty.needs_labels else None
        with self._watch.step() as seen:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            value = self.penalty(seen.J, index=index, labels=labels)
            report = self._reports.report(int(self.state.epoch or 0), seen.J, index, loss, labels)
        self._measured.append(measures(self.penalty, value))
        if report:
            self.log(report)
        self._seen += [] if index is None else [index]
        loss = loss + value / self._steps_not_divided_by(num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self.args.gradient_checkpointing:
            return super().training_step(*args, **kwargs)
        with unfused_attention:  # backward() may recompute attention, so the switch must still be on
            return super().training_step(*args, **kwargs)

    def _steps_not_divided_by(self, num_items_in_batch: Any) -> int:
        """The factor for a loss that is already a mean over all accumulated batches."""
        scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if scaled is None:
            by_items = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = by_items or self.compute_loss_func is not None
        return int(self.current_gradient_accumulation_steps) if scaled else 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._measured:
            for name in dict.fromkeys(name for m in self._measured for name in m):
                logs[name] = float(torch.stack([m[name] for m in self._measured if name in m]).mean())
            self._measured = []
        super().log(logs, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:  # without this, the Trainer would drop the column `index`
            super()._set_signature_columns_if_needed()
            columns: list[str] = self._signature_columns or []
            columns.append("index")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            torch.save(self.penalty.state_dict(), folder / STATE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint) / STATE
        if file.exists():  # a plain Trainer may have written the checkpoint
            self.penalty.load_state_dict(torch.load(file, weights_only=True))


class _AfterEpoch(TrainerCallback):
    def __init__(self, trainer: RegularizedTrainer):
        self._trainer = trainer

    def on_epoch_end(self, args: Any, *_: Any, **__: Any) -> None:
        seen, self._trainer._seen = self._trainer._seen, []
        if seen and args.world_size > 1:
            share_vectors(self._trainer.penalty, torch.cat(seen))
