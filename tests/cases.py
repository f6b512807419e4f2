"""One list of cases, one oracle: a new layer or net is one entry here, and every test runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from jacnorm.lab.nets import MLP, VGG16, LeNet, ResNet18

BATCH = 3


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]  # of one sample
    engine: str = "layerwise"
    training: bool = False
    twice: bool = True  # PyTorch itself can differentiate it twice, as the oracle of gradients must

    def make(self) -> tuple[Any, Tensor]:
        """The model in float64 and a batch, the same each time."""
        torch.manual_seed(0)
        model = self.build()
        if isinstance(model, nn.Module):
            model = model.double().train(self.training)
        return model, torch.randn(BATCH, *self.shape, dtype=torch.float64)

    def __str__(self) -> str:
        return self.name


def dense_oracle(model: Any, x: Tensor) -> Tensor:
    """(B, n_out, n_in) by torch.func, from the whole batch's Jacobian."""
    with sdpa_kernel(SDPBackend.MATH):
        full = torch.func.jacrev(lambda z: model(z.clone()))(x).detach()
    full = full.reshape(len(x), -1, len(x), x[0].numel())
    return torch.stack([full[i, :, i] for i in range(len(x))])


class Seeded(nn.Module):
    """Draws the same dropout masks each time."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return self.body(x)


class UNet(nn.Module):
    """Down, up, and a concatenation across."""

    def __init__(self, up: str = "bilinear"):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode=up, align_corners=False if up == "bilinear" else None)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.down(x), 0.1)
        h = self.up(F.relu(self.deep(h)))
        return self.out(torch.cat([x, h], dim=1))


class Shared(nn.Module):
    """One layer used twice, a learnt residual scale, an in-place sum."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).relu_()
        h = self.scale * self.layer(h)
        h += x
        return h


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


class Mixer(nn.Module):
    """Tokens and channels mixed in turn, with einsum and matmul, no attention."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(4, 4))
        self.channels = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = x + torch.einsum("btc,st->bsc", x, self.tokens).relu()
        h = self.tokens @ h
        return torch.relu(h @ self.channels).mean(1)


class Writes(nn.Module):
    """Fills a fresh tensor piece by piece."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 5, dtype=x.dtype)
        out[:, :3] = 2 * x[:, :3]
        out[:, 4] = x[:, 3]
        rest = torch.empty_like(x)
        rest.copy_(x)
        return torch.cat([out, rest], 1)


def _seeded(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Seeded(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 4)))


