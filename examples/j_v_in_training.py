"""Losses that contain J v: a MeanFlow step and a consistency step of a small diffusion transformer.

Each step is taken in two ways, with a detached target and with gradients that flow through J v. The script
compares both with torch.func.jvp.

python examples/j_v_in_training.py
"""

import copy
import time
from contextlib import contextmanager
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jacnorm as jn
from jacnorm.pytorch.live import Live

BATCH, SIDE, PATCH, ROUNDS = 4, 32, 4, 5
COLUMN = (-1, 1, 1, 1)


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm with scale, shift and gate from the times (adaLN)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.adapt = heads, nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h, when):
        scale1, shift1, gate1, scale2, shift2, gate2 = self.adapt(when)[:, None].chunk(6, -1)
        h = h + gate1 * self.attention(self.norm1(h) * (1 + scale1) + shift1)
        return h + gate2 * self.mlp(self.norm2(h) * (1 + scale2) + shift2)

    def attention(self, h):
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DiT(nn.Module):
    """Images and one or two times in, images out."""

    def __init__(self, width=128, heads=4, depth=3, side=SIDE):
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((side // PATCH) ** 2, width) / 10)
        self.register_buffer("frequencies", torch.logspace(0, 1, width // 2))
        self.embed = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.back = nn.ConvTranspose2d(width, 3, PATCH, PATCH)

    def forward(self, z, *times):
        when = sum(self.embed(self.waves(t)) for t in times)
        h = self.patches(z)
        tokens = h.flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            tokens = block(tokens, when)
        return self.back(self.norm(tokens).transpose(1, 2).reshape(h.shape))

    def waves(self, t):
        angles = t[:, None] * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], 1)


def ours(model, inputs, tangents, flowing):
    J = jn.linearize(model, inputs)  # runs the model once
    with torch.set_grad_enabled(flowing):
        return J.output, J.jvp(tangents)


def torch_func(model, inputs, tangents, flowing):
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no forward derivative
        output, product = torch.func.jvp(model, inputs, tangents)
    return output, product if flowing else product.detach()


def flow_matching(model, data, noise, r, t):
    """The plain step that the others are compared with."""
    z = (1 - t.view(COLUMN)) * data + t.view(COLUMN) * noise
    return F.mse_loss(model(z, r, t), noise - data)


def mean_flow(way, flowing, model, data, noise, r, t):
    """u(z, r, t) is the mean velocity from r to t: u = v − (t − r) du/dt, with du/dt = J (v, 0, 1)."""
    z, v = (1 - t.view(COLUMN)) * data + t.view(COLUMN) * noise, noise - data
    u, du_dt = way(model, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)), flowing)
    return F.mse_loss(u, v - (t - r).view(COLUMN) * du_dt)


def consistency(way, flowing, model, data, noise, _, t):
    """f(x, t) = cos t · x − sin t · F(x, t) is to be the same all along a path: df/dt = 0."""
    cos, sin = t.cos().view(COLUMN), t.sin().view(COLUMN)
    x, v = cos * data + sin * noise, cos * noise - sin * data
    out, product = way(model, (x, t), (v, torch.ones_like(t)), flowing)
    f, df_dt = cos * x - sin * out, cos * v - sin * x - cos * out - sin * product
    if flowing:
        return df_dt.square().mean()
    return F.mse_loss(f, (f - df_dt).detach())  # the gradient is that of ⟨f, df/dt⟩, df/dt held fixed


LOSSES = {"MeanFlow": mean_flow, "consistency": consistency}
WAYS = {"jacnorm": ours, "torch.func.jvp": torch_func}
STEPS = {"plain": flow_matching} | {
    (name, way, flowing): lambda *batch, loss=loss, take=take, flowing=flowing: loss(take, flowing, *batch)
    for name, loss in LOSSES.items()
    for flowing in (False, True)
    for way, take in WAYS.items()
}


def batch(**options):
    data, noise = torch.randn(2, BATCH, 3, SIDE, SIDE, **options)
    r, t = torch.rand(2, BATCH, **options).sort(0)[0]
    return data, noise, r, t


def cost(model, samples):
    """Of a step, over the plain one: they take turns, and the median over rounds counts."""
    seconds = {name: [] for name in STEPS}
    for _ in range(ROUNDS + 2):  # in the first two the model is verified
        for name, loss in STEPS.items():
            begin = time.thread_time()
            loss(model, *samples).backward()
            seconds[name].append(time.thread_time() - begin)
    return {name: median(seconds[name][2:]) / median(seconds["plain"][2:]) for name in STEPS}


def memory(model, samples):
    """The tensors that live at most in a step, over those of the plain one."""
    found = {}
    for name, loss in STEPS.items():
        with Live([*model.parameters(), *(p.grad for p in model.parameters()), *model.buffers()]) as live:
            loss(model, *samples).backward()
        found[name] = live.most
    return {name: most / found["plain"] for name, most in found.items()}


@contextmanager
def moved(model, direction, length):
    """The model with its weights moved so far."""
    weights = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p, d in zip(model.parameters(), direction, strict=True):
            p.add_(d, alpha=length)
    yield model
    model.load_state_dict(weights)


def slopes(loss_name):
    """Of a loss through which gradients flow, along one direction of the weights, in float64: what finite
    differences give, and what each way gives."""
    model, samples = DiT(32, 2, 2).double(), batch(dtype=torch.float64)
    direction = [torch.randn_like(p) for p in model.parameters()]

    def loss(way, net=model):
        return LOSSES[loss_name](WAYS[way], True, net, *samples)

    values = []
    for length in (1e-5, -1e-5):
        with moved(model, direction, length) as net:
            values.append(loss("torch.func.jvp", net).item())
    found = {"finite differences": (values[0] - values[1]) / 2e-5}
    for way in WAYS:
        gradient = torch.autograd.grad(loss(way), list(model.parameters()))
        found[way] = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True)).item()
    return found


def main():
    torch.manual_seed(0)
    model, samples = DiT(), batch()
    costs, memories = cost(model, samples), memory(model, samples)
    print("In plain steps:                          cost  memory")
    for name in list(STEPS)[1:]:
        loss, way, flowing = name
        kind = f"{loss}, {'flowing' if flowing else 'detached'}, {way}"
        print(f"{kind:40s} {costs[name]:4.2f}    {memories[name]:4.2f}")
    for loss in LOSSES:
        found = slopes(loss)
        print(f"Slope of the {loss} loss:", ", ".join(f"{way} {slope:.6g}" for way, slope in found.items()))
        expected = found["finite differences"]
        assert abs(found["jacnorm"] - expected) < 1e-5 * abs(expected)
    for loss in LOSSES:
        assert memories[loss, "jacnorm", False] < memories[loss, "torch.func.jvp", False]
        assert memories[loss, "jacnorm", True] < memories[loss, "torch.func.jvp", True]


if __name__ == "__main__":
    main()
