"""The Jacobian of each sample, as an operator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from .engines.layers import Layer
from .engines.pairing import Pairing, product
from .engines.reads import Reads
from .engines.recorder import Recorder
from .engines.section import Place, Section
from .engines.tape import Tape
from .errors import InputError, UnsupportedModelError
from .estimators.gram import rows
from .estimators.operator import Transposed, check_uncoupled, is_wide
from .estimators.transforms import (
    Affine,
    Antisymmetric,
    Constant,
    Map,
    Minus,
    Projected,
    Weighted,
    differences,
)
from .pytorch.precision import HALF, at_least_single, without_autocast
from .pytorch.sharded import Sharding
from .pytorch.tracing import tracing
from .trust.checks import check_labels, check_vector

Transformed = Affine | Weighted | Projected | Minus | Antisymmetric
Transform = Callable[["Linearization", Tensor], "Linearization"]  # of J at some positions in the batch


class Linearization:
    """The Jacobian J of `model` at each sample of `x`: J v, Jᵀ u, and `output`, which is model(x).

    Products are per sample and differentiable with respect to the model's parameters. They are taken in the
    precision that the model ran in and returned in `dtype`, float32 or better. `engine` says what computes
    them: "layerwise" where calls were recorded one by one, "autograd" where the whole model is one step.
    `reason` says what has no rule (None if everything has). `layers` are the linear and convolution layers
    that were called, as operators; `tape` is the recorded network, if J is its Jacobian. `input_shape` and
    `output_shape` are those of J.

    `result` is all that the model returned, where that is more than a tensor: the loss that it has computed,
    say. `chosen` is then the name of `output` in it, if nobody has named one.

    J belongs to the weights that it was taken at: after optimizer.step(), linearize again. Products of an old
    J are refused, but for the steps of PyTorch's fused optimizers, which leave no trace on the weights.
    """

    def __init__(
        self,
        products: Tape,
        section: Section,
        output: Tensor,
        recorder: Recorder,
        reason: str | None,
        part: Callable[[Tensor], Linearization],
        coupled: bool = False,
        sharding: Sharding | None = None,
    ):
        layers = self._layers = recorder.layers
        self.model, self.output, self.reason = section.model, output, reason
        self.chosen = section.chosen
        self.keep(section.result)
        self.input_shape, self.output_shape = section.first.shape, section.last.shape
        self.input_dtype, self.device = section.first.dtype, section.first.device
        self.dtype, self.output_dtype = at_least_single(self.input_dtype), section.last.dtype
        self.activation_bytes = recorder.slots.bytes
        self.is_half = not HALF.isdisjoint((self.input_dtype, self.output_dtype, *recorder.dtypes))
        self._products: Tape | Transformed = products
        self._part = part
        self._tape, self._is_whole = products, products.whole
        self.doubt: str | None = None  # what may be wrong with its gradients and cannot be found out
        self.verified = False  # in the run that made this, which then took longer
        self.paid_by: tuple[object, int] | None = None  # the penalty that linearized, and its factor
        self._transforms: tuple[Transform, ...] = ()
        self._reads = _weights(layers) if self._is_whole else recorder.reads
        self._places = section.places
        self.is_of_output = section.to is None  # J.output is what J is the Jacobian of
        self.is_coupled = coupled  # samples may depend on each other
        self._sharding = sharding
        self._alive = output  # its graph holds what products read

    def detach_output(self) -> None:
        self.output = self.output.detach()
        self.keep(tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, self._result))

    def keep(self, result: Any) -> None:
        self._result: Any = None if isinstance(result, Tensor) else result

    @property
    def result(self) -> Any:
        """What the model returned; `output` is this, or a part of it."""
        return self.output if self._result is None else self._result

    @property
    def flat(self) -> Linearization:
        """J as a map of one tensor, which it is, unless the model has several inputs."""
        return self

    @property
    def tape(self) -> Tape | None:
        return self._products if isinstance(self._products, Tape) else None

    @property
    def layers(self) -> list[Layer]:
        if self._sharding is not None:
            raise UnsupportedModelError(
                "The model's weights are sharded (fully_shard) and are there only while a product is taken: "
                "its layers cannot be looked at one by one. Take the norm of J itself."
            )
        return self._layers

    def agreed(self, value: int) -> int:
        """The largest value among the processes that take products of a sharded model together."""
        return int(value) if self._sharding is None else self._sharding.agreed(value)

    @property
    def processes(self) -> list[Any]:
        """The groups that train this network together, by DDP or FSDP; none if it is one process."""
        if self._sharding is not None:
            return self._sharding.processes
        return [self.model.process_group] if isinstance(self.model, DistributedDataParallel) else []

    @property
    def engine(self) -> Literal["layerwise", "autograd"]:
        return "autograd" if self._is_whole else "layerwise"

    def jvp(self, v: Tensor, pairing: Pairing | None = None) -> Tensor:
        """J v for v shaped like x: the paper's forward mode."""
        check_vector("v", v, self.input_shape, "the input")
        self.check_unchanged()
        result = self._take("push", v.to(self.input_dtype), pairing)
        assert result is not None
        return result

    def vjp(self, u: Tensor, pairing: Pairing | None = None) -> Tensor:
        """Jᵀ u for u shaped like the output: the paper's backward mode."""
        check_vector("u", u, self.output_shape, "the output")
        self.check_unchanged()
        result = self._take("pull", u.to(self.output_dtype), pairing)
        return u.new_zeros(self.input_shape, dtype=self.dtype) if result is None else result

    def _take(self, direction: Literal["push", "pull"], w: Tensor, pairing: Pairing | None) -> Tensor | None:
        with without_autocast(self.device):  # whoever asks: each recorded call has its own
            if tracing() or not torch.is_inference_mode_enabled():
                result = self._product(direction, w, pairing)
            else:  # where autograd does not work, nor with tensors made there
                with torch.inference_mode(False), torch.no_grad():
                    result = self._product(direction, w.clone(), pairing)
        return None if result is None else result.to(at_least_single(result.dtype))

    def _product(
        self, direction: Literal["push", "pull"], w: Tensor, pairing: Pairing | None
    ) -> Tensor | None:
        products = self._products
        if self._sharding is not None and pairing is not None:
            pairing.pass_through(self._alive)
        if isinstance(products, Tape) and products.is_constant:
            return w.new_zeros(self.output_shape) if direction == "push" else None
        if isinstance(products, Tape) and pairing is None:
            return product(products, direction, w)
        return products.jvp(w, pairing) if direction == "push" else products.vjp(w, pairing)

    def subset(self, positions: Tensor) -> Linearization:
        """J at some samples of the batch: the model runs once more, on these alone.

        Batch norm takes the statistics of the whole batch; dropout draws new masks.
        """
        self.check_unchanged()
        positions = positions.to(self.device)
        J = self._part(positions)
        for transform in self._transforms:
            J = transform(J, positions)
        return J

    def between(self, at: str | None, to: str | None) -> Linearization:
        """The Jacobian of the output of the submodule `to` with respect to that of `at`, from the same run.

        Names are those that linearize was given as `through`; None is where J itself begins or ends. What
        passes around `at` does not count.

        >>> from jacnorm import linearize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> J = linearize(model, torch.randn(2, 4), through=["0"])
        >>> first, second = J.between(None, "0"), J.between("0", None)
        >>> torch.allclose(second.dense() @ first.dense(), J.dense(), atol=1e-6)
        True
        """
        tape, other = self._whole_tape(), copy.copy(self)
        start, end = (None if name is None else self._place(name) for name in (at, to))
        source = tape.source if start is None else start.slot
        target = tape.target if end is None else end.slot
        with torch.no_grad():
            zeros = torch.zeros(self.input_shape, dtype=self.input_dtype, device=self.device)
            found = None if source is None or target is None else tape.between(source, target, zeros)
        if found is None:
            last = "The output" if to is None else f"The output of {to!r}"
            first = "the input" if at is None else f"the output of {at!r}"
            raise InputError(f"{last} does not depend on {first}: is it computed before it, or on a branch?")
        other._products = other._tape = found
        if start is not None:
            other.input_shape, other.input_dtype = start.shape, start.dtype
            other.dtype = at_least_single(start.dtype)
        if end is not None:
            other.output_shape, other.output_dtype, other.is_of_output = end.shape, end.dtype, False
        other._transforms = (*self._transforms, lambda J, _: J.between(at, to))
        return other

    def _whole_tape(self) -> Tape:
        if self.tape is None:
            raise InputError("This is a transform of J: take J.between() first, and transform what it gives.")
        if self._is_whole:
            raise UnsupportedModelError(
                f"J cannot be taken apart, since the whole model is one step: {self.reason}."
            )
        return self.tape

    def _place(self, name: str) -> Place:
        if name not in self._places:
            known = ", ".join(map(repr, self._places)) or "none"
            raise InputError(
                f"J knows no place {name!r} (it has {known}): linearize(model, x, through=[{name!r}])."
            )
        return self._places[name]

    def check_unchanged(self) -> None:
        if self._reads.spoilt:
            raise InputError(
                "The model's weights have changed since linearize(), or what it computed was written into "
                "(J.output, say); its masks belong to the old ones. Linearize again after optimizer.step()."
            )

    def dense(self) -> Tensor:
        """All of J, shape (B, n_out, n_in): one product for each output, or input if they are fewer."""
        check_uncoupled(self)
        return rows(self) if self.is_one_way or is_wide(self) else rows(Transposed(self)).mT

    @property
    def is_piecewise_linear(self) -> bool:
        """Then products can be differentiated as often as one likes."""
        return self._tape.is_piecewise_linear

    @property
    def is_one_way(self) -> bool:
        """There is Jᵀu alone: a layer's backward pass cannot be differentiated."""
        return any(step.by_autograd is not None and step.by_autograd.refusal for step in self._tape.steps)

    def affine(self, scale: float, shift: float) -> Linearization:
        """scale·J + shift·I, for a model whose output has the shape of its input.

        2J − I is `J.affine(2, -1)`: a denoiser that has ‖2J − I‖₂ ≤ 1 everywhere is firmly nonexpansive,
        and plug-and-play iterations with it converge (Pesquet, Repetti, Terris & Wiaux, 2021). I − J is
        `J.affine(-1, 1)`. Norms and penalties take it as they take J.

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.ReLU(), torch.tensor([[1.0, -1.0]]))
        >>> J.affine(2, -1).dense()
        tensor([[[ 1.,  0.],
                 [ 0., -1.]]])
        """
        return self._with(Affine(self.flat, scale, shift), lambda J, _: J.affine(scale, shift))

    def weighted(self, D: Tensor | tuple[Map, Map]) -> Linearization:
        """J D: the Jacobian with respect to an input that D turns into x.

        D is a tensor of factors that broadcasts to the input, such as the standard deviation of each pixel
        (then changes count by how likely they are), or two functions, v ↦ D v and u ↦ Dᵀ u.

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2))
        >>> torch.equal(J.weighted(torch.tensor([3.0, 0.0])).dense(), J.dense() * torch.tensor([3.0, 0.0]))
        True
        """

        axes = len(self.input_shape)
        return self._with(Weighted(self.flat, D), lambda J, at: J.weighted(_of_part(D, at, axes)))

    def project(self, C: Tensor | tuple[Map, Map]) -> Linearization:
        """C J: the Jacobian of C·model(x).

        C is a matrix (m, n_out), one for each sample (B, m, n_out), or two functions, w ↦ C w and u ↦ Cᵀ u,
        on tensors of the output's shape. (`fraction=` of a penalty takes a part of the batch, on which
        functions must work, too.)

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> J.project(torch.tensor([[1.0, -1.0, 0.0]])).output_shape
        torch.Size([1, 1])
        """
        return self._with(Projected(self.flat, C), lambda J, at: J.project(_of_part(C, at, 3)))

    def margins(self, labels: Tensor) -> Linearization:
        """The Jacobian of f_y − f_j for each class j other than the label y, in the order of j: (B, n − 1).

        σ of it is by how much a change of the input can move the differences that decide.
        """
        labels = check_labels(labels, self.output_shape)
        products = Projected(self.flat, differences(labels.to(self.device), self.output_shape))
        return self._with(products, lambda J, at: J.margins(labels[at.to(labels.device)]))

    def minus(self, A: Constant) -> Linearization:
        """J − A: how far J is from what it should be.

        A is a matrix (n_out, n_in), one for each sample (B, n_out, n_in), two functions, v ↦ A v and
        u ↦ Aᵀ u, or another network's linearization at the same x (a teacher's, say). No gradient flows to
        what A is made of.
        """
        return self._with(Minus(self.flat, A), lambda J, at: J.minus(_of_part(A, at, 3)))

    def antisymmetric(self) -> Linearization:
        """J − Jᵀ, which is zero where the network is the gradient of a potential."""
        return self._with(Antisymmetric(self.flat), lambda J, _: J.antisymmetric())

    def _with(self, products: Transformed, transform: Transform) -> Linearization:
        other = copy.copy(self)
        other._products, other._transforms = products, (*self._transforms, transform)
        if products.output_shape != self.output_shape:
            other.output_shape, other.output_dtype = products.output_shape, self.dtype
            other.is_of_output = False
        return other

    def __repr__(self) -> str:
        shapes = f"{tuple(self.input_shape)} -> {tuple(self.output_shape)}"
        shapes += "" if self.chosen is None else f", output={self.chosen!r}"
        why = "" if self.reason is None else f", reason={self.reason!r}"
        return f"Linearization({shapes}, engine={self.engine!r}{why})"


def _weights(layers: list[Layer]) -> Reads:
    """All that is looked after where autograd serves, which looks after the rest itself."""
    reads = Reads()
    for layer in layers:
        reads.add(layer.weight)
    return reads


def _of_part(A: Any, positions: Tensor, axes: int) -> Any:
    """What of an operator belongs to some samples: their rows, where it has one for each."""
    if isinstance(A, Linearization):
        return A.subset(positions)
    if isinstance(A, Tensor) and A.dim() == axes and len(A) > 1:
        return A.to(positions.device)[positions]
    return A