def _conv(kind: type, *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: kind(*args, **kwargs)


def _two(layer: Callable[[], nn.Module], n: int = 6) -> Callable[[], nn.Module]:
    """The activation between two linear layers."""
    return lambda: nn.Sequential(nn.Linear(5, n), layer(), nn.Linear(n, 4))


ONES = torch.ones(4, dtype=torch.bool)
MASK = torch.tensor([True, False, True, True])
PLACES = torch.tensor([2, 0, 0, 3])
FACTOR = torch.linspace(0.5, 2, 4, dtype=torch.float64)


def _call(name: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: function, shape)


NETS = [
    Case("mlp", lambda: MLP((5, 7, 6, 3)), (5,)),
    Case("lenet", LeNet, (1, 28, 28)),
    Case("vgg16-bn", lambda: VGG16(width=0.04), (3, 32, 32)),
    Case("vgg16-bn train", lambda: VGG16(width=0.04), (3, 32, 32), training=True),
    Case("resnet18", lambda: ResNet18(width=0.04), (3, 16, 16)),
    Case("resnet18 train", lambda: ResNet18(width=0.04), (3, 16, 16), training=True),
    Case("u-net", UNet, (2, 6, 6)),
    Case("u-net nearest", lambda: UNet("nearest"), (2, 6, 6)),
    Case("shared layer", Shared, (6,)),
    Case("mixer", Mixer, (4, 5)),
    Case("writes into tensors", Writes, (4,)),
    Case("scalar critic (B, 1)", lambda: MLP((5, 7, 1)), (5,)),
    Case(
        "scalar critic (B,)",
        lambda: nn.Sequential(MLP((5, 7, 1)), nn.Flatten(0)),
        (5,),
    ),
    Case("more outputs than inputs", lambda: MLP((3, 8, 12)), (3,)),
    Case("transformer", Transformer, (4, 8)),
    Case("attention", Attention, (4, 12)),
    Case("lstm", Recurrent, (4, 3)),
]

LAYERS = [
    Case("conv1d", _conv(nn.Conv1d, 2, 3, 3, stride=2, padding=1), (2, 8)),
    Case("conv2d stride 2", _conv(nn.Conv2d, 2, 4, 3, stride=2), (2, 8, 7)),
    Case("conv2d stride 3 kernel 2", _conv(nn.Conv2d, 2, 3, 2, stride=3), (2, 9, 7)),
    Case("conv2d dilated, groups", _conv(nn.Conv2d, 4, 4, 3, dilation=2, groups=2), (4, 7, 6)),
    Case("conv2d same, even kernel", _conv(nn.Conv2d, 2, 2, 4, padding="same"), (2, 6, 5)),
    Case("conv2d same, dilated", _conv(nn.Conv2d, 2, 2, 3, padding="same", dilation=2), (2, 6, 5)),
    Case("conv2d valid", _conv(nn.Conv2d, 2, 2, 3, padding="valid"), (2, 6, 5)),
    Case("conv2d (1, 2) sides", _conv(nn.Conv2d, 2, 2, (1, 3), (2, 1), (0, 2)), (2, 6, 5)),
    Case("conv2d reflect", _conv(nn.Conv2d, 2, 2, 3, padding=2, padding_mode="reflect"), (2, 5, 5)),
    Case("conv2d circular", _conv(nn.Conv2d, 2, 2, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    Case(
        "conv2d replicate",
        _conv(nn.Conv2d, 2, 2, 3, padding=1, padding_mode="replicate"),
        (2, 5, 5),
    ),
    Case("conv3d", _conv(nn.Conv3d, 1, 2, 2, stride=2), (1, 4, 5, 4)),
    Case("conv_transpose1d", _conv(nn.ConvTranspose1d, 2, 3, 3, 2), (2, 5)),
    Case(
        "conv_transpose2d",
        _conv(nn.ConvTranspose2d, 4, 4, 3, 2, 1, output_padding=1, groups=2),
        (4, 4, 3),
    ),
    Case(
        "conv_transpose2d, output padding over stride",
        _conv(nn.ConvTranspose2d, 2, 2, 2, 1, 0, output_padding=1, dilation=2),
        (2, 4, 3),
    ),
    Case("conv_transpose3d", _conv(nn.ConvTranspose3d, 1, 1, 2, 2), (1, 2, 2, 2)),
    Case("max_pool1d", _conv(nn.MaxPool1d, 3, 2, 1), (2, 8)),
    Case("max_pool2d overlapping", _conv(nn.MaxPool2d, 3, 1, 1), (2, 5, 5)),
    Case("max_pool2d padded", _conv(nn.MaxPool2d, 2, 2, 1), (2, 6, 5)),
    Case("max_pool2d ceil", _conv(nn.MaxPool2d, 3, ceil_mode=True), (2, 7, 5)),
    Case("max_pool2d dilated, ceil", _conv(nn.MaxPool2d, 2, 2, 1, 2, ceil_mode=True), (2, 7, 6)),
    Case("max_pool3d", _conv(nn.MaxPool3d, 2), (1, 4, 4, 4)),
    Case("avg_pool1d", _conv(nn.AvgPool1d, 3, 2, 1, count_include_pad=False), (2, 8)),
    Case("avg_pool2d", _conv(nn.AvgPool2d, 3, 2, 1, ceil_mode=True), (2, 6, 7)),
    Case("avg_pool2d divisor", _conv(nn.AvgPool2d, (2, 3), 1, divisor_override=5), (2, 5, 5)),
    Case("avg_pool3d", _conv(nn.AvgPool3d, 2, 1), (1, 3, 4, 3)),
    Case("adaptive_avg_pool1d", _conv(nn.AdaptiveAvgPool1d, 3), (2, 7)),
    Case("adaptive_avg_pool2d", _conv(nn.AdaptiveAvgPool2d, (3, 2)), (2, 7, 5)),
    Case("adaptive_avg_pool2d 1", _conv(nn.AdaptiveAvgPool2d, 1), (2, 4, 4)),
    Case("adaptive_avg_pool3d", _conv(nn.AdaptiveAvgPool3d, 2), (1, 3, 4, 5)),
    Case("adaptive_max_pool1d", _conv(nn.AdaptiveMaxPool1d, 3), (2, 7)),
    Case("adaptive_max_pool2d", _conv(nn.AdaptiveMaxPool2d, (3, None)), (2, 7, 5)),
    Case("adaptive_max_pool3d", _conv(nn.AdaptiveMaxPool3d, 2), (1, 3, 4, 5)),
    Case("relu", _two(nn.ReLU), (5,)),
    Case("relu in place", _two(lambda: nn.ReLU(inplace=True)), (5,)),
    Case("leaky_relu", _two(lambda: nn.LeakyReLU(0.2)), (5,)),
    Case("leaky_relu in place", _two(lambda: nn.LeakyReLU(0.2, inplace=True)), (5,)),
    Case("prelu", _two(lambda: nn.PReLU(6)), (5,)),
    Case("prelu on images", lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.PReLU(3)), (2, 3, 3)),
    Case("rrelu", _two(nn.RReLU), (5,)),
    Case("rrelu train", _seeded(nn.RReLU()), (6,), training=True),
    Case("relu6", _two(nn.ReLU6), (5,)),
    Case("hardtanh", _two(lambda: nn.Hardtanh(-0.5, 0.3)), (5,)),
    Case("hardtanh in place", _two(lambda: nn.Hardtanh(-0.5, 0.3, inplace=True)), (5,)),
    Case("hardsigmoid", _two(nn.Hardsigmoid), (5,), twice=False),
    Case("threshold", _two(lambda: nn.Threshold(0.1, 20.0)), (5,)),
    Case("hardshrink", _two(nn.Hardshrink), (5,)),
    Case("softshrink", _two(nn.Softshrink), (5,)),
    Case("dropout train", _seeded(nn.Dropout(0.4)), (6,), training=True),
    Case("dropout in place", _seeded(nn.Dropout(0.4, inplace=True)), (6,), training=True),
    Case("dropout eval", _seeded(nn.Dropout(0.4)), (6,)),
    Case("dropout1d train", lambda: Seeded(nn.Dropout1d(0.4)), (6, 3), training=True),
    Case("dropout2d train", lambda: Seeded(nn.Dropout2d(0.4)), (6, 3, 2), training=True),
    Case("dropout3d train", lambda: Seeded(nn.Dropout3d(0.4)), (6, 1, 3, 2), training=True),
    Case("alpha_dropout train", _seeded(nn.AlphaDropout(0.4)), (6,), training=True),
    Case(
        "feature_alpha_dropout train",
        lambda: Seeded(nn.FeatureAlphaDropout(0.4)),
        (6, 3),
        training=True,
    ),
    Case("batch_norm 1d", lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), (5,)),
    Case("batch_norm 3d", lambda: nn.BatchNorm3d(2), (2, 2, 3, 2)),
    Case("batch_norm no affine", lambda: nn.BatchNorm2d(2, affine=False), (2, 3, 2)),
    Case("gelu", _two(nn.GELU), (5,)),
    Case("silu", _two(nn.SiLU), (5,)),
    Case("tanh", _two(nn.Tanh), (5,)),
    Case("sigmoid", _two(nn.Sigmoid), (5,)),
    Case("softmax", _two(lambda: nn.Softmax(-1)), (5,)),
    Case("layer_norm", _two(lambda: nn.LayerNorm(6)), (5,)),
    Case("group_norm", lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    Case("normalize", lambda: lambda x: F.normalize(x, dim=1), (5,)),
    Case("instance_norm", _conv(nn.InstanceNorm2d, 2, affine=True), (2, 3, 3)),
    Case("fold, unfold", lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 5), 2)), (2, 4, 5)),
    Case("pixel shuffles", lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), (4, 2, 3)),
    Case("channel shuffle", lambda: nn.ChannelShuffle(2), (4, 2, 3)),
    Case("unflatten", lambda: nn.Unflatten(1, (2, 3)), (6,)),
]

