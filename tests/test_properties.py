"""Random compositions of layers: whatever the pieces, J is autograd's, and so are gradients of its norms."""

import pytest
import torch
import torch.nn.functional as F
from cases import dense_oracle
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jacnorm as jn
from jacnorm.engines.pairing import Pairing


class Skip(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


class Concat(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], 1)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu_": lambda: Call(lambda x: (1 * x).relu_()),  # of a copy: autograd refuses it after another ReLU
    "leaky": lambda: nn.LeakyReLU(0.1),
    "prelu": nn.PReLU,
    "hardtanh": nn.Hardtanh,
    "abs": lambda: Call(torch.abs),
    "clamp_": lambda: Call(lambda x: (1 * x).clamp_(-0.3, 0.4)),
    "maxout": lambda: Call(lambda x: torch.maximum(x, -0.5 * x)),
    "flip": lambda: Call(lambda x: x.flip(1)),
    "scale": lambda: Call(lambda x: 0.5 * x - 1),
}
SMOOTH = {"gelu": nn.GELU, "tanh": nn.Tanh, "softplus": nn.Softplus}


@st.composite
def stages(draw, channels, size, depth=3, smooth=False):
    """A stack of layers from (channels, size, size); returns it with its output's channels and size."""
    layers = []
    kinds = ["conv", "pool", "avg", "norm", "act", "skip", "concat", "pad", "up"]
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(kinds))
        if kind == "conv":
            out, kernel = draw(st.integers(1, 3)), draw(st.integers(1, min(3, size)))
            stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 1))
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
            channels, size = out, (size + 2 * padding - kernel) // stride + 1
        elif kind in ("pool", "avg") and size >= 3:
            stride = draw(st.integers(1, 3))
            layers.append((nn.MaxPool2d if kind == "pool" else nn.AvgPool2d)(2, stride))
            size = (size - 2) // stride + 1
        elif kind == "norm":
            layers.append(nn.BatchNorm2d(channels))
            nn.init.uniform_(layers[-1].running_var, 0.5, 2)
        elif kind == "act":
            table = ACTIVATIONS | (SMOOTH if smooth else {})
            layers.append(table[draw(st.sampled_from(sorted(table)))]())
        elif kind == "skip" and depth:
            body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True))
            layers.append(Skip(body))
        elif kind == "concat" and depth:
            left, c1, s1 = draw(stages(channels, size, 0, smooth))
            layers.append(Concat(left, nn.Sequential(nn.AdaptiveAvgPool2d(s1), nn.Conv2d(channels, 1, 1))))
            channels, size = c1 + 1, s1
        elif kind == "pad" and size >= 2:
            mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
            layers.append(Call(lambda x, mode=mode: F.pad(x, (1, 0, 1, 0), mode)))
            size += 1
        elif kind == "up" and size <= 4:
            mode = draw(st.sampled_from(["nearest", "bilinear"]))
            layers.append(nn.Upsample(scale_factor=2, mode=mode))
            size *= 2
    return nn.Sequential(*layers), channels, size


@st.composite
def nets(draw, smooth=False):
    torch.manual_seed(draw(st.integers(0, 2**20)))
    body, channels, size = draw(stages(2, 5, smooth=smooth))
    head = draw(st.sampled_from(["linear", "image", "mean"]))
    if head == "linear":
        body = nn.Sequential(body, nn.Flatten(), nn.Linear(channels * size * size, 3))
    elif head == "mean":
        body = nn.Sequential(body, Call(lambda x: x.mean((2, 3))))
    return body.double().eval()


def agrees_with_the_dense_oracle(model, engine=None):
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    expected = dense_oracle(model, x)
    for _ in range(2):  # examined, then known
        J = jn.linearize(model, x)
        assert engine is None or J.engine == engine, J.reason
        torch.testing.assert_close(J.dense(), expected, rtol=1e-9, atol=1e-10)
        v = torch.randn_like(x)
        jv = torch.einsum("boi,bi->bo", expected, v.flatten(1))
        torch.testing.assert_close(J.jvp(v).flatten(1), jv, rtol=1e-9, atol=1e-9)
    u = torch.randn_like(J.output)
    both = []
    for engine in ("auto", "autograd"):
        model.zero_grad()
        pulled = jn.linearize(model, x, engine=engine).vjp(u)
        if pulled.requires_grad:
            pulled.square().sum().backward()
        both.append([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-9)


QUICK = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=150, **QUICK)
@given(nets())
def test_piecewise_linear(model):
    agrees_with_the_dense_oracle(model, "layerwise")


