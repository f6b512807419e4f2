"""`linearize` runs a model once and records its calls. If calls are hidden, the whole model is one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .engines.ancestry import is_linked, leaves_of
from .engines.batchnorm import Gate
from .engines.by_autograd import ByAutograd
from .engines.checking import check_call
from .engines.recorder import Recorder
from .engines.rules import NotRecorded, OneWay
from .engines.section import Section, inputs, side_by_side
from .engines.tape import Plan, Step, Tape, Way, version
from .engines.traced import check_plan
from .errors import InputError, JacnormError, ModelError, UnsupportedModelError, warn
from .joint import JointLinearization
from .linearization import Linearization
from .pytorch.forwarding import replaced_forward
from .pytorch.modules import modules_of, random_state, unchanged
from .pytorch.outputs import Name, Output, chosen
from .pytorch.precision import NOTHING, without_autocast
from .pytorch.sharded import Sharding
from .pytorch.switches import unfused_attention
from .pytorch.tracing import CAN_TRACE, refuse, tracing, while_tracing
from .request import SHARDED, BatchNorm, Engine, Request, request_for
from .trust.checks import check_output, run
from .trust.verdicts import Verdict, known_plan, verdict
from .trust.verify import check_independent, doubts, one_way, refusal


def linearize(
    model: Callable[..., Any],
    x: Tensor | tuple[Tensor, ...],
    *args: Any,
    engine: Engine = "auto",
    batch_norm: BatchNorm = "flowing",
    at: str | None = None,
    to: str | None = None,
    output: Output = None,
    precision: torch.dtype | None = None,
    through: Sequence[str] = (),
    coupled: bool = False,
    **kwargs: Any,
) -> Linearization:
    """Run `model` once on the batch `x` and return its Jacobian at each sample, J_i = ∂model(x)_i/∂x_i.

    Returns a `Linearization`: `J.output` is model(x), `J.jvp(v)` is J v and `J.vjp(u)` is Jᵀ u.

    model
        A module, or any function of x. It runs in the mode that it is in (training or evaluation).
    x
        A batch of real numbers, (B, *input). A tuple stands for several inputs: linearize(model, (x, t))
        calls model(x, t) and differentiates with respect to both. `J.jvp` then takes a tuple of tangents
        (None for zero), and `J.vjp` returns a tuple. t may have shape (B,), one number per sample.
    *args, **kwargs
        Further arguments of the model, as in linearize(model, x, mask=mask). They are constants for J.
    engine
        "auto" records the model call by call. A call with a rule is computed by its rule, any other call by
        autograd. If a model hides its calls (torch.jit, some autograd functions, saved-tensor hooks),
        the whole model is one step by autograd. "layerwise" refuses such a model. "autograd" makes any
        model one step.
    batch_norm
        In training mode, J treats the statistics of the batch as constants, as in the paper. "flowing" still
        lets the gradient of a penalty pass through the variance, so that the penalty does not depend on the
        scale of the weights before the norm. "fixed" does not. It follows the paper literally, and can ruin
        the network.
    at, to
        Names of submodules, as in `model.named_modules()`. J is then the Jacobian of the output of `to` with
        respect to the output of `at`. By default it begins at x and ends at the output of the model. Paths
        that go around `at` do not count. If `at` is an embedding, x may be tokens.
    output
        For a model that returns more than one tensor (a dict, a tuple, a Hugging Face output): the name or
        position of the tensor that J is the Jacobian of, or a function that takes it from the result. It is
        not needed for logits, nor for the only tensor with a row per sample. `J.output` is this tensor;
        `J.result` is all that the model returned, including a loss that it computed.
    precision
        torch.bfloat16 (or float16): products of J with vectors are computed in this precision, which can be
        several times as fast. (Rare calls and very small layers stay in float32.) model(x), the loss and its
        gradient stay as they are. Products and gradients of a penalty come back in float32. The rounding is
        smaller than the error of a power step, so it does no harm in training; do not measure to 1e-3 with
        it. The first call tests in a separate process whether this machine gains by it. If not, a warning
        says so, and everything stays in float32.
    through
        Names of submodules at which J may be taken apart. `J.between("1", "3")` is then the Jacobian of the
        output of "3" with respect to the output of "1", from the same run.
    coupled
        True lets samples depend on each other, as the minibatch statistics of a critic do. Jᵀu is then the
        gradient of Σ_i ⟨u_i, f_i⟩, including the influence of each sample on the others. A sample then has
        no Jacobian of its own. Only `GradientPenalty` accepts such a J.

    Raises `InputError` if an argument does not fit, `ModelError` if the model fails on x, `NonFiniteError` if
    its output has NaN or inf, `CoupledSamplesError` if samples depend on each other, and
    `UnsupportedModelError` if the model cannot be linearized by the chosen engine.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> J = linearize(model, torch.randn(2, 4))
    >>> J
    Linearization((2, 4) -> (2, 3), engine='layerwise')
    >>> J.jvp(torch.ones(2, 4)).shape, J.vjp(torch.ones(2, 3)).shape, J.dense().shape
    (torch.Size([2, 3]), torch.Size([2, 4]), torch.Size([2, 3, 4]))
    >>> linearize(model, torch.randn(2, 4), at="0", to="2")
    Linearization((2, 8) -> (2, 3), engine='layerwise')
    """
    between = at, to, output
    request = request_for(model, x, args, kwargs, engine, batch_norm, *between, precision, through, coupled)
    return with_its_inputs(linearized(request), request)


def with_its_inputs(J: Linearization, request: Request) -> Linearization:
    return J if request.shapes is None else JointLinearization(J, request.shapes)


ELSEWHERE = "another process could not record it, and says why"
UNRECORDED, FAILED = 1, 2  # what a process tells the others of its run
FAILURE = "linearize failed in another process, and its error says why. So it ends in all of them."


def run_plainly(request: Request) -> tuple[Any, Tensor]:
    """model(x) without recording: the result, and the chosen output. x is copied, as in recording."""
    own = inputs(request.x.clone(), request.shapes)
    result = run(request.model, *own, *request.args, **request.kwargs)
    output, name = chosen(result, request.output, len(request.x))
    check_output(output, request.x, request.model)
    tell_of(name, request.model)
    return result, output


_told: set[tuple[str, Name]] = set()


def tell_of(name: Name | None, model: Any) -> None:
    """Warn once per model that the output was chosen by default."""
    kind = getattr(model, "__qualname__", type(model).__qualname__)
    if name is None or tracing() or (kind, name) in _told:
        return
    _told.add((kind, name))
    warn(
        f"{kind} returns more than one tensor: J is the Jacobian of {name!r}. Pass output={name!r} to "
        "confirm this, or the name or position of another tensor."
    )


def linearized(request: Request) -> Linearization:
    if tracing():
        if not CAN_TRACE:
            refuse(f"Inside torch.compile, linearize needs torch 2.13 or later; this is {torch.__version__}.")
        with torch._dynamo.error_on_graph_break(True):  # all calls must be recorded in one graph
            return _trace(request)
    if isinstance(request.model, DistributedDataParallel):
        return _inside_ddp(request)
    known = verdict(request.model, request.kind, request.at, request.to, str(request.coupled))
    is_due = known.visit()
    wants_gradients = torch.is_grad_enabled()
    if wants_gradients and not torch.is_inference_mode_enabled() and not request.x.is_inference():
        J = _recorded(request, known)
    else:
        with torch.inference_mode(False), torch.enable_grad():
            if request.x.is_inference():
                request = replace(request, x=request.x.clone())
            J = _recorded(request, known)
    J.verified |= is_due and not request.x.is_meta
    tell_of(J.chosen, request.model)
    if not wants_gradients:
        J.detach_output()
    return J


def _recorded(request: Request, known: Verdict) -> Linearization:
    """J from the recorded calls, or with the whole model as one step if calls are hidden."""
    if request.engine == "autograd":
        return _as_one_step(request, known, "asked for")
    if known.reason is None:
        trusted = known.layerwise and (known.independent or len(request.x) == 1)
        trusted = not request.agreed(not trusted)
        attempts = (False,) if request.x.is_meta else (False, True) if trusted else (True,)
        for checks in attempts:
            try:
                J = _record(request, known, checks=checks)
                J.verified = checks
                return J
            except OneWay as no:
                reason = f"the backward pass of {no} cannot be differentiated"
                known.flipped, known.refusal = True, one_way(str(no))
            except NotRecorded as no:  # the model has changed, or hides calls
                reason = str(no)
        known.learn(reason)
    assert known.reason is not None
    if request.sharding is not None:
        raise UnsupportedModelError(f"{SHARDED} {known.reason}.")
    if request.engine == "layerwise":
        raise UnsupportedModelError(
            f"The layerwise engine cannot take this model: {known.reason}. Use engine='auto' or "
            f"engine='autograd'."
        )
    return _as_one_step(request, known, known.reason)


def _trace(request: Request) -> Linearization:
    """`_record` under torch.compile. If the model has no plan yet, it first runs eagerly on the batch."""
    if request.at is not None or request.to is not None or request.through or request.coupled:
        refuse(
            "at=, to=, through= and coupled= do not work inside torch.compile: linearize the function "
            "between the two layers."
        )
    if callable(request.output):
        refuse("A function as output= does not work inside torch.compile: give a name or a position.")
    names, values = tuple(request.kwargs), tuple(request.kwargs.values())
    plan = known_plan(request.model, request.kind)
    if plan is None:
        options = (request.engine, request.batch_norm, names, request.output)
        plan = verified_plan(request.model, options, request.x, *request.args, *values)
    section, recorder = request.section(), request.traced_recorder()
    with torch.enable_grad():
        output = section.run(request.x, recorder, graph=False)
    tape = _tape(recorder)
    check_plan(plan, () if tape is None else tape.plan)
    assert tape is not None
    J = _made(tape, section, output, recorder, None, request)
    if not torch.is_grad_enabled():
        J.detach_output()
    return J


@while_tracing
def verified_plan(model: Any, options: tuple[Any, ...], x: Tensor, *values: Any) -> Plan:
    """The calls of an eager run, checked against autograd. The last values are the keyword arguments."""
    engine, batch_norm, names, output = options
    count = len(values) - len(names)
    kwargs = dict(zip(names, values[count:], strict=True))
    with unchanged(modules_of(model), x.device):
        how = engine, batch_norm, None, None
        J = linearized(Request(model, x.detach(), values[:count], kwargs, *how, output=output))
    assert J.tape is not None
    if J.reason is not None:
        raise UnsupportedModelError(
            "Inside torch.compile every call needs a rule, and some calls of this model have no rule: "
            f"{J.reason}. Leave linearize and the penalty out of the compiled function."
        )
    return J.tape.plan


def _record(request: Request, known: Verdict, *, checks: bool) -> Linearization:
    """Record the calls; with `checks`, compare each with autograd."""
    section, recorder = request.section(), request.recorder(check=check_call if checks else None)
    try:
        with NOTHING if request.sharding is None else _by_all(request.sharding):
            output = section.run(request.x, recorder, graph=checks)
            tape = recorder.tape()
            is_new = tape.way not in known.history.plans  # a new path through the model
            if not checks and is_new and not request.x.is_meta:  # meta tensors have no values to compare
                raise NotRecorded("not checked yet")
    except NotRecorded:
        recorder.undo.roll_back()
        raise
    if checks:
        with without_autocast(section.first.device):
            known.independent = request.coupled or check_independent(
                tape, section.last.detach(), thoroughly=not known.independent, agreed=request.agreed
            )
        known.learn(None, tape)
        known.settle()
        if recorder.hooked and not known.warned:
            known.warned = True
            warn(HOOKED)
    return _made(tape, section, output, recorder, _without_rule(recorder, tape), request)


@contextmanager
def _by_all(sharding: Sharding) -> Iterator[None]:
    """A failure in one process of a sharded model becomes a failure in all of them."""
    try:
        yield
    except ModelError:  # in the middle of the run, where the others wait for weights and not for this
        raise
    except NotRecorded:
        if sharding.agreed(UNRECORDED) == FAILED:
            raise UnsupportedModelError(FAILURE) from None
        raise
    except JacnormError:
        sharding.agreed(FAILED)
        raise
    worst = sharding.agreed(0)
    if worst == FAILED:
        raise UnsupportedModelError(FAILURE)
    if worst == UNRECORDED:
        raise NotRecorded(ELSEWHERE)


def _without_rule(recorder: Recorder, tape: Tape) -> str | None:
    """The calls that are computed by autograd, and why."""
    if not recorder.without_rule:
        return None
    names = {name.removesuffix(" by autograd") for name in _names(tape.way)}
    found = [f"{name} ({why})" for name, why in recorder.without_rule.items() if name in names]
    return f"by autograd: {', '.join(found)}" if found else None


def _names(way: Way) -> Iterator[str]:
    for name, _, *inside in way:
        yield name
        for other in inside:
            yield from _names(other)


HOOKED = (
    "The model registers a hook on a tensor (register_hook). The loss's gradient passes through "
    "it as always; the "
    "Jacobian is that of the calls themselves and ignores the hook."
)


def _as_one_step(request: Request, known: Verdict, reason: str) -> Linearization:
    """The whole model as one step by autograd."""
    gate = Gate()
    section, recorder = request.section(), request.recorder(gate=gate)
    with unfused_attention:
        output = section.run(request.x, recorder, graph=True)
    if recorder.without_grad is not None and not is_linked(section.first, section.last):
        raise UnsupportedModelError(
            "Autograd sees no path from the input to the output, so the Jacobian would be zero: "
            f"{reason}. Freeze layers with requires_grad_(False) instead."
        )
    if recorder.hooked and not known.warned:
        known.warned = True
        warn(HOOKED)
    first, last = section.first, section.last
    tape = one_step(first, last, gate)
    with without_autocast(first.device):
        if not known.independent:
            known.independent = request.coupled or check_independent(tape, last.detach())
        if not known.flipped:
            known.flipped, known.refusal = (
                True,
                refusal(tape, last, first, recorder.eps) if tape.steps else None,
            )
            known.doubt = doubts(first, last) if tape.steps else None
            if known.doubt is not None:
                warn(known.doubt)
    known.settle()
    for step in tape.steps:
        step.by_autograd.refusal = known.refusal
    J = _made(tape, section, output, recorder, reason, request)
    J.doubt = known.doubt
    return J


def one_step(x: Tensor, y: Tensor, gate: Gate) -> Tape:
    """The tape of a model that is a single step. It has no step if autograd sees no path from x to y."""
    if not is_linked(x, y):
        return Tape([], 0, 1, whole=True)
    leaves = [t for t in leaves_of(y) if t is not x]
    graph = ByAutograd([y], [x, *leaves], [True, *[False] * len(leaves)], gate)
    step = Step(
        "model by autograd",
        (0,),
        1,
        graph.push,
        graph.pull,
        bool(leaves),
        by_autograd=graph,
        edges=(None, *leaves),
    )
    return Tape([step], 0, 1, whole=True)


def _made(
    tape: Tape,
    section: Section,
    output: Tensor,
    recorder: Recorder,
    reason: str | None,
    request: Request,
) -> Linearization:
    statistics, whole, written = recorder.statistics, output.detach(), version(request.x)

    def part(positions: Tensor) -> Linearization:
        if version(request.x) != written:
            raise InputError(
                "x was changed in place since linearize(), so the model cannot run again on a part of it."
            )
        smaller, device = request.part(positions, statistics), request.x.device
        if tracing() or not request.has_rows:
            return linearized(smaller)
        before = random_state(device)
        J = linearized(smaller)
        if torch.equal(before, random_state(device)):  # else dropout drew other masks
            _check_part(J.output.detach(), whole[positions])
        return J

    output = tape.kept.hang_on(output)
    return Linearization(tape, section, output, recorder, reason, part, request.coupled, request.sharding)


def _inside_ddp(request: Request) -> Linearization:
    """J of the module inside the wrapper. The wrapper's own nodes on the output are for the loss only.

    With static_graph, the wrapper starts to reduce gradients as soon as anything is pulled back through them.
    """
    wrapper: Any = request.model
    plain, found = wrapper.module.forward, list[Linearization]()

    def forward(*given: Any, **kwargs: Any) -> Tensor:
        count = len(request.inputs)
        x = given[0] if request.shapes is None else side_by_side(given[:count])
        # The names of submodules belong to the module. Without names, its forward is enough.
        with replaced_forward(wrapper.module, plain):
            named = request.at or request.to or request.through
            model = wrapper.module if named else plain
            inner = replace(request, model=model, x=x, args=given[count:], kwargs=kwargs)
            found.append(linearized(inner))
        return found[0].result

    with replaced_forward(wrapper.module, forward):
        result = wrapper(*request.inputs, *request.args, **request.kwargs)
    J = found[0]
    J.model, (J.output, _) = wrapper, chosen(result, request.output, len(request.x))
    J.keep(result)
    return J


def _check_part(output: Tensor, expected: Tensor) -> None:
    """Check that a part of the batch gives the same output as it gave in the whole batch."""
    tolerance = 10 * torch.finfo(output.dtype).eps ** 0.5
    if not torch.allclose(output, expected, tolerance, tolerance * float(expected.abs().max())):
        raise InputError(
            "A part of the batch does not give the output that it gave in the whole batch. An argument has "
            "as many rows as the batch, but they seem not to belong to the samples. Leave fraction= "
            "out, or bind the argument, as in functools.partial(model, mask=mask)."
        )


def _tape(recorder: Recorder) -> Tape | None:
    try:
        return recorder.tape()
    except NotRecorded:
        return None