SQUARE = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)


def _named(name: str) -> Callable[[Tensor], Tensor]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


ANYWHERE, POSITIVE, INSIDE, ABOVE = (
    (lambda x: x),
    (lambda x: x.square() + 0.5),
    (lambda x: 0.9 * x.tanh()),
    (lambda x: x.square() + 1.5),
)
# A function of each number by itself, and where it is defined.
SMOOTH = {
    **dict.fromkeys(
        ["square", "sin", "cos", "sinh", "cosh", "atan", "arctan", "asinh", "arcsinh", "erf"], ANYWHERE
    ),
    **dict.fromkeys(["erfc", "tanh", "sigmoid", "exp", "exp2", "expm1", "tan"], ANYWHERE),
    **dict.fromkeys(
        ["special.expm1", "special.exp2", "special.erf", "special.erfc", "special.expit"], ANYWHERE
    ),
    **dict.fromkeys(
        ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "special.log1p"], POSITIVE
    ),
    **dict.fromkeys(["asin", "acos", "atanh", "arcsin", "arccos", "arctanh"], INSIDE),
    **dict.fromkeys(["acosh", "arccosh"], ABOVE),
}
ACTIVATIONS = [
    *(nn.GELU, lambda: nn.GELU("tanh"), nn.SiLU, lambda: nn.SiLU(inplace=True), nn.Mish, nn.Softplus),
    *(lambda: nn.Softplus(2, 1), nn.ELU, lambda: nn.ELU(0.7, inplace=True), nn.SELU, lambda: nn.CELU(1.3)),
    *(
        nn.Hardswish,
        nn.Softsign,
        nn.LogSigmoid,
        nn.Tanhshrink,
        lambda: nn.LogSoftmax(-1),
        lambda: nn.Softmin(-1),
    ),
]


