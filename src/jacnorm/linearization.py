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
Transform = Callable[["Linearization", Tensor], "Linearization"]  # takes J at some positions of the batch


class Linearization:
    """The Jacobian J of `model` at each sample of `x`, as an operator: `jvp` computes J v, `vjp` Jᵀ u.

    Products are per sample and differentiable with respect to the model's parameters. They are computed in
    the precision of the model and returned in `dtype`, which is float32 or better.

    output
        The tensor that J is the Jacobian of: model(x), or the part of it that was chosen. Its first axis is
        the batch.
    result
        All that the model returned. It differs from `output` if the model returns more than one tensor.
    chosen
        The name of `output` in `result`, if it was chosen by default.
    input_shape, output_shape
        The shapes that `jvp` and `vjp` take, (B, *input) and (B, *output).
    engine
        "layerwise" if the calls of the model were recorded, "autograd" if the whole model is one step.
    reason
        The calls without a rule, and why they have no rule; None if every call has a rule.
    layers
        The linear and convolution layers that were called, as operators.
    tape
        The recorded network, or None if this is a transform of a Jacobian.

    J belongs to the weights at which it was taken: linearize again after optimizer.step(). Products of an old
    J raise `InputError`. The exception is a step of PyTorch's fused optimizers, which cannot be detected.
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
        self.is_half |= recorder.precision == torch.float16  # whose small numbers underflow
        self._products: Tape | Transformed = products
        self._part = part
        self._tape, self._is_whole = products, products.whole
        self.doubt: str | None = None  # an error of the gradients that is possible and cannot be detected
        self.verified = False  # whether the run that made J also checked the model, and so took longer
        self.paid_by: tuple[object, int] | None = None  # the penalty that linearized, and its factor
        self._transforms: tuple[Transform, ...] = ()
        self._reads = _weights(layers) if self._is_whole else recorder.reads
        self._places = section.places
        self.is_of_output = section.to is None  # whether J is the Jacobian of J.output
        self.is_coupled = coupled  # samples may depend on each other
        self._sharding = sharding
        self._alive = output  # its graph holds the activations that products read

    def detach_output(self) -> None:
        self.output = self.output.detach()
        self.keep(tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, self._result))

    def keep(self, result: Any) -> None:
        self._result: Any = None if isinstance(result, Tensor) else result

    @property
    def result(self) -> Any:
        """All that the model returned; `output` is this, or a part of it."""
        return self.output if self._result is None else self._result

    @property
    def flat(self) -> Linearization:
        """J as a map of one tensor. It differs from J only if the model has several inputs."""
        return self

    @property
    def tape(self) -> Tape | None:
        return self._products if isinstance(self._products, Tape) else None

    @property
    def layers(self) -> list[Layer]:
        if self._sharding is not None:
            raise UnsupportedModelError(
                "The model's weights are sharded (fully_shard) and are there only while a product is taken, "
                "so its layers cannot be looked at one by one. Take the norm of J itself."
            )
        return self._layers

    def agreed(self, value: int) -> int:
        """The largest `value` among the processes that share a sharded model; else `value` itself."""
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
        """J v per sample: the paper's forward mode.

        `v` has shape `input_shape`; the result has shape `output_shape`. `pairing` is for penalties.
        Raises `InputError` if v does not fit, or if the weights have changed since `linearize`.
        """
        check_vector("v", v, self.input_shape, "the input")
        self.check_unchanged()
        result = self._take("push", v.to(self.input_dtype), pairing)
        assert result is not None
        return result

    def vjp(self, u: Tensor, pairing: Pairing | None = None) -> Tensor:
        """Jᵀ u per sample: the paper's backward mode.

        `u` has shape `output_shape`; the result has shape `input_shape`. `pairing` is for penalties.
        Raises `InputError` if u does not fit, or if the weights have changed since `linearize`.
        """
        check_vector("u", u, self.output_shape, "the output")
        self.check_unchanged()
        result = self._take("pull", u.to(self.output_dtype), pairing)
        return u.new_zeros(self.input_shape, dtype=self.dtype) if result is None else result

    def _take(self, direction: Literal["push", "pull"], w: Tensor, pairing: Pairing | None) -> Tensor | None:
        with without_autocast(self.device):  # each recorded call applies the autocast it was recorded under
            if tracing() or not torch.is_inference_mode_enabled():
                result = self._product(direction, w, pairing)
            else:  # autograd works neither in inference mode nor on tensors made in it
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
        """J at some samples of the batch, `positions` (k,), as a `Linearization` with a batch of k.

        The model runs once more, on these samples only. Batch norm uses the statistics of the whole batch;
        dropout draws new masks.
        """
        self.check_unchanged()
        positions = positions.to(self.device)
        J = self._part(positions)
        for transform in self._transforms:
            J = transform(J, positions)
        return J

    def between(self, at: str | None, to: str | None) -> Linearization:
        """The Jacobian of the output of submodule `to` with respect to the output of submodule `at`.

        Both come from the run that made J, so the model does not run again. Names must have been given to
        `linearize` as `through`. None stands for the place where J itself begins or ends. Paths that go
        around `at` do not count. Returns a `Linearization`. Raises `InputError` if a name is unknown or if
        `to` does not depend on `at`, `UnsupportedModelError` if the whole model is one step.

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
            raise InputError(f"{last} does not depend on {first}: is it computed earlier, or on a branch?")
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
            raise InputError("This is a transform of J: take J.between() first, and transform the result.")
        if self._is_whole:
            raise UnsupportedModelError(
                f"J cannot be taken apart, because the whole model is one step: {self.reason}."
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
                "The model's weights have changed since linearize(), or a tensor that it computed (such as "
                "J.output) was changed in place. J belongs to the old values. Linearize again after "
                "optimizer.step()."
            )

    def dense(self) -> Tensor:
        """All of J, shape (B, n_out, n_in). It costs one product per output, or per input if those are fewer.

        Raises `CoupledSamplesError` if J was linearized with coupled=True.
        """
        check_uncoupled(self)
        return rows(self) if self.is_one_way or is_wide(self) else rows(Transposed(self)).mT

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether every call is piecewise linear. Products can then be differentiated any number of times."""
        return self._tape.is_piecewise_linear

    @property
    def is_one_way(self) -> bool:
        """Whether J has Jᵀu but no J v: the backward pass of some layer cannot be differentiated."""
        return any(step.by_autograd is not None and step.by_autograd.refusal for step in self._tape.steps)

    def affine(self, scale: float, shift: float) -> Linearization:
        """scale·J + shift·I, as a `Linearization` of the same shapes.

        The output of the model must have the shape of its input, else `InputError` is raised. Norms and
        penalties take the result as they take J. I − J is `J.affine(-1, 1)`, and 2J − I is
        `J.affine(2, -1)`. A denoiser with ‖2J − I‖₂ ≤ 1 everywhere is firmly nonexpansive, and
        plug-and-play iterations with it converge (Pesquet, Repetti, Terris & Wiaux, 2021).

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.ReLU(), torch.tensor([[1.0, -1.0]]))
        >>> J.affine(2, -1).dense()
        tensor([[[ 1.,  0.],
                 [ 0., -1.]]])
        """
        return self._with(Affine(self.flat, scale, shift), lambda J, _: J.affine(scale, shift))

    def weighted(self, D: Tensor | tuple[Map, Map]) -> Linearization:
        """J D, as a `Linearization` of the same shapes: the Jacobian in z where x = D z.

        D is a tensor of factors that broadcasts to `input_shape`, or a pair of functions, v ↦ D v and
        u ↦ Dᵀ u. With the standard deviation of each pixel as D, changes count by how likely they are.
        Raises `InputError` if D does not fit, or if the second function is not the transpose of the first.

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2))
        >>> torch.equal(J.weighted(torch.tensor([3.0, 0.0])).dense(), J.dense() * torch.tensor([3.0, 0.0]))
        True
        """

        axes = len(self.input_shape)
        return self._with(Weighted(self.flat, D), lambda J, at: J.weighted(_of_part(D, at, axes)))

    def project(self, C: Tensor | tuple[Map, Map]) -> Linearization:
        """C J, the Jacobian of C·model(x), as a `Linearization` with output shape (B, m).

        C is a matrix (m, n_out), a matrix per sample (B, m, n_out), or a pair of functions, w ↦ C w and
        u ↦ Cᵀ u. The first function takes tensors of shape `output_shape`. If a penalty with `fraction=`
        is used, the functions must also work on a part of the batch. Raises `InputError` if C does not fit.

        >>> from jacnorm import linearize
        >>> J = linearize(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> J.project(torch.tensor([[1.0, -1.0, 0.0]])).output_shape
        torch.Size([1, 1])
        """
        return self._with(Projected(self.flat, C), lambda J, at: J.project(_of_part(C, at, 3)))

    def margins(self, labels: Tensor) -> Linearization:
        """The Jacobian of the score differences f_y − f_j for each class j other than the label y.

        `labels` holds the classes, (B,) whole numbers; the model must return scores (B, n). The result is a
        `Linearization` with output shape (B, n − 1), in the order of j. Its σ bounds how fast a change of
        the input can change the differences that decide the class. Raises `InputError` if labels do not fit.
        """
        labels = check_labels(labels, self.output_shape)
        products = Projected(self.flat, differences(labels.to(self.device), self.output_shape))
        return self._with(products, lambda J, at: J.margins(labels[at.to(labels.device)]))

    def minus(self, A: Constant) -> Linearization:
        """J − A, as a `Linearization` of the same shapes: the difference between J and a target A.

        A is a matrix (n_out, n_in), a matrix per sample (B, n_out, n_in), a pair of functions, v ↦ A v and
        u ↦ Aᵀ u, or the linearization of another network at the same x, such as a teacher. A is a constant:
        no gradient flows into it. Raises `InputError` if A does not fit.
        """
        return self._with(Minus(self.flat, A), lambda J, at: J.minus(_of_part(A, at, 3)))

    def antisymmetric(self) -> Linearization:
        """J − Jᵀ, as a `Linearization` of the same shapes. It is zero if the network is a gradient field.

        The output of the model must have the shape of its input, else `InputError` is raised.
        """
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
    """The weights of the layers. Autograd itself watches all other tensors of a model that is one step."""
    reads = Reads()
    for layer in layers:
        reads.add(layer.weight)
    return reads


def _of_part(A: Any, positions: Tensor, axes: int) -> Any:
    """The part of an operator for some samples: their rows, if it has a row per sample; else all of it."""
    if isinstance(A, Linearization):
        return A.subset(positions)
    if isinstance(A, Tensor) and A.dim() == axes and len(A) > 1:
        return A.to(positions.device)[positions]
    return A
