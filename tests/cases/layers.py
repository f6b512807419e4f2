"""Layers: each module with the options that its rule reads, and activations between two linear layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, Seeded


def _seeded(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Seeded(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 4)))


def _two(layer: Callable[[], nn.Module], n: int = 6) -> Callable[[], nn.Module]:
    """The activation between two linear layers."""
    return lambda: nn.Sequential(nn.Linear(5, n), layer(), nn.Linear(n, 4))


ACTIVATIONS = {
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "silu in place": lambda: nn.SiLU(inplace=True),
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "softplus with a threshold": lambda: nn.Softplus(2, 1),
    "elu": nn.ELU,
    "elu in place": lambda: nn.ELU(0.7, inplace=True),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(1.3),
    "hardswish": nn.Hardswish,
    "softsign": nn.Softsign,
    "logsigmoid": nn.LogSigmoid,
    "tanhshrink": nn.Tanhshrink,
    "softmax": lambda: nn.Softmax(-1),
    "log_softmax": lambda: nn.LogSoftmax(-1),
    "softmin": lambda: nn.Softmin(-1),
}


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

LAYERS = [
    Case("conv1d", partial(nn.Conv1d, 2, 3, 3, stride=2, padding=1), (2, 8)),
    Case("conv2d stride 2", partial(nn.Conv2d, 2, 4, 3, stride=2), (2, 8, 7)),
    Case("conv2d stride 3 kernel 2", partial(nn.Conv2d, 2, 3, 2, stride=3), (2, 9, 7)),
    Case("conv2d dilated, groups", partial(nn.Conv2d, 4, 4, 3, dilation=2, groups=2), (4, 7, 6)),
    Case("conv2d same, even kernel", partial(nn.Conv2d, 2, 2, 4, padding="same"), (2, 6, 5)),
    Case("conv2d same, dilated", partial(nn.Conv2d, 2, 2, 3, padding="same", dilation=2), (2, 6, 5)),
    Case("conv2d valid", partial(nn.Conv2d, 2, 2, 3, padding="valid"), (2, 6, 5)),
    Case("conv2d (1, 2) sides", partial(nn.Conv2d, 2, 2, (1, 3), (2, 1), (0, 2)), (2, 6, 5)),
    Case("conv2d reflect", partial(nn.Conv2d, 2, 2, 3, padding=2, padding_mode="reflect"), (2, 5, 5)),
    Case("conv2d circular", partial(nn.Conv2d, 2, 2, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    Case(
        "conv2d replicate",
        partial(nn.Conv2d, 2, 2, 3, padding=1, padding_mode="replicate"),
        (2, 5, 5),
    ),
    Case("conv3d", partial(nn.Conv3d, 1, 2, 2, stride=2), (1, 4, 5, 4)),
    Case("conv_transpose1d", partial(nn.ConvTranspose1d, 2, 3, 3, 2), (2, 5)),
    Case(
        "conv_transpose2d",
        partial(nn.ConvTranspose2d, 4, 4, 3, 2, 1, output_padding=1, groups=2),
        (4, 4, 3),
    ),
    Case(
        "conv_transpose2d, output padding over stride",
        partial(nn.ConvTranspose2d, 2, 2, 2, 1, 0, output_padding=1, dilation=2),
        (2, 4, 3),
    ),
    Case("conv_transpose3d", partial(nn.ConvTranspose3d, 1, 1, 2, 2), (1, 2, 2, 2)),
    Case("max_pool1d", partial(nn.MaxPool1d, 3, 2, 1), (2, 8)),
    Case("max_pool2d overlapping", partial(nn.MaxPool2d, 3, 1, 1), (2, 5, 5)),
    Case("max_pool2d padded", partial(nn.MaxPool2d, 2, 2, 1), (2, 6, 5)),
    Case("max_pool2d ceil", partial(nn.MaxPool2d, 3, ceil_mode=True), (2, 7, 5)),
    Case("max_pool2d dilated, ceil", partial(nn.MaxPool2d, 2, 2, 1, 2, ceil_mode=True), (2, 7, 6)),
    Case("max_pool3d", partial(nn.MaxPool3d, 2), (1, 4, 4, 4)),
    Case("avg_pool1d", partial(nn.AvgPool1d, 3, 2, 1, count_include_pad=False), (2, 8)),
    Case("avg_pool2d", partial(nn.AvgPool2d, 3, 2, 1, ceil_mode=True), (2, 6, 7)),
    Case("avg_pool2d divisor", partial(nn.AvgPool2d, (2, 3), 1, divisor_override=5), (2, 5, 5)),
    Case("avg_pool3d", partial(nn.AvgPool3d, 2, 1), (1, 3, 4, 3)),
    Case("adaptive_avg_pool1d", partial(nn.AdaptiveAvgPool1d, 3), (2, 7)),
    Case("adaptive_avg_pool2d", partial(nn.AdaptiveAvgPool2d, (3, 2)), (2, 7, 5)),
    Case("adaptive_avg_pool2d 1", partial(nn.AdaptiveAvgPool2d, 1), (2, 4, 4)),
    Case("adaptive_avg_pool3d", partial(nn.AdaptiveAvgPool3d, 2), (1, 3, 4, 5)),
    Case("adaptive_max_pool1d", partial(nn.AdaptiveMaxPool1d, 3), (2, 7)),
    Case("adaptive_max_pool2d", partial(nn.AdaptiveMaxPool2d, (3, None)), (2, 7, 5)),
    Case("adaptive_max_pool3d", partial(nn.AdaptiveMaxPool3d, 2), (1, 3, 4, 5)),
    Case("relu", _two(nn.ReLU), (5,)),
    Case("relu in place", _two(lambda: nn.ReLU(inplace=True)), (5,)),
    Case("leaky_relu", _two(lambda: nn.LeakyReLU(0.2)), (5,)),
    Case("leaky_relu in place", _two(lambda: nn.LeakyReLU(0.2, inplace=True)), (5,)),
    Case("prelu", _two(lambda: nn.PReLU(6)), (5,)),
    Case("prelu on images", lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.PReLU(3)), (2, 3, 3)),
    Case("rrelu", _two(nn.RReLU), (5,)),
    Case("rrelu", _seeded(nn.RReLU()), (6,), training=True),
    Case("relu6", _two(nn.ReLU6), (5,)),
    Case("hardtanh", _two(lambda: nn.Hardtanh(-0.5, 0.3)), (5,)),
    Case("hardtanh in place", _two(lambda: nn.Hardtanh(-0.5, 0.3, inplace=True)), (5,)),
    Case("hardsigmoid", _two(nn.Hardsigmoid), (5,)),
    Case("threshold", _two(lambda: nn.Threshold(0.1, 20.0)), (5,)),
    Case("hardshrink", _two(nn.Hardshrink), (5,)),
    Case("softshrink", _two(nn.Softshrink), (5,)),
    Case("dropout", _seeded(nn.Dropout(0.4)), (6,), training=True),
    Case("dropout in place", _seeded(nn.Dropout(0.4, inplace=True)), (6,), training=True),
    Case("dropout", _seeded(nn.Dropout(0.4)), (6,)),
    Case("dropout1d", lambda: Seeded(nn.Dropout1d(0.4)), (6, 3), training=True),
    Case("dropout2d", lambda: Seeded(nn.Dropout2d(0.4)), (6, 3, 2), training=True),
    Case("dropout3d", lambda: Seeded(nn.Dropout3d(0.4)), (6, 1, 3, 2), training=True),
    Case("alpha_dropout", _seeded(nn.AlphaDropout(0.4)), (6,), training=True),
    Case(
        "feature_alpha_dropout",
        lambda: Seeded(nn.FeatureAlphaDropout(0.4)),
        (6, 3),
        training=True,
    ),
    Case("batch_norm 1d", lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), (5,)),
    Case("batch_norm 3d", lambda: nn.BatchNorm3d(2), (2, 2, 3, 2)),
    Case("batch_norm no affine", lambda: nn.BatchNorm2d(2, affine=False), (2, 3, 2)),
    Case("layer_norm", _two(lambda: nn.LayerNorm(6)), (5,)),
    Case("group_norm", lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    Case("normalize", lambda: lambda x: F.normalize(x, dim=1), (5,)),
    Case("instance_norm", partial(nn.InstanceNorm2d, 2, affine=True), (2, 3, 3)),
    Case("fold, unfold", lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 5), 2)), (2, 4, 5)),
    Case("pixel shuffles", lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), (4, 2, 3)),
    Case("channel shuffle", lambda: nn.ChannelShuffle(2), (4, 2, 3)),
    Case("unflatten", lambda: nn.Unflatten(1, (2, 3)), (6,)),
    *[Case(name, _two(make), (5,)) for name, make in ACTIVATIONS.items()],
    *[
        Case(f"attention {name}", lambda o=options: Seeded(_attends(**o)()), (5, 3))
        for name, options in ATTENTION.items()
    ],
]