def _attends(**options: Any) -> Callable[[], nn.Module]:
    """Attention between two linear layers."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            groups = 2 if options.get("enable_gqa") else 1
            self.first, self.last, self.groups = nn.Linear(3, 8 + 16 // groups), nn.Linear(8, 2), groups
            self.bias = nn.Parameter(torch.randn(1, 2, 5, 5)) if options.get("learns") else None

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.first(x).split([8, 8 // self.groups, 8 // self.groups], -1)
            q, k, v = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in (q, k, v))
            given = {name: value for name, value in options.items() if name != "learns"}
            if self.bias is not None:
                given["attn_mask"] = self.bias
            y = F.scaled_dot_product_attention(q, k, v, **given)
            return self.last(y.transpose(1, 2).flatten(2))

    return Attends


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "masked": {"attn_mask": torch.ones(5, 5).tril().bool()},
    "with an added mask": {"attn_mask": torch.linspace(-1, 1, 25).view(5, 5).double()},
    "of grouped queries": {"enable_gqa": True},
    "with a bias that learns": {"learns": True},
    "with dropout": {"dropout_p": 0.3},
}

CALLS = [
    *[_call(name, lambda x, name=name: _named(name)(SMOOTH[name](x)), (4,)) for name in SMOOTH],
    *[Case(f"activation {i}", _two(make), (5,)) for i, make in enumerate(ACTIVATIONS)],
    *[
        Case(f"attention {name}", lambda o=options: Seeded(_attends(**o)()), (5, 3))
        for name, options in ATTENTION.items()
    ],
    _call("products of two", lambda x: x * x.roll(1, 1) + x / (1 + x.square()) + 2 / (1 + x * x), (4,)),
    _call("products of matrices", lambda x: (x @ x.mT) @ x + torch.einsum("bij,bkj->bik", x, x) @ x, (3, 3)),
    _call("baddbmm", lambda x: torch.baddbmm(x, x, x, beta=0.5, alpha=2), (3, 3)),
    _call("addcmul of two", lambda x: torch.addcmul(x, x, x.roll(1, 1), value=0.3), (4,)),
    _call("matrix on the left", lambda x: SQUARE.__matmul__(x) + x.__rmatmul__(SQUARE), (4, 4)),
    _call(
        "powers", lambda x: x.pow(3) + x**2 + (x * x + 1) ** -0.5 + torch.float_power(x * x + 1, 0.5), (4,)
    ),
    _call("quotients", lambda x: 1 / (2 + x.square()) + x.square().add(1).__rtruediv__(2.0), (4,)),
    _call("logsumexp", lambda x: x.logsumexp(-1) + torch.logsumexp(x, (1, 2), keepdim=True)[:, 0], (3, 4)),
    _call("softmax", lambda x: x.softmax(1) + F.softmax(x, dim=-1) + torch.log_softmax(x, 1), (3, 4)),
    _call(
        "var, std", lambda x: x.var(-1) + x.std(1) + x.var((1, 2), correction=0, keepdim=True)[:, 0], (3, 3)
    ),
    _call(
        "norms",
        lambda x: x.norm(dim=-1) + torch.linalg.vector_norm(x, dim=1) + x.norm(p=2, dim=(1, 2))[:, None],
        (3, 3),
    ),
    _call("rms_norm", lambda x: F.rms_norm(x, (4,)) + F.rms_norm(x, (3, 4), eps=0.1), (3, 4)),
    _call("in place", lambda x: F.silu((2 * x).sin_(), inplace=True).cos_().mul_(3), (4,)),
    _call("written into after its use", lambda x: (a := 2 * x, a.tanh(), a.mul_(3))[1] + a, (4,)),
    _call("in place without a rule", lambda x: (0.5 * x).i0_() + x, (4,)),
    _call("parts", lambda x: torch.cat([*x.unbind(1)], 1) + x.hsplit(1)[0].flatten(1), (2, 3)),
    _call(
        "numbers alone", lambda x: torch.stack([r.sum().mean().amax() + r[0].sum() for r in x])[:, None], (3,)
    ),
    _call("abs", lambda x: x.abs() + abs(x) + torch.absolute(x), (4,)),
    _call("abs_", lambda x: (2 * x).abs_(), (4,)),
    _call("clamp", lambda x: x.clamp(-0.5, 0.7) + torch.clip(x, max=0.2), (4,)),
    _call("clamp by a tensor", lambda x: x.clamp(min=FACTOR - 1), (4,)),
    _call("clamp_min, clamp_max", lambda x: x.clamp_min(0.1) + x.clamp_max(-0.1), (4,)),
    _call("clamp_", lambda x: (x * 1).clamp_(-0.5, 0.7), (4,)),
    _call("functional relu6", lambda x: F.relu6(4 * x), (4,)),
    _call("maximum", lambda x: torch.maximum(x, -2 * x) + torch.max(x, x.flip(1)), (4,)),
    _call("maximum with a constant", lambda x: torch.maximum(x, FACTOR - 1), (4,)),
    _call("minimum", lambda x: torch.minimum(x, x.roll(1, 1)) + torch.fmin(FACTOR - 1, x), (4,)),
    _call("fmax", lambda x: torch.fmax(x, -x), (4,)),
    _call("maximum of ties", lambda x: torch.maximum(x, x), (4,)),
    _call("amax, amin", lambda x: x.amax((1, 2)) + x.amin(-1).sum(1), (3, 4)),
    _call("max over an axis", lambda x: x.max(dim=1).values + x.min(1, keepdim=True)[0][:, 0], (3, 4)),
    _call("sort", lambda x: x.sort(dim=-1, descending=True)[0], (5,)),
    _call("topk", lambda x: torch.topk(x, 2, dim=1)[0], (5,)),
    _call("kthvalue, median", lambda x: x.kthvalue(2)[0] + x.median(-1)[0], (2, 5)),
    _call("arithmetic", lambda x: 1 - (2 * x + x * FACTOR - 3) / 4 + (-x) - x / FACTOR, (4,)),
    _call("add with alpha", lambda x: torch.add(x, x, alpha=3) + torch.sub(FACTOR, x, alpha=2), (4,)),
    _call("broadcasting", lambda x: x[:, :1, None] + x[:, None, :] - FACTOR * x[:, :, None], (4,)),
    _call("rsub", lambda x: torch.rsub(x, 2 * x), (4,)),
    _call("in-place arithmetic", lambda x: x.clone().mul_(2).add_(x).sub_(1).div_(3).neg_(), (4,)),
    _call("a constant times x in place", lambda x: FACTOR.repeat(len(x), 1).mul_(x).add_(1) + x, (4,)),
    _call("contiguous", lambda x: x.mT.contiguous() + (+x).mT, (3, 4)),
    _call("t", lambda x: x.t().t(), (4,)),
    _call("sum", lambda x: x.sum(1) + x.sum(dim=(1,), keepdim=True)[:, 0] + x.sum(-2), (3, 4)),
    _call("mean", lambda x: x.mean((1, -1)) + torch.mean(x, 2, keepdim=True)[:, 0, 0], (3, 4)),
    _call("cumsum", lambda x: x.cumsum(1), (4,)),
    _call("where", lambda x: torch.where(x > 0, x, 0.1 * x) + torch.where(ONES, FACTOR, x), (4,)),
    _call("where with a number", lambda x: torch.where(x > 0, x, 0.0), (4,)),
    _call("masked_fill", lambda x: x.masked_fill(~MASK, 7.0), (4,)),
    _call("tril, triu", lambda x: x.tril() + x.triu(1), (3, 4)),
    _call(
        "views",
        lambda x: x.view(-1, 6).reshape(len(x), 3, 2).flatten(1).unsqueeze(2).squeeze(2),
        (6,),
    ),
    _call("view_as, ravel", lambda x: x.reshape(-1).view_as(x) + torch.ravel(x).reshape_as(x), (4,)),
    _call("permute", lambda x: x.permute(0, 2, 1).transpose(1, 2).movedim(1, 2), (3, 4)),
    _call("swapaxes", lambda x: x.swapaxes(1, 2).swapdims(1, 2).moveaxis(2, 1), (3, 4)),
    _call("mT", lambda x: x.mT.adjoint(), (3, 4)),
    _call("T", lambda x: x.T.T + x.H.H, (4,)),
    _call("mH", lambda x: x.mH, (3, 4)),
    _call("expand", lambda x: x[:, :1].expand(-1, 3, 4) + x[:, :1].expand_as(x), (3, 4)),
    _call("broadcast_to", lambda x: torch.broadcast_to(x[:, None], (len(x), 2, 4)), (4,)),
    _call("index", lambda x: torch.cat([x[:, 1:], x[..., ::2], x[:, PLACES], x[:, MASK]], 1), (4,)),
    _call(
        "index_select, gather",
        lambda x: x.index_select(1, PLACES) + x.gather(1, PLACES.expand(len(x), 4)),
        (4,),
    ),
    _call("take_along_dim", lambda x: x.take_along_dim(PLACES.expand(len(x), 4), 1), (4,)),
    _call("select, narrow", lambda x: x.select(1, 2) + x.narrow(1, 0, 1)[:, 0], (4,)),
    _call("diagonal", lambda x: x.diagonal(dim1=1, dim2=2), (3, 3)),
    _call("flip, roll, rot90", lambda x: x.flip(1).roll(1, 2) + x.rot90(2, (1, 2)), (3, 3)),
    _call("fliplr", lambda x: torch.fliplr(x), (4,)),
    _call("repeats", lambda x: x.repeat(1, 2) + x.tile(2) + x.repeat_interleave(2, 1), (4,)),
    _call("Tensor.unfold", lambda x: x.unfold(1, 3, 2), (7,)),
    _call("stack", lambda x: torch.stack([x, 2 * x, FACTOR.expand_as(x)], dim=1), (4,)),
    _call("concat", lambda x: torch.concat((x, FACTOR.expand_as(x), -x), dim=-1), (4,)),
    _call("concatenate", lambda x: torch.concatenate((x, -x), axis=1), (4,)),
    _call("chunk, split", lambda x: x.chunk(2, 1)[1] * 2 + torch.split(x, [1, 3], dim=-1)[0], (4,)),
    _call("tensor_split, unbind", lambda x: x.tensor_split(3, 1)[0] + x.unbind(1)[2][:, None], (6,)),
    _call("assignment", lambda x: _assigned(x), (4,)),
    _call("pad", lambda x: F.pad(x, (1, -1, 2, 0), value=3.0), (3, 4)),
    _call("constant_pad_nd", lambda x: torch.constant_pad_nd(x, (1, -1, 2, 0), 3.0), (3, 4)),
    _call("bicubic", lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), (2, 4, 3)),
    _call(
        "bilinear to a size",
        lambda x: F.interpolate(x, (5, 3), mode="bilinear", align_corners=True),
        (2, 4, 6),
    ),
    _call(
        "bilinear recomputed",
        lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=True),
        (2, 4, 6),
    ),
    _call("linear interpolation", lambda x: F.interpolate(x, scale_factor=2.5, mode="linear"), (2, 4)),
    _call("trilinear", lambda x: F.interpolate(x, 3, mode="trilinear"), (1, 2, 2, 4)),
    _call(
        "nearest-exact",
        lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
        (2, 4, 3),
    ),
    _call("matmul", lambda x: x @ FACTOR[:, None] + torch.mv(x, FACTOR)[:, None], (4,)),
    _call("bmm", lambda x: torch.bmm(x, torch.ones(len(x), 4, 2, dtype=x.dtype)), (3, 4)),
    _call("mm", lambda x: torch.mm(x, FACTOR.diag()) + torch.matmul(x, FACTOR.diag()), (4,)),
    _call("one tensor joined", lambda x: torch.cat([x], 1) + torch.stack([x])[0], (4,)),
    _call("Tensor.where", lambda x: x.where(x > 0, 0.0) + FACTOR.where(MASK, x), (4,)),
    _call("where broadcasting", lambda x: torch.where(MASK, x[:, :1], torch.zeros(4).double()), (4,)),
    _call("where, named", lambda x: torch.where(condition=x > 0, input=x, other=2 * x), (4,)),
    _call("axis and keepdims", lambda x: x.sum(axis=1) + x.mean(axis=1, keepdims=True)[:, 0], (3, 4)),
    _call("max along axis", lambda x: x.max(axis=1)[0] + x.amax(axis=1), (3, 4)),
    _call("named other", lambda x: torch.add(x, other=2 * x).mul(other=FACTOR), (4,)),
    _call("assigned with a leading axis", lambda x: _assigned_row(x), (4,)),
    _call("rounded to int", lambda x: x + x.to(torch.int64) + (x > 0).to(x), (4,)),
    _call("torch.batch_norm", lambda x: _plain_batch_norm(x), (4,)),
    _call("addcmul", lambda x: torch.addcmul(FACTOR, x, FACTOR, value=3), (4,)),
    _call("addcmul of a constant", lambda x: torch.addcmul(x[:, :1], FACTOR, FACTOR), (4,)),
    _call("addcmul to a larger shape", lambda x: torch.addcmul(FACTOR, FACTOR[:1], x[:, :1]), (4,)),
    _call("addmm", lambda x: torch.addmm(FACTOR, x, FACTOR.diag(), alpha=2), (4,)),
    _call("keyword arguments", lambda x: torch.relu(input=x) + torch.mul(input=x, other=FACTOR), (4,)),
    _call("max_pool with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 4, 4)),
    _call("straight through", lambda x: x + (x.round() - x).detach() + x * torch.sign(x), (4,)),
    _call("steps", lambda x: x * x.floor() + x.ceil() - x * x.trunc().sgn(), (4,)),
    _call("constants", lambda x: x * x.detach().sign() + torch.ones_like(x) + x.shape[1], (4,)),
]


def _assigned(x: Tensor) -> Tensor:
    y = 3 * x
    y[:, 0] = x[:, 1]
    y[:, 2] = 5.0
    return y


def _assigned_row(x: Tensor) -> Tensor:
    y = 3 * x
    y[:, 0] = x[:, 1][None]
    return y


def _plain_batch_norm(x: Tensor) -> Tensor:
    return torch.batch_norm(x, FACTOR, FACTOR, FACTOR, FACTOR, False, 0.1, 1e-5, False)


CASES = NETS + LAYERS + CALLS