@settings(max_examples=50, **QUICK)
@given(nets(smooth=True))
def test_any_differentiable(model):
    agrees_with_the_dense_oracle(model)


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(nets(smooth=True))
def test_five_thousand(model):
    agrees_with_the_dense_oracle(model)


# ---- Smooth nets: gates, norms, attention, products, calls in place, calls without a rule ------------

TOKENS, WIDTH = 3, 4
TOLERANCE, FLOOR = 1e-9, 1e-3


class Block(nn.Module):
    """A function of itself and of x, with layers of its own."""

    def __init__(self, name, function, **layers):
        super().__init__()
        self.name, self.function = name, function
        for key, layer in layers.items():
            setattr(self, key, layer)

    def forward(self, x):
        return self.function(self, x)

    def extra_repr(self):
        return self.name


def linear(out=WIDTH):
    return nn.Linear(WIDTH, out)


def heads(t, count):
    """(B, T, C) to (B, heads, T, C / heads)."""
    return t.unflatten(-1, (count, -1)).transpose(1, 2)


def attention(b, x, mask=None, kv_heads=2, **options):
    q, k, v = heads(b.q(x), 2), heads(b.k(x), kv_heads), heads(b.v(x), kv_heads)
    y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=kv_heads == 1, **options)
    return y.transpose(1, 2).flatten(2)


def fused_qkv(b, x):
    q, k, v = b.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


def softmax_attention(b, x):
    scores = b.q(x) @ b.k(x).mT / 2
    return (scores + b.bias).softmax(-1) @ b.v(x)


def multi_query(b, x):
    """One head of keys and values is broadcast."""
    y = F.scaled_dot_product_attention(heads(b.q(x), 2), heads(b.k(x), 1), heads(b.v(x), 1))
    return y.transpose(1, 2).flatten(2)


def learnt_keys(b, x):
    return F.scaled_dot_product_attention(b.q(x), b.keys, b.v(x))


def one_sided(b, x):
    """Queries that are learnt, and depend on nothing."""
    return F.scaled_dot_product_attention(b.queries, b.k(x), x)


def qkv(name, kv_heads=2, **options):
    layers = {"q": linear(), "k": linear(2 * kv_heads), "v": linear(2 * kv_heads)}
    return Block(name, lambda b, x: attention(b, x, kv_heads=kv_heads, **options), **layers)


def learnt_mask():
    block = qkv("attention, learnt mask")
    block.mask = nn.Parameter(torch.randn(2, TOKENS, TOKENS))
    block.function = lambda b, x: attention(b, x, b.mask)
    return block


def followed_mask():
    block = qkv("attention, mask of x")
    block.function = lambda b, x: attention(b, x, (x @ x.mT).unsqueeze(1))
    return block


def with_parameter(name, function, shape, key, **layers):
    block = Block(name, function, **layers)
    block.register_parameter(key, nn.Parameter(torch.randn(shape)))
    return block


def multihead(b, x, **options):
    return b.layer(x, x, x, **options)[0]


def encoder(**options):
    return nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True, **options)


LOOKS = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
ADDED = torch.tensor([[0.0, 1.0, -2.0], [0.5, 0.0, -torch.inf], [1.0, -1.0, 0.0]], dtype=torch.float64)
AHEAD = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


def calls(**functions):
    return {name: lambda name=name, f=f: Block(name, lambda _, x: f(x)) for name, f in functions.items()}


def multiheads(**options):
    return {
        f"multihead {name}": lambda name=name, given=given: Block(
            f"multihead {name}",
            lambda b, x: multihead(b, x, **given),
            layer=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        )
        for name, given in options.items()
    }


