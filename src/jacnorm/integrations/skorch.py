"""Nets of skorch, for use with scikit-learn."""

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
    """A NeuralNet that adds a penalty to the loss, and stores a vector per sample.

        RegularizedClassifier(Net, criterion=nn.CrossEntropyLoss, penalty__weight=0.01)

    Its history has the penalty and σ of each batch, and once per epoch the numbers of `penalty.report`.
    Arguments besides these are those of NeuralNet:

    penalty
        A class or an instance, as for `criterion`, so that a grid search can vary penalty__weight.
    output
        As in `linearize`: the tensor that J is the Jacobian of, if the module returns more than one. It
        should be logits, not probabilities.
    batch_norm, precision
        As in `linearize`.
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
        # This comes first. Otherwise skorch would treat an instance as a part of the net.
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
    """A NeuralNetClassifier with a penalty. The arguments are those of `RegularizedNet`."""
