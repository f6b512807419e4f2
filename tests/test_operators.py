"""Every differentiable operator and module of PyTorch's own databases, against autograd."""

import pytest
import torch
from agreement import ways
from operators import SKIPPED, Case, Model, cases, database, served
from oracles import dense, pull, push, slope
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten

from jacnorm import UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore")  # the operators' own
TOLERANCE = 1e-7
NO_SECOND_DERIVATIVE = ("is not implemented", "with out=")
STEP = 1e-5  # of finite differences, where autograd has no second derivative


@pytest.mark.parametrize("name", [name for name in database() if name not in SKIPPED])
def test_an_operator(name):
    found = cases(name)
    assert found, "no sample fits; say so in SKIPPED"
    assert {str(case): wrong for case in found if (wrong := list(differences(case)))} == {}


def test_what_is_skipped_is_there():
    assert set(SKIPPED) <= set(database())


def differences(case):
    """What is not as it should be: J, its products, and the gradient of uᵀJ v in all that learns."""
    y = case.run()
    generator = torch.Generator(torch.get_default_device()).manual_seed(4)
    u = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    v = torch.randn(case.model.x.shape, dtype=torch.float64, generator=generator)
    D = dense(case.run, case.model.x).detach()
    wanted = gradients_by_autograd(case, u, v)

    J = case.linearized()
    how, why = served(J)
    if "report" in why and D.abs().max() > 1e-6:  # not where J is made of rounding errors
        yield why
    with torch.no_grad():
        if not close(J.vjp(u).reshape(1, -1), pull(D, u)):
            yield "vjp"
        if how == "refused":
            if not any(reason in why for reason in NO_SECOND_DERIVATIVE):
                yield why
            return
        if not close(J.jvp(v).reshape(1, -1), push(D, v)):
            yield "jvp"
        if not close(J.dense(), D):
            yield "dense"
    for way, value in ways(J, u, v):
        yield from (f"{part}, {way}" for part in unlike(case, u, v, gradients(value, case), wanted))


def pulled(case, u, *, twice=False):
    """Jᵀu by autograd."""
    x = case.model.x.clone().requires_grad_()
    return torch.autograd.grad(case.run(x), x, u, create_graph=twice, materialize_grads=True)[0]


def gradients(value, case):
    parameters = list(case.model.parameters())
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    return torch.autograd.grad(
        value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def gradients_by_autograd(case, u, v):
    """None where PyTorch cannot."""
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return gradients((pulled(case, u, twice=True) * v).sum(), case)
    except RuntimeError as error:
        if not any(reason in str(error) for reason in NO_SECOND_DERIVATIVE):
            raise
        return None


def unlike(case, u, v, found, wanted):
    """Which gradients differ. Points where autograd's are infinite are not compared."""
    if wanted is None:
        directions = [torch.randn_like(p) for p in case.model.parameters()]
        slope = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
        if not close(slope, slope_by_differences(case, u, v, directions), 1e-5):
            yield "gradient by differences"
        return
    for (name, _), a, b in zip(case.model.named_parameters(), found, wanted, strict=True):
        if torch.isfinite(b).all() and not close(a, b):
            yield f"gradient of {name}"


def slope_by_differences(case, u, v, directions):
    parameters = list(case.model.parameters())
    before = [p.detach().clone() for p in parameters]

    def value(t):
        for p, start, d in zip(parameters, before, directions, strict=True):
            p.data = start + t * d  # J does not notice
        return (pulled(case, u) * v).sum()

    found = slope(value, STEP)
    value(0.0)
    return found


def close(found, expected, tolerance=TOLERANCE):
    size = max(1.0, float(expected.abs().max()))
    return found.shape == expected.shape and float((found - expected).abs().max()) <= tolerance * size


def test_a_refusal_is_an_error_of_its_own():
    (case, *_) = cases("nn.functional.multi_margin_loss")
    J = case.linearized()
    with pytest.raises(UnsupportedModelError, match="second derivatives"):
        J.jvp(case.model.x)


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3), (0, 2, 4)])
@pytest.mark.parametrize("product", [torch.cumprod, torch.prod])
def test_products_with_zeros(product, zeros):
    x = torch.randn(2, 5, dtype=torch.float64)
    x[1, list(zeros)] = 0
    assert list(differences(made(lambda x: product(x, 1), x))) == []