KINDS = {
    "linear": {"linear": linear, "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False)},
    "activation": {
        **{
            kind.__name__: kind
            for kind in (nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.Mish)
        },
        "gelu tanh": lambda: nn.GELU("tanh"),
        "softplus 3": lambda: nn.Softplus(3, 2),
        "elu 0.5": lambda: nn.ELU(0.5),
        **calls(sin=torch.sin, softmax=lambda x: x.softmax(-1), log_softmax=lambda x: F.log_softmax(x, -1)),
    },
    "in place": calls(
        silu_=lambda x: F.silu(1 * x, inplace=True),
        mish_=lambda x: F.mish(1 * x, inplace=True),
        elu_=lambda x: F.elu_(1 * x),
        sigmoid_=lambda x: (1 * x).sigmoid_(),
        tanh_=lambda x: torch.tanh_(1 * x),
        mul_=lambda x: (2 * x).mul_(torch.sigmoid(x)),
        mul_by_itself=lambda x: (2 * x).mul_(x),
        div_=lambda x: (1 * x).div_(1 + x.square()),
        add_=lambda x: (2 * x).add_(torch.tanh(x), alpha=0.5),
        written=lambda x: _written(x),
    ),
    "norm": {
        "layer": lambda: nn.LayerNorm(WIDTH),
        "layer, both axes": lambda: nn.LayerNorm((TOKENS, WIDTH)),
        "layer, plain": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
        "rms": lambda: nn.RMSNorm(WIDTH),
        "rms 0.1": lambda: nn.RMSNorm(WIDTH, eps=0.1, elementwise_affine=False),
        "group": lambda: Block("group", lambda b, x: b.norm(x.mT).mT, norm=nn.GroupNorm(2, WIDTH)),
        "instance": lambda: Block(
            "instance", lambda b, x: b.norm(x.mT).mT, norm=nn.InstanceNorm1d(WIDTH, affine=True)
        ),
        "by hand": lambda: with_parameter(
            "rms by hand",
            lambda b, x: b.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
            WIDTH,
            "weight",
        ),
    },
    "gate": {
        "sigmoid": lambda: Block("sigmoid gate", lambda b, x: x * torch.sigmoid(b.a(x)), a=linear()),
        "softmax": lambda: Block("softmax gate", lambda b, x: x * F.softmax(b.a(x), dim=-1), a=linear()),
        "silu": lambda: Block("silu gate", lambda b, x: F.silu(b.a(x)) * b.c(x), a=linear(), c=linear()),
        "chunk": lambda: Block("chunk gate", lambda b, x: _gated(*b.a(x).chunk(2, -1)), a=linear(2 * WIDTH)),
    },
    "attention": {
        "plain": lambda: qkv("attention"),
        "scaled": lambda: qkv("attention, scaled", scale=0.3),
        "causal": lambda: qkv("attention, causal", is_causal=True),
        "masked": lambda: qkv("attention, masked", mask=LOOKS),
        "added": lambda: qkv("attention, added mask", mask=ADDED),
        "learnt": learnt_mask,
        "of x": followed_mask,
        "grouped": lambda: qkv("attention, grouped queries", kv_heads=1),
        "grouped, causal": lambda: qkv("attention, grouped queries, causal", kv_heads=1, is_causal=True),
        "grouped, masked": lambda: qkv("attention, grouped queries, masked", kv_heads=1, mask=LOOKS),
        "one head of keys": lambda: Block(
            "one head of keys", multi_query, q=linear(), k=linear(2), v=linear(2)
        ),
        "learnt keys": lambda: with_parameter(
            "learnt keys", learnt_keys, (1, TOKENS, WIDTH), "keys", q=linear(), v=linear()
        ),
        "fused": lambda: Block("fused qkv", fused_qkv, qkv=linear(3 * WIDTH)),
        "itself": lambda: Block("attention of x", lambda _, x: F.scaled_dot_product_attention(x, x, x)),
        "queries": lambda: with_parameter(
            "learnt queries", one_sided, (1, TOKENS, WIDTH), "queries", k=linear()
        ),
        "softmax": lambda: with_parameter(
            *("softmax attention", softmax_attention, (TOKENS, TOKENS), "bias"),
            q=linear(),
            k=linear(),
            v=linear(),
        ),
        **multiheads(
            plain={"need_weights": False},
            averaged={},
            masked={"need_weights": False, "attn_mask": AHEAD},
            causal={"need_weights": False, "attn_mask": AHEAD, "is_causal": True},
        ),
        "encoder": encoder,
        "encoder, gelu": lambda: encoder(activation="gelu", norm_first=True),
        "encoder, silu": lambda: encoder(activation=F.silu),
        "encoder, causal": lambda: Block(
            "causal encoder", lambda b, x: b.layer(x, AHEAD), layer=encoder(activation="gelu")
        ),
    },
    "product": {
        "of two": lambda: Block("product", lambda b, x: b.a(x) * torch.tanh(b.c(x)), a=linear(), c=linear()),
        "matmul": lambda: Block("matmul", lambda b, x: b.a(x) @ x.mT @ b.c(x) / 4, a=linear(), c=linear()),
        "einsum": lambda: Block(
            "einsum", lambda b, x: torch.einsum("btc,bsc->bts", x, b.a(x)) @ x / 4, a=linear()
        ),
        "addcmul": lambda: Block("addcmul", lambda b, x: torch.addcmul(x, b.a(x), x, value=0.5), a=linear()),
        "broadcast": lambda: Block("broadcast", lambda b, x: x * b.a(x).mean(1, keepdim=True), a=linear()),
        **calls(square=lambda x: x * x, cube=lambda x: 0.2 * x**3),
    },
    "division": calls(
        norm=lambda x: x / x.norm(dim=-1, keepdim=True),
        normalize=lambda x: F.normalize(x, dim=-1),
        vector_norm=lambda x: x / (1 + torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)),
        one_by=lambda x: 1 / (2 + x.square()),
        by_exp=lambda x: x / (1 + torch.exp(-x)),
        std=lambda x: (x - x.mean(-1, keepdim=True)) / (0.1 + x.std(-1, keepdim=True)),
        var=lambda x: x * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + 0.1),
    ),
    "rare": {  # calls that have no rule, or few nets use
        "glu": lambda: Block("glu", lambda b, x: F.glu(b.a(x), dim=-1), a=linear(2 * WIDTH)),
        **calls(
            i0=lambda x: torch.special.i0(torch.tanh(x)),
            lgamma=lambda x: torch.lgamma(F.softplus(x) + 1),
            digamma=lambda x: torch.digamma(F.softplus(x) + 1),
            ndtr=lambda x: torch.special.ndtr(x),
            cumprod=lambda x: torch.tanh(x).cumprod(-1),
            solve=lambda x: torch.linalg.solve(2 * torch.eye(TOKENS, dtype=x.dtype) + x @ x.mT, x),
        ),
    },
}


