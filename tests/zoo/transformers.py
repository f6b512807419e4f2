"""Vision transformers: attention in every spelling, class tokens, windows, relative positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import DropPath, LayerScale, Mlp


class EncoderBlock(nn.Module):
    """torchvision's, around nn.MultiheadAttention."""

    def __init__(self, dim: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(dim, 2, dropout=0.1, batch_first=True)
        self.dropout, self.mlp = nn.Dropout(0.1), Mlp(dim, 2 * dim)

    def forward(self, input: Tensor) -> Tensor:
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + input
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 6, kernel_size=4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 5, 6))
        self.layers = nn.Sequential(EncoderBlock(6), EncoderBlock(6))
        self.ln, self.head = nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        n, _, _, _ = x.shape
        x = self.conv_proj(x).reshape(n, 6, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


class FusedAttention(nn.Module):
    """timm's, with the fused kernel, or (`fused=False`) with softmax."""

    def __init__(self, dim: int, fused: bool):
        super().__init__()
        self.heads, self.scale, self.fused = 2, (dim // 2) ** -0.5, fused
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm = nn.LayerNorm(dim // 2)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = self.q_norm(q)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        else:
            attn = (q * self.scale) @ k.transpose(-2, -1)
            x = F.dropout(attn.softmax(dim=-1), 0.1, self.training) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class TimmBlock(nn.Module):
    def __init__(self, dim: int, fused: bool):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(dim), FusedAttention(dim, fused), LayerScale(dim)
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(dim), Mlp(dim, 2 * dim), LayerScale(dim, inplace=True)
        self.drop_path = DropPath(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class TimmViT(nn.Module):
    def __init__(self, fused: bool = True):
        super().__init__()
        self.proj = nn.Conv2d(3, 6, kernel_size=4, stride=4)
        self.cls_token, self.pos_embed = (
            nn.Parameter(torch.zeros(1, 1, 6)),
            nn.Parameter(torch.zeros(1, 5, 6)),
        )
        self.blocks = nn.Sequential(TimmBlock(6, fused), TimmBlock(6, fused))
        self.fc_norm, self.head = nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.fc_norm(x[:, 1:].mean(dim=1)))  # global_pool="avg"


class WindowAttention(nn.Module):
    """Swin's: windows of the image, rolled, with a learnt bias for each relative position."""

    def __init__(self, dim: int, window: int = 2):
        super().__init__()
        self.window, self.heads, self.scale = window, 2, (dim // 2) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, 2))
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"))
        coords = coords.flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
        relative[:, :, 0] *= 2 * window - 1
        self.register_buffer("relative_position_index", relative.sum(-1).flatten())

    def forward(self, input: Tensor) -> Tensor:
        B, H, W, C = input.shape
        w = self.window
        x = torch.roll(input, shifts=(-1, -1), dims=(1, 2))
        x = x.view(B, H // w, w, W // w, w, C)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, C)  # B·nW, w·w, C
        qkv = self.qkv(x).reshape(x.size(0), x.size(1), 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q * self.scale).matmul(k.transpose(-2, -1))
        bias = self.relative_position_bias_table[self.relative_position_index]
        attn = attn + bias.view(w * w, w * w, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        attn = attn.view(B, -1, self.heads, w * w, w * w) + self._mask(H, W).to(x)
        attn = F.softmax(attn.view(-1, self.heads, w * w, w * w), dim=-1)
        x = self.proj(attn.matmul(v).transpose(1, 2).reshape(-1, w * w, C))
        x = x.view(B, H // w, W // w, w, w, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return torch.roll(x, shifts=(1, 1), dims=(1, 2))

    def _mask(self, H: int, W: int) -> Tensor:
        """Windows that wrapped around the border do not look across it."""
        w = self.window
        areas = torch.zeros(H, W)
        areas[-1, :] += 1
        areas[:, -1] += 2
        areas = areas.view(H // w, w, W // w, w).permute(0, 2, 1, 3).reshape(-1, w * w)
        mask = areas.unsqueeze(1) - areas.unsqueeze(2)
        return mask.masked_fill(mask != 0, -100.0)[None, :, None]


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 2, 2)
        self.norm1, self.attn = nn.LayerNorm(4), WindowAttention(4)
        self.norm2, self.mlp = nn.LayerNorm(4), Mlp(4, 8)
        self.norm, self.reduction = nn.LayerNorm(16), nn.Linear(16, 6, bias=False)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        parts = [x[..., i::2, j::2, :] for j in (0, 1) for i in (0, 1)]  # patch merging
        x = self.reduction(self.norm(torch.cat(parts, -1)))
        return self.head(x.permute(0, 3, 1, 2).flatten(2).mean(2))
