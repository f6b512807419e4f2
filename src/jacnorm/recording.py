"""`linearize`: runs a model once and records its calls. Where they are hidden, the model is one step."""

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
from .joint import JointLinearization, joined
from .linearization import Linearization
from .pytorch.forwarding import replaced_forward
from .pytorch.half import Choice, pays_for
from .pytorch.modules import modules_of, random_state, unchanged
from .pytorch.outputs import Name, Output, chosen
from .pytorch.precision import NOTHING, without_autocast
from .pytorch.sharded import Sharding, sharding_of
from .pytorch.switches import unfused_attention
from .pytorch.tracing import CAN_TRACE, refuse, tracing, while_tracing
from .request import BatchNorm, Engine, Request
from .trust.checks import check_input, check_output, check_precision, run
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
    """Run `model` once on the batch `x` and return its Jacobian at each sample.

    Further arguments are the model's own, as in linearize(model, x, mask=mask); J takes them for constants.
    linearize(model, (x, t)) calls model(x, t) and differentiates in both: J.jvp takes a tuple of tangents,
    None for zero, and J.vjp gives a tuple. t may be one number per sample, of shape (B,).

    engine
        "auto" records the model call by call: those with a rule by it, others by autograd, one by one. Where
        a model hides its calls (torch.jit, own autograd functions, saved-tensor hooks), the whole model is
        one step by autograd. "layerwise" refuses such a model; "autograd" makes any model one step.
    batch_norm
        In training mode the batch's statistics are constants to J, as the paper has it. "flowing" lets the
        penalty's gradient pass through the variance all the same, so that it does not depend on the scale
        of the weights before the norm. "fixed" does not: the paper's words taken literally, which can
        ruin the network.
    at, to
        Names of submodules, as in `model.named_modules()`: the Jacobian of the output of `to` with respect
        to the output of `at`, instead of the model's output and x. What passes around `at` does not count.
        With an embedding as `at`, x may be tokens.
    output
        For a model that returns more than a tensor (a dict, a tuple, an object of Hugging Face's): the name
        or position of the one that J is the Jacobian of, or a function that takes it from the rest. Logits
        are found without it, and so is the only tensor with a row for each sample. `J.output` is this
        tensor; `J.result` is all that the model returned, the loss it has computed among it.
    precision
        torch.bfloat16 (or float16): products of J with vectors take the model's linear layers, convolutions
        and matrix products in this precision, which can be several times as fast. model(x), the loss and its
        gradient stay as they are; products come back in float32, and so do the gradients of a penalty. A
        power step is off by more than that, but do not measure to 1e-3 with it. The first call tries, in a
        process of its own, whether this machine gains by it; if not, a warning says so and all stays float32.
    through
        Names of submodules at which J may be taken apart: `J.between("1", "3")` is then the Jacobian of the
        output of one with respect to that of another. All are of this one run.
    coupled
        True lets samples depend on each other, as minibatch statistics of a critic do. Jᵀu is then the
        gradient of Σ_i ⟨u_i, f_i⟩, with what goes from sample to sample. There is no Jacobian of a sample, so
        that of penalties on it only `GradientPenalty` takes it.

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


def request_for(
    model: Callable[..., Any],
    x: Tensor | tuple[Tensor, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    engine: Engine,
    batch_norm: BatchNorm,
    at: str | None,
    to: str | None,
    output: Output = None,
    precision: torch.dtype | None = None,
    through: Sequence[str] = (),
    coupled: bool = False,
    choice: Choice | None = None,
) -> Request:
    shapes = None
    if isinstance(x, tuple) and at is None:
        x, shapes = joined(x)
    elif isinstance(x, tuple) and x:  # J begins later, so that all of them are constants
        x, args = x[0], (*x[1:], *args)
    check_input(x, at, model)
    assert isinstance(x, Tensor)
    if engine not in ("auto", "layerwise", "autograd"):
        raise InputError(f"engine={engine!r}: choose 'auto', 'layerwise' or 'autograd'.")
    if batch_norm not in ("fixed", "flowing"):
        raise InputError(f"batch_norm={batch_norm!r}: choose 'fixed' or 'flowing'.")
    if isinstance(through, str):
        raise InputError(f"through={through!r}: give a list of names, through=[{through!r}].")
    if precision is not None:
        check_precision(precision, x)
        is_needed = x.dtype == torch.float32  # products of a model in half precision are taken in it anyway
        precision = precision if is_needed and pays_for(choice, precision, x.device) else None
    sharding = None if tracing() else sharding_of(model)
    if sharding is not None and engine == "autograd":
        raise UnsupportedModelError(f"{SHARDED} engine='autograd' does not record them.")
    between = at, to, precision, tuple(through), bool(coupled)
    return Request(model, x, args, kwargs, engine, batch_norm, *between, shapes, sharding, output)


SHARDED = "The model's weights are sharded (fully_shard), so that J needs its calls one by one:"
ELSEWHERE = "another process could not record it, and says why"
UNRECORDED, FAILED = 1, 2  # what a process tells the others of its run
FAILURE = "linearize failed in another process, and its error says why. So it ends in all of them."


def run_plainly(request: Request) -> tuple[Any, Tensor]:
    """model(x) without a record, on a copy of x, as with one: all of it, and the output that is chosen."""
    own = inputs(request.x.clone(), request.shapes)
    result = run(request.model, *own, *request.args, **request.kwargs)
    output, name = chosen(result, request.output, len(request.x))
    check_output(output, request.x, request.model)
    tell_of(name, request.model)
    return result, output


_told: set[tuple[str, Name]] = set()


def tell_of(name: Name | None, model: Any) -> None:
    """Once, of an output that nobody has named."""
    kind = getattr(model, "__qualname__", type(model).__qualname__)
    if name is None or tracing() or (kind, name) in _told:
        return
    _told.add((kind, name))
    warn(
        f"{kind} returns more than a tensor: J is the Jacobian of {name!r} in it. output={name!r} says so, "
        "and another name or position chooses another one."
    )


def linearized(request: Request) -> Linearization:
    if tracing():
        if not CAN_TRACE:
            refuse(f"Inside torch.compile, linearize needs torch 2.13 or later; this is {torch.__version__}.")
        with torch._dynamo.error_on_graph_break(True):  # a record cannot be taken in pieces
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
    """By the tape where it serves; by the whole model as one step where calls are hidden."""
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
            except NotRecorded as no:  # the model has changed, or hides something
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
    """Under torch.compile: as `_record`, if need be after an eager run on the batch that is traced for."""
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
    """The calls of an eager run, checked against autograd. The last values are arguments by name."""
    engine, batch_norm, names, output = options
    count = len(values) - len(names)
    kwargs = dict(zip(names, values[count:], strict=True))
    with unchanged(modules_of(model), x.device):
        how = engine, batch_norm, None, None
        J = linearized(Request(model, x.detach(), values[:count], kwargs, *how, output=output))
    assert J.tape is not None
    if J.reason is not None:
        raise UnsupportedModelError(
            "Inside torch.compile every call needs a rule, and not every one of this model has one: "
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
            is_new = tape.way not in known.history.plans  # another, with who knows what beside it
            if not checks and is_new and not request.x.is_meta:  # which has no values to compare
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
    """What fails in one of the processes that a model is sharded over fails in all."""
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
    """What of the model goes by autograd, and why."""
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
    "Jacobian is that of the calls themselves, without what the hook makes of gradients."
)


def _as_one_step(request: Request, known: Verdict, reason: str) -> Linearization:
    """The whole model as one step by autograd."""
    gate = Gate()
    section, recorder = request.section(), request.recorder(gate=gate)
    with unfused_attention:
        output = section.run(request.x, recorder, graph=True)
    if recorder.without_grad is not None and not is_linked(section.first, section.last):
        raise UnsupportedModelError(
            "There is no way from the input to the output, which would make the Jacobian zero: "
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
    """The tape of a model that is a single step; without any where autograd sees no way from x to y."""
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
                "x was written into since linearize(): a part of the batch would be another one."
            )
        smaller, device = request.part(positions, statistics), request.x.device
        if tracing() or not request.has_rows:
            return linearized(smaller)
        before = random_state(device)
        J = linearized(smaller)
        if torch.equal(before, random_state(device)):  # else there are other dropout masks
            _check_part(J.output.detach(), whole[positions])
        return J

    output = tape.kept.hang_on(output)
    return Linearization(tape, section, output, recorder, reason, part, request.coupled, request.sharding)


def _inside_ddp(request: Request) -> Linearization:
    """The module inside is what has a Jacobian; what the wrapper hangs on the output is for the loss alone.

    (With static_graph it starts to reduce the gradients as soon as anything is pulled back through it.)
    """
    wrapper: Any = request.model
    plain, found = wrapper.module.forward, list[Linearization]()

    def forward(*given: Any, **kwargs: Any) -> Tensor:
        count = len(request.inputs)
        x = given[0] if request.shapes is None else side_by_side(given[:count])
        # Names of submodules belong to the module; without them its forward is enough.
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
    """Samples by themselves must give what they gave in the batch."""
    tolerance = 10 * torch.finfo(output.dtype).eps ** 0.5
    if not torch.allclose(output, expected, tolerance, tolerance * float(expected.abs().max())):
        raise InputError(
            "A part of the batch does not give the output that it gave in the whole batch: an argument that "
            "has as many rows as the batch has samples seems not to have a row for each. Leave fraction= "
            "out, or bind it, as in functools.partial(model, mask=mask)."
        )


def _tape(recorder: Recorder) -> Tape | None:
    try:
        return recorder.tape()
    except NotRecorded:
        return None
