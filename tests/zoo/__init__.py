"""Small look-alikes of the architectures that people use, since torchvision and timm cannot be imported here.

Each is spelled as its original is: in-place activations, functional and module forms, views and permutations.
"""

from __future__ import annotations

from functools import partial

from cases import Case, lively
from torch import nn

from .convnets import VGG, DenseNet, MobileNetV2, ResNet, ShuffleNetV2, SqueezeNet, VideoResNet
from .critics import WRAPPED, Coordinates, Coupling, Critic, Dueling, Energy
from .gated import AttentiveNet, ConvNeXt, EfficientNet
from .images import DeepLab, Denoiser, FeaturePyramid, SuperResolution, UNet, VectorQuantized
from .inception import GoogLeNet
from .mixers import DeepSets, Mixer, PointNet
from .sequences import Cells, Highway, Recurrent, StateSpace, TemporalConv, TextTransformer
from .timmlike import CrossStage, RadixSoftmax, TimmResNet
from .transformers import Swin, TimmViT, VisionTransformer

IMAGE, SMALL, SEQUENCE = (3, 8, 8), (2, 8, 8), (5, 3)


def _net(name: str, build, shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: lively(build()), shape)


ZOO = [
    _net("ResNet", ResNet, (3, 12, 12)),
    _net("ResNeXt", partial(ResNet, groups=2), (3, 12, 12)),
    _net("DenseNet", DenseNet, IMAGE),
    _net("MobileNetV2", MobileNetV2, IMAGE),
    _net("ShuffleNetV2", ShuffleNetV2, IMAGE),
    _net("SqueezeNet", SqueezeNet, (3, 14, 14)),
    _net("VGG", VGG, IMAGE),
    _net("R(2+1)D", VideoResNet, (2, 3, 6, 6)),
    _net("Inception", GoogLeNet, IMAGE),
    _net("timm ResNet", TimmResNet, IMAGE),
    _net("CSPNet", CrossStage, IMAGE),
    _net("MobileNetV3", partial(EfficientNet, nn.Hardswish, nn.Hardsigmoid), IMAGE),
    _net("EfficientNet", EfficientNet, IMAGE),
    _net("ResNeSt", RadixSoftmax, IMAGE),
    _net("ECA, ConvNeXt V2", AttentiveNet, IMAGE),
    _net("ConvNeXt", ConvNeXt, IMAGE),
    _net("ViT", VisionTransformer, IMAGE),
    _net("timm ViT, fused attention", TimmViT, IMAGE),
    _net("timm ViT, softmax", partial(TimmViT, fused=False), IMAGE),
    _net("Swin", Swin, IMAGE),
    _net("MLP-Mixer", partial(Mixer, "mixer"), IMAGE),
    _net("ResMLP", partial(Mixer, "resmlp"), IMAGE),
    _net("ResMLP of ReLUs", partial(Mixer, "resmlp relu"), IMAGE),
    _net("gMLP", partial(Mixer, "gmlp"), IMAGE),
    _net("PointNet", PointNet, (3, 6)),
    _net("PointNet without transform", partial(PointNet, transform=False), (3, 6)),
    _net("DeepSets", DeepSets, (4, 3)),
    _net("U-Net", partial(UNet, bilinear=False), (1, 7, 6)),
    _net("U-Net, bilinear", partial(UNet, bilinear=True), (1, 6, 7)),
    _net("DeepLab", DeepLab, (2, 7, 7)),
    _net("feature pyramid", FeaturePyramid, (2, 8, 8)),
    _net("denoiser", Denoiser, (1, 6, 6)),
    _net("denoiser, softplus", partial(Denoiser, nn.Softplus), (1, 6, 6)),
    _net("super-resolution", SuperResolution, (1, 4, 4)),
    _net("VQ-VAE", VectorQuantized, (6,)),
    _net("critic, instance norm", partial(Critic, partial(nn.InstanceNorm2d, affine=True)), SMALL),
    _net("critic, group norm", partial(Critic, partial(nn.GroupNorm, 2), flat=True), SMALL),
    _net("critic, batch norm (B,)", partial(Critic, nn.BatchNorm2d, flat=True), SMALL),
    *(
        _net(f"critic, {name}", partial(Critic, lambda _: nn.Identity(), wrap), SMALL)
        for name, wrap in WRAPPED.items()
    ),
    _net("dueling Q net", Dueling, (5,)),
    _net("energy (B,)", Energy, (5,)),
    _net("NeRF", Coordinates, (3,)),
    _net("RealNVP", Coupling, (6,)),
    _net("RNN", partial(Recurrent, nn.RNN), SEQUENCE),
    _net("LSTM", partial(Recurrent, nn.LSTM, num_layers=2, dropout=0.2), SEQUENCE),
    _net("GRU, bidirectional", partial(Recurrent, nn.GRU, bidirectional=True), SEQUENCE),
    _net("GRU cell", partial(Cells, nn.GRUCell), SEQUENCE),
    _net("RNN cell of ReLUs", partial(Cells, nn.RNNCell, nonlinearity="relu"), SEQUENCE),
    _net("temporal convolution", TemporalConv, SEQUENCE),
    _net("text transformer", TextTransformer, SEQUENCE),
    _net("state space", StateSpace, SEQUENCE),
    _net("highway, GLU", Highway, SEQUENCE),
]
