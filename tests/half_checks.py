"""Models that are wholly in half precision: by rule wherever float32 is, and as near to the truth as it can
be."""

import pytest
import torch
import torch.nn.functional as F
from agreement import ways
from oracles import dense, gradient, pull, push
from torch import nn

import jacnorm as jn

ROW, WORDS, IMAGE = (3, 8), (3, 4, 8), (3, 4, 6, 6)


class Called(nn.Module):
    """A module that is called in a way of its own."""

    def __init__(self, inside, call):
        super().__init__()
        self.inside, self.call = inside, call

    def forward(self, x):
        return self.call(self.inside, x)


class Scaled(nn.Module):
    """In front of a module, whose gradient must go on to it. Products with powers of two are not rounded."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(2.0 ** torch.randint(-1, 2, (n,)))

    def forward(self, x):
        return x * self.weight


class Gate(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.up, self.gate, self.activation = nn.Linear(8, 8), nn.Linear(8, 8), activation

    def forward(self, x):
        return self.up(x) * self.activation(self.gate(x))


def rotary(layer, x):
    h, angle = layer(x), torch.arange(4).view(4, 1).to(x) / 2
    first, second = h.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin()], -1)


def attention(**options):
    def call(layer, x):
        q, k, v = layer(x).view(len(x), 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)

    return Called(nn.Linear(8, 24), call)


class Biased(nn.Module):
    """Attention with a bias that learns, as Swin has it."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2, 4, 4))
        self.attend = attention()

    def forward(self, x):
        self.attend.call = attention(attn_mask=self.bias).call
        return self.attend(x)


def first(layer, x):
    return layer(x)[0]


ELEMENTWISE = (
    *("ReLU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softplus", "ELU", "SELU", "CELU", "Hardswish"),
    *("Hardsigmoid", "Hardtanh", "ReLU6", "LeakyReLU", "LogSigmoid", "Softsign", "Tanhshrink", "Softshrink"),
)
MODULES = {
    "linear": (lambda: nn.Linear(8, 5), ROW),
    "layer norm": (lambda: nn.LayerNorm(8), WORDS),
    "layer norm without weights": (lambda: nn.LayerNorm(8, elementwise_affine=False), WORDS),
    "layer norm over two axes": (lambda: nn.LayerNorm((4, 8)), WORDS),
    "rms norm": (lambda: nn.RMSNorm(8, 1e-5), WORDS),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "batch norm": (lambda: nn.BatchNorm2d(4), IMAGE),
    "batch norm in evaluation": (lambda: nn.BatchNorm2d(4).eval(), IMAGE),
    "convolution": (lambda: nn.Conv2d(4, 4, 3), IMAGE),
    "depthwise convolution": (lambda: nn.Conv2d(4, 4, 3, groups=4), IMAGE),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 3, 3), IMAGE),
    "one channel": (lambda: nn.Conv2d(1, 4, 3), (3, 1, 6, 6)),
    "max pooling": (lambda: nn.MaxPool2d(2), IMAGE),
    "mean pooling": (lambda: nn.AvgPool2d(2), IMAGE),
    "global pooling": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "softmax": (lambda: nn.Softmax(-1), WORDS),
    "log softmax": (lambda: nn.LogSoftmax(-1), WORDS),
    "attention": (attention, WORDS),
    "causal attention": (lambda: attention(is_causal=True), WORDS),
    "attention with a bias": (Biased, WORDS),
    "bilinear": (lambda: Called(nn.Bilinear(8, 8, 4), lambda m, x: m(x, x)), ROW),
    "multi-head attention": (
        lambda: Called(nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
        WORDS,
    ),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True), WORDS),
    "decoder layer": (
        lambda: Called(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), lambda m, x: m(x, x)),
        WORDS,
    ),
    "rotary embedding": (lambda: Called(nn.Linear(8, 8), rotary), WORDS),
    "normalize": (lambda: Called(nn.Linear(8, 8), lambda m, x: F.normalize(m(x), dim=-1)), WORDS),
    "GLU": (nn.GLU, ROW),
    "SwiGLU": (lambda: Gate(F.silu), WORDS),
    "GeGLU": (lambda: Gate(F.gelu), WORDS),
    "sigmoid gate": (lambda: Gate(torch.sigmoid), ROW),
    "GRU": (lambda: Called(nn.GRU(8, 5, batch_first=True), first), WORDS),
    "LSTM": (lambda: Called(nn.LSTM(8, 5, batch_first=True), first), WORDS),
    "RNN": (lambda: Called(nn.RNN(8, 5, batch_first=True), first), WORDS),
    "LSTM, both ways, two layers": (
        lambda: Called(nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True), first),
        WORDS,
    ),
    "GRU cell": (lambda: nn.GRUCell(8, 5), ROW),
    "LSTM cell": (lambda: Called(nn.LSTMCell(8, 5), first), ROW),
    **{name: (lambda name=name: getattr(nn, name)(), ROW) for name in ELEMENTWISE},
}
# A few roundings, in the products of the whole model and in its activations.
TOLERANCE = {torch.bfloat16: 0.04, torch.float16: 0.006}
RECURRENT = [name for name in MODULES if any(kind in name for kind in ("GRU", "LSTM", "RNN"))]


def distance(a, b):
    b = b.detach().reshape(a.shape).double()
    return float((a.detach().double() - b).norm() / b.norm().clamp_min(1e-12))


def made(name, dtype):
    make, shape = MODULES[name]
    model = nn.Sequential(Scaled(shape[-1]), make()).to(dtype)
    return model, torch.randn(shape).to(dtype)


def assert_right(model, x, J, tolerance):
    """Products, and the gradient of uᵀJ v in each way, beside those of the same weights in float64."""
    generator, dtype = torch.Generator().manual_seed(4), x.dtype
    u = torch.randn(J.output_shape, generator=generator)
    v = torch.randn(J.input_shape, generator=generator)
    ours = [(way, gradient(value, model)) for way, value in ways(J, u, v)]
    products = J.jvp(v), J.vjp(u)
    D = dense(model.double(), x.double())
    expected = gradient((push(D, v.double()) * u.double().reshape(len(u), -1)).sum(), model)
    model.to(dtype)
    assert distance(products[0], push(D, v.double())) < tolerance
    assert distance(products[1], pull(D, u.double())) < tolerance
    for way, found in ours:
        assert distance(found, expected) < tolerance, way


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_in_half_precision_is_by_rule_and_right(name, dtype):
    model, x = made(name, dtype)
    J = jn.linearize(model, x)
    assert J.reason is None
    assert_right(model, x, J, TOLERANCE[dtype])


@pytest.mark.parametrize("name", [name for name in MODULES if name not in RECURRENT])
def test_a_module_under_autocast_is_by_rule_and_right(name):
    model, x = made(name, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        J = jn.linearize(model, x)
    assert J.reason is None
    assert_right(model, x, J, TOLERANCE[torch.bfloat16])


def test_recurrent_layers_under_autocast_go_by_autograd():
    """They keep the precision that PyTorch gives them, which is another one for each kind."""
    model, x = made("GRU", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        J = jn.linearize(model, x)
    assert "gru (a recurrent layer under torch.compile, torch.func or autocast)" in J.reason
    assert_right(model, x, J, TOLERANCE[torch.bfloat16])
