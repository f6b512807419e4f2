"""Models of `transformers` and `diffusers`, tiny, of random weights, from configs: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from cases import Case
from torch import Tensor, nn

# A larger spread than usual, for a Jacobian that matters.
TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "initializer_range": 0.3}
ONE, TWO = {**TINY, "num_hidden_layers": 1}, {**TINY, "num_hidden_layers": 2}
SMALL_IMAGE = {"image_size": 8, "num_channels": 1, "num_labels": 3}


class Images(nn.Module):
    """The logits of an image classifier."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(pixel_values=x).logits


class Embedded(nn.Module):
    """The logits of a text classifier, from embeddings in place of tokens. The first sample is shorter."""

    def __init__(self, body: nn.Module, padded: bool = True):
        super().__init__()
        self.body, self.padded = body, padded

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.long)
        mask[0, -1] = 0 if self.padded else 1
        return self.body(inputs_embeds=x, attention_mask=mask).logits


class LastToken(nn.Module):
    """What a language model says next: logits of the last token."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(inputs_embeds=x, use_cache=False, logits_to_keep=1).logits[:, 0]


class Pooled(nn.Module):
    """CLIP's vector of an image, of length one, as it is compared with those of texts."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        embeds = self.body(pixel_values=x).image_embeds
        return embeds / embeds.norm(p=2, dim=-1, keepdim=True)


class Noise(nn.Module):
    """The noise that a diffusion model sees, at a time of each sample's own."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, torch.tensor([3, 40, 17])[: len(x)]).sample


def off_center(model: nn.Module) -> nn.Module:
    """Every parameter away from zero and one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _net(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: off_center(build()), shape)


def _no_dropout(config: Any) -> Any:
    for name, value in vars(config).items():
        if isinstance(value, float) and any(word in name for word in ("drop", "pdrop")):
            setattr(config, name, 0.0)
    return config


def _classifier(
    kind: str, wrap: Any, attention: str = "sdpa", ending: str = "ForImageClassification", **options: Any
) -> Any:
    def build() -> nn.Module:
        config = _no_dropout(getattr(hf, f"{kind}Config")(**options))
        config._attn_implementation = attention
        return wrap(getattr(hf, kind + ending)(config))

    return build


def _vit(attention: str) -> Any:
    return _classifier("ViT", Images, attention, patch_size=4, **SMALL_IMAGE, **TWO)


def _swin() -> nn.Module:
    sizes = {"patch_size": 1, "embed_dim": 4, "depths": [2, 1], "num_heads": [1, 2], "window_size": 2}
    options = {
        "image_size": 4,
        "num_channels": 1,
        "num_labels": 3,
        "mlp_ratio": 2.0,
        "initializer_range": 0.3,
    }
    return _classifier("Swin", Images, "sdpa", **sizes, **options)()


def _convnext() -> nn.Module:
    sizes = {"patch_size": 2, "hidden_sizes": [4, 6], "depths": [1, 1], "num_stages": 2}
    return _classifier("ConvNextV2", Images, "eager", initializer_range=0.3, **SMALL_IMAGE, **sizes)()


def _bert(attention: str) -> Any:
    options = {"vocab_size": 11, "max_position_embeddings": 8, "num_labels": 3}
    return _classifier("Bert", Embedded, attention, "ForSequenceClassification", **options, **TWO)


def _gpt2(attention: str) -> Any:
    options = {"vocab_size": 7, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return _classifier(
        "GPT2",
        LastToken,
        attention,
        "LMHeadModel",
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        **options,
    )


def _decoder(kind: str, attention: str = "sdpa") -> Any:
    options = {"vocab_size": 7, "max_position_embeddings": 8, "num_key_value_heads": 1}
    return _classifier(kind, LastToken, attention, "ForCausalLM", **options, **TWO)


def _falcon() -> nn.Module:
    """One head of keys and values for all queries, broadcast."""
    options = {"vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return _classifier("Falcon", LastToken, "sdpa", "ForCausalLM", initializer_range=0.3, **options)()


def _clip() -> nn.Module:
    options = {
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 1,
        "projection_dim": 5,
        "initializer_factor": 4.0,
    }
    return _classifier("CLIPVision", Pooled, "sdpa", "ModelWithProjection", **options, **ONE)()


def _unet() -> nn.Module:
    from diffusers import UNet2DModel  # takes seconds

    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    sizes = {
        "sample_size": 4,
        "in_channels": 1,
        "out_channels": 1,
        "block_out_channels": (4, 4),
        "layers_per_block": 1,
    }
    return Noise(UNet2DModel(**blocks, **sizes, norm_num_groups=2, attention_head_dim=2))


MODELS = [
    _net("ViT", _vit("sdpa"), (1, 8, 8)),
    _net("ViT, eager attention", _vit("eager"), (1, 8, 8)),
    _net("Swin", _swin, (1, 4, 4)),
    _net("ConvNeXt V2", _convnext, (1, 8, 8)),
    _net("BERT", _bert("sdpa"), (4, 8)),
    _net("BERT, eager attention", _bert("eager"), (4, 8)),
    _net("GPT-2", _gpt2("sdpa"), (4, 8)),
    _net("GPT-2, eager attention", _gpt2("eager"), (4, 8)),
    _net("Llama", _decoder("Llama"), (4, 8)),
    _net("Llama, eager attention", _decoder("Llama", "eager"), (4, 8)),
    _net("Qwen2", _decoder("Qwen2"), (4, 8)),
    _net("Falcon", _falcon, (4, 8)),
    _net("CLIP vision", _clip, (1, 8, 8)),
    _net("U-Net of diffusers", _unet, (1, 4, 4)),
]
# They compute some of it in float32, whatever they are given.
PARTLY_SINGLE = [
    case
    for case in MODELS
    if case.name in ("ViT, eager attention", "Llama", "Llama, eager attention", "Qwen2")
]