def _gated(a, b):
    return a * torch.sigmoid(b)


def _written(x):
    y = 2 * x
    y[:, 0] = x[:, 1] * x[:, 2]
    return y


class Twice(nn.Module):
    """The same weights at two places."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(0.5 * self.body(x))


class Times(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return self.left(x) * self.right(x)


@st.composite
def blocks(draw, depth):
    """Any map from (B, TOKENS, WIDTH) to the same."""
    kind = draw(st.sampled_from([*KINDS, *(("skip", "twice", "times") if depth else ())]))
    if kind in KINDS:
        block = KINDS[kind][draw(st.sampled_from(sorted(KINDS[kind])))]()
        block.is_rare = kind == "rare"
    elif kind == "times":
        block = Times(draw(stacks(depth - 1)), draw(stacks(depth - 1)))
    else:
        block = (Skip if kind == "skip" else Twice)(draw(stacks(depth - 1)))
    if draw(st.integers(0, 7)) == 7:
        block.requires_grad_(False)
    return block


@st.composite
def stacks(draw, depth=2):
    return nn.Sequential(*draw(st.lists(blocks(depth), min_size=1, max_size=4 if depth == 2 else 2)))


ENDS = {
    "tokens": nn.Identity,
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, 3)),
    "mean": lambda: Block("mean", lambda b, x: b.a(x.mean(1)), a=linear(3)),
    "last": lambda: Block("last", lambda b, x: b.a(x[:, -1]), a=linear(2)),
    "number": lambda: Block("number", lambda b, x: torch.tanh(b.a(x)).sum((1, 2)), a=linear(1)),
}


@st.composite
def smooth_nets(draw):
    seed = draw(st.integers(0, 2**20))
    torch.manual_seed(seed)
    net = nn.Sequential(draw(stacks()), ENDS[draw(st.sampled_from(sorted(ENDS)))]())
    with torch.no_grad():
        for parameter in net.parameters():  # norms have weights that can be mistaken
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.double().train(draw(st.booleans()))


def dense_by_rows(model, x):
    """(B, n_out, n_in), differentiable once more."""
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        z = x.clone().requires_grad_()
        output = model(z.clone()).reshape(len(x), -1)
    rows = [torch.autograd.grad(output[:, k].sum(), z, create_graph=True)[0] for k in range(output.shape[1])]
    return output.detach(), torch.stack(rows, 1).flatten(2)


def gradient(value, model):
    """In all parameters, as one vector."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    found = [None] * len(wanted)
    if wanted and value.requires_grad:
        found = torch.autograd.grad(value, wanted, allow_unused=True, retain_graph=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]
    return torch.cat([torch.zeros(1, dtype=torch.float64), *[part.flatten() for part in parts]])


