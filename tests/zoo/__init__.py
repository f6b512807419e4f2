"""Small look-alikes of the architectures that people use, since torchvision and timm cannot be imported here.

Each is spelled as its original is: in-place activations, functional and module forms, views and permutations.
"""

from __future__ import annotations

from functools import partial

from cases import Case, Seeded
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


def _layerwise(name: str, build, shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: lively(build()), shape)


def _autograd(name: str, build, shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: lively(build()), shape, engine="autograd")


def lively(model: nn.Module) -> nn.Module:
    """Norms and parameters that start at one and zero get values that can be mistaken; seeded dropout."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return Seeded(model)


ZOO = [
    _layerwise("ResNet", ResNet, (3, 12, 12)),
    _layerwise("ResNeXt", partial(ResNet, groups=2), (3, 12, 12)),
    _layerwise("DenseNet", DenseNet, IMAGE),
    _layerwise("MobileNetV2", MobileNetV2, IMAGE),
    _layerwise("ShuffleNetV2", ShuffleNetV2, IMAGE),
    _layerwise("SqueezeNet", SqueezeNet, (3, 14, 14)),
    _layerwise("VGG", VGG, IMAGE),
    _layerwise("R(2+1)D", VideoResNet, (2, 3, 6, 6)),
    _layerwise("Inception", GoogLeNet, IMAGE),
    _layerwise("timm ResNet", TimmResNet, IMAGE),
    _layerwise("CSPNet", CrossStage, IMAGE),
    _autograd("MobileNetV3", partial(EfficientNet, nn.Hardswish, nn.Hardsigmoid), IMAGE),
    _autograd("EfficientNet", EfficientNet, IMAGE),
    _autograd("ResNeSt", RadixSoftmax, IMAGE),
    _autograd("ECA, ConvNeXt V2", AttentiveNet, IMAGE),
    _autograd("ConvNeXt", ConvNeXt, IMAGE),
    _autograd("ViT", VisionTransformer, IMAGE),
    _autograd("timm ViT, fused attention", TimmViT, IMAGE),
    _autograd("timm ViT, softmax", partial(TimmViT, fused=False), IMAGE),
    _autograd("Swin", Swin, IMAGE),
    _autograd("MLP-Mixer", partial(Mixer, "mixer"), IMAGE),
    _autograd("ResMLP", partial(Mixer, "resmlp"), IMAGE),
    _layerwise("ResMLP of ReLUs", partial(Mixer, "resmlp relu"), IMAGE),
    _autograd("gMLP", partial(Mixer, "gmlp"), IMAGE),
    _autograd("PointNet", PointNet, (3, 6)),
    _layerwise("PointNet without transform", partial(PointNet, transform=False), (3, 6)),
    _autograd("DeepSets", DeepSets, (4, 3)),
    _layerwise("U-Net", partial(UNet, bilinear=False), (1, 7, 6)),
    _layerwise("U-Net, bilinear", partial(UNet, bilinear=True), (1, 6, 7)),
    _layerwise("DeepLab", DeepLab, (2, 7, 7)),
    _layerwise("feature pyramid", FeaturePyramid, (2, 8, 8)),
    _layerwise("denoiser", Denoiser, (1, 6, 6)),
    _autograd("denoiser, softplus", partial(Denoiser, nn.Softplus), (1, 6, 6)),
    _layerwise("super-resolution", SuperResolution, (1, 4, 4)),
    _layerwise("VQ-VAE", VectorQuantized, (6,)),
    _autograd("critic, instance norm", partial(Critic, partial(nn.InstanceNorm2d, affine=True)), SMALL),
    _autograd("critic, group norm", partial(Critic, partial(nn.GroupNorm, 2), flat=True), SMALL),
    _layerwise("critic, batch norm (B,)", partial(Critic, nn.BatchNorm2d, flat=True), SMALL),
    *(
        _layerwise(f"critic, {name}", partial(Critic, lambda _: nn.Identity(), wrap), SMALL)
        for name, wrap in WRAPPED.items()
    ),
    _layerwise("dueling Q net", Dueling, (5,)),
    _autograd("energy (B,)", Energy, (5,)),
    _autograd("NeRF", Coordinates, (3,)),
    _autograd("RealNVP", Coupling, (6,)),
    _autograd("RNN", partial(Recurrent, nn.RNN), SEQUENCE),
    _autograd("LSTM", partial(Recurrent, nn.LSTM, num_layers=2, dropout=0.2), SEQUENCE),
    _autograd("GRU, bidirectional", partial(Recurrent, nn.GRU, bidirectional=True), SEQUENCE),
    _autograd("GRU cell", partial(Cells, nn.GRUCell), SEQUENCE),
    _autograd("RNN cell of ReLUs", partial(Cells, nn.RNNCell, nonlinearity="relu"), SEQUENCE),
    _layerwise("temporal convolution", TemporalConv, SEQUENCE),
    _autograd("text transformer", TextTransformer, SEQUENCE),
    _autograd("state space", StateSpace, SEQUENCE),
    _autograd("highway, GLU", Highway, SEQUENCE),
]