INF, POWERS = float("inf"), torch.tensor([2.0, 0.0, -1.5]).double()
INDEX = torch.tensor([[0, 2, 2], [1, 0, 1]])
BY_RULE = {
    "power of a constant": lambda x: 2.5**x,
    "scattered into a constant": lambda x: torch.zeros(2, 4).double().scatter_add_(1, INDEX, x),
    "put into a constant": lambda x: torch.ones(3, 3).double().index_copy_(0, torch.tensor([2, 0]), x),
    "put into itself": lambda x: (2 * x).index_add_(0, torch.tensor([1, 1]), x.sin(), alpha=3),
    "filled by name": lambda x: x.scatter(dim=1, index=INDEX, value=7.0),
    "added by name": lambda x: x.scatter_add(dim=1, index=INDEX, src=x.square()),
    "largest of each": lambda x: x.scatter_reduce(1, INDEX, x.exp(), "amax", include_self=False),
    "joined with a constant": lambda x: torch.hstack([x, torch.ones(2, 1).double(), x.sin()]),
    "joined by itself": lambda x: torch.vstack([x]),
    "far from the largest": lambda x: (x - torch.tensor([900.0, 0.0, -900.0]).double()).logcumsumexp(1),
    "rows and rows": lambda x: torch.cosine_similarity(x[None], x.sin()[:, None], -1),
    "remainder": lambda x: (7 * x) % 2,
    "powers of x": lambda x: (x.square() + 1) ** POWERS + torch.pow(x, torch.tensor(3)),
    "x as a power": lambda x: torch.pow(POWERS.exp(), x) + torch.pow(2.5, x) + x.square().pow(x.sin()),
    "to the power of zero": lambda x: x.pow(POWERS.mul(0)) + x.exp().float_power(POWERS),
    "norms of other orders": lambda x: torch.cat([x.norm(p, dim=1) for p in (0, 0.5, 1, 1.5, 3, INF, -INF)])[
        None
    ],
    "norms of all": lambda x: torch.stack([torch.linalg.vector_norm(x, p) for p in (1, 3, INF)])[None],
    "largest of equals": lambda x: torch.linalg.vector_norm(torch.cat([x, -x]), INF, 0),
    "norms of nothing": lambda x: torch.stack([(x - x).norm(p, dim=1) for p in (1, 2, 3, INF)]) + x.sum(1),
    "normalized by other norms": lambda x: (
        torch.nn.functional.normalize(x, p=1) + (torch.nn.functional.normalize(x, p=3))
    ),
    "short rows": lambda x: torch.cosine_similarity(1e-9 * x, x.sin(), 1, 1e-8),
    "distances": lambda x: torch.pairwise_distance(x, x.sin(), 1) + torch.pairwise_distance(x, 2 * x, 3),
    "interpolated": lambda x: torch.lerp(x, x.sin(), x.cos()) + x.lerp(x.exp(), 0.3),
    "near zero": lambda x: torch.sinc(x * torch.tensor([0.0, 1e-3, 0.03]).double()),
}


@pytest.mark.parametrize("name", BY_RULE)
def test_a_call_by_rule(name):
    case = made(BY_RULE[name], torch.randn(2, 3, dtype=torch.float64))
    assert list(differences(case)) == []
    assert served(case.linearized()) == ("rule", "")


def made(call, x):
    return Case("made here", "", Model(call, *tree_flatten(((x.requires_grad_(),), {}))))