def near(actual, expected, scale=0.0):
    """Relative to what is expected, and to the size of what was added up."""
    actual, expected = actual.detach(), expected.detach().reshape(actual.shape)
    distance, size = float((actual - expected).norm()), float(expected.norm()) + scale + FLOOR
    assert distance <= TOLERANCE * size, f"{distance:.1e}, of {size:.1e}"


def smooth_net_agrees(model):
    """False where there is nothing to compare with; raises where something differs."""
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    output, D = dense_by_rows(model, x)
    scale = float(D.detach().norm())
    if not scale + float(output.norm()) < 1e6:  # cubes of cubes overflow
        return False
    u, v = torch.randn_like(output), torch.randn(2, D.shape[2], dtype=torch.float64)

    def product(u, v):
        return torch.einsum("bo,boi,bi->", u, D, v)

    for _ in range(2):  # examined, then known
        J = jn.linearize(model, x)
        assert J.engine == "layerwise", J.reason
        assert J.reason is None or any(getattr(m, "is_rare", False) for m in model.modules()), J.reason
        near(J.output, output)
        near(J.dense(), D)
    if scale < TOLERANCE:  # a constant, as the mean of tokens after instance norm: rounding errors alone
        return True
    shaped_u, shaped_v = u.view(J.output_shape), v.view(J.input_shape)
    wanted, size = gradient(product(u, v), model), scale * float(u.norm() * v.norm())
    if not torch.isfinite(wanted).all():  # PyTorch's second derivative of Mish is NaN at 800
        assert torch.isfinite(gradient((J.jvp(shaped_v) * shaped_u).sum(), model)).all()
        return False
    near(J.jvp(shaped_v), torch.einsum("boi,bi->bo", D, v), scale)
    near(J.vjp(shaped_u), torch.einsum("boi,bo->bi", D, u), scale)
    near(gradient((J.jvp(shaped_v) * shaped_u).sum(), model), wanted, size)
    near(gradient((J.vjp(shaped_u) * shaped_v).sum(), model), wanted, size)
    for order in ("push", "pull"):
        pairing = Pairing()
        with torch.no_grad():
            for sweep in ("push", "pull") if order == "push" else ("pull", "push"):
                J.jvp(shaped_v, pairing) if sweep == "push" else J.vjp(shaped_u, pairing)
        near(gradient(pairing.handed_over(torch.zeros((), dtype=x.dtype), 3.0), model), 3 * wanted, size)

    projected = jn.FrobeniusPenalty(1.0, seed=5).random(J.output_shape, J).reshape(u.shape)
    projected = projected / projected.norm(dim=1, keepdim=True)
    squared = torch.einsum("boi,bo->bi", D, projected).square().sum() * u.shape[1] / 2
    penalty = jn.FrobeniusPenalty(1.0, seed=5)(J)
    near(penalty, squared)
    near(gradient(penalty, model), gradient(squared, model), scale**2)

    U, S, _ = torch.linalg.svd(D.detach())
    first, second = S[:, 0], S[:, 1] if S.shape[1] > 1 else 0 * S[:, 0]
    if bool((first - second > 1e-2 * first + FLOOR).all()):  # else it has no gradient
        sigma = torch.linalg.matrix_norm(D, 2).mean()
        wanted = gradient(sigma, model)
        stored = jn.SpectralPenalty(1.0)
        stored.u = U[:, :, 0]
        for penalty in (jn.AnalyticPenalty(1.0)(J), stored(J, index=torch.arange(2))):
            near(penalty, sigma)
            near(gradient(penalty, model), wanted, scale)
    return True


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind]])
def test_each_smooth_block(kind, name):
    block = KINDS[kind][name]()
    block.is_rare = kind == "rare"
    assert smooth_net_agrees(nn.Sequential(linear(), block, ENDS["linear"]()).double())


@settings(max_examples=200, **QUICK)
@given(smooth_nets())
def test_smooth(model):
    assume(smooth_net_agrees(model))


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(smooth_nets())
def test_five_thousand_smooth(model):
    assume(smooth_net_agrees(model))
