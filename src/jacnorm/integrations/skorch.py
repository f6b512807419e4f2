"""skorch's nets, for those who live in scikit-learn."""

from __future__ import annotations

from typing import Any

import torch
from skorch import NeuralNet, NeuralNetClassifier
from skorch.callbacks import PassthroughScoring
from torch import Tensor

from ..penalties import SpectralPenalty
from ..pytorch.outputs import Output
from ..request import BatchNorm
from .indexing import WithIndex, split_index
from .watch import OnceAnEpoch, Watch, measures


class RegularizedNet(NeuralNet):
    """A NeuralNet that adds a penalty to the loss, with warm starts. Its history has the penalty and σ of
    each batch, and once an epoch what `penalty.report` says.

        RegularizedClassifier(Net, criterion=nn.CrossEntropyLoss, penalty__weight=0.01)

    `penalty` is a class or an instance, as `criterion` is, so that a grid search can go over penalty__weight.
    The Jacobian is that of what the module returns, or of `output` in it: let it be logits, not
    probabilities. `precision` is that of `linearize`.
    """

    def __init__(
        self,
        *args: Any,
        penalty: Any = SpectralPenalty,
        batch_norm: BatchNorm = "flowing",
        output: Output = None,
        precision: torch.dtype | None = None,
        **kwargs: Any,
    ):
        # First, or skorch takes an instance for a part.
        self.penalty, self.batch_norm, self.output, self.precision = penalty, batch_norm, output, precision
        super().__init__(*args, **kwargs)

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        return [*super()._default_callbacks, ("penalty", PassthroughScoring("penalty", on_train=True))]

    def initialize_criterion(self) -> RegularizedNet:
        super().initialize_criterion()
        self.penalty_ = self.initialized_instance(self.penalty, self.get_params_for("penalty"))
        return self

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        return super().get_iterator(WithIndex(dataset) if training else dataset, training=training)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_begin(*args, **kwargs)
        how: Any = {"batch_norm": self.batch_norm, "output": self.output, "precision": self.precision}
        self._watch = Watch(self.module_, linearize=self.penalty_.linearize, **how)
        self._reports = OnceAnEpoch(self.penalty_)

    def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
        batch, self._index = split_index(batch)
        with self._watch.step():
            return super().train_step_single(batch, **fit_params)

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Tensor:
        loss = super().get_loss(y_pred, y_true, X=X, training=training)
        if not training:
            return loss
        labels = y_true if self.penalty_.needs_labels else None
        value = self.penalty_(self._watch.J, index=self._index, labels=labels)
        for name, number in measures(self.penalty_, value).items():
            self.history.record_batch(name, float(number))
        found = self._reports.report(len(self.history), self._watch.J, self._index, loss, labels)
        for name, known in found.items():
            self.history.record(name, known)
        return loss + value


class RegularizedClassifier(RegularizedNet, NeuralNetClassifier):
    """A NeuralNetClassifier with a penalty."""
