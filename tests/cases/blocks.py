"""Smooth blocks from (B, TOKENS, WIDTH) to the same: gates, norms, attention, products, calls in place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH = 3, 4


class Skip(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


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
