"""Models as people have them: adapters on a frozen base, tied weights, parametrizations, averaged copies.

Training takes a loss and penalties; the gradient is that of plain autograd on the dense Jacobian, in float64.
"""

import pytest
import torch
import torch.nn.functional as F
from oracles import arrived, assert_near, dense, gradient, mean_sigma, mean_square
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import jacnorm as jn
from jacnorm.lab.bench.nets import Blocks

CLASSES = 4


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(24, 10), nn.GELU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 4)
    )


def blocks():
    return Blocks(6, 2, 2, CLASSES)


def with_adapters(base, targets, **options):
    """Both factors of an adapter start at random: with a zero in them half of the gradient is zero."""
    config = LoraConfig(r=2, target_modules=targets, init_lora_weights=False, **options)
    return get_peft_model(base, config)


class TiedEncoder(nn.Module):
    """Decodes with the transposed weight of its encoder."""

    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(24, 10) / 5), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(x.flatten(1) @ self.weight) @ self.weight.T)


def twice():
    """One layer in two places, and one parameter in two layers."""
    model = mlp()
    model[3].weight = nn.Linear(10, 10).weight
    return nn.Sequential(*model[:4], model[3], nn.Tanh(), tied(model[3]), model[5])


def tied(layer):
    other = nn.Linear(10, 10)
    other.weight = layer.weight
    return other


def parametrized(parametrization, **options):
    model = mlp()
    for i in (1, 3):
        parametrization(model[i], **options)
    return model


class Cached(nn.Module):
    """Parametrized weights are computed once for the whole pass."""

    def __init__(self):
        super().__init__()
        self.body = parametrized(orthogonal)

    def forward(self, x):
        with parametrize.cached():
            return self.body(x) + self.body(-x)


MODELS = {
    "LoRA": lambda: with_adapters(mlp(), ["1", "3"]),
    "LoRA, a head that learns": lambda: with_adapters(mlp(), ["1", "3"], modules_to_save=["5"]),
    "LoRA of a transformer": lambda: with_adapters(blocks(), ["qkv", "out", "wide", "narrow"]),
    "DoRA": lambda: with_adapters(mlp(), ["1", "3"], use_dora=True),
    "tied encoder": TiedEncoder,
    "one layer twice": twice,
    "orthogonal": lambda: parametrized(orthogonal),
    "orthogonal by Householder": lambda: parametrized(orthogonal, orthogonal_map="householder"),
    "weight norm": lambda: parametrized(weight_norm),
    "spectral norm": lambda: parametrized(spectral_norm),
    "cached": Cached,
    "averaged": lambda: AveragedModel(mlp()),
}
# As many rounds as there are outputs make the estimate exact.
PENALTIES = {
    "analytic": (lambda: jn.AnalyticPenalty(0.5), mean_sigma),
    "spectral": (lambda: jn.SpectralPenalty(0.5, iterations=CLASSES + 1), mean_sigma),
    "frobenius": (lambda: jn.FrobeniusPenalty(0.5, "all"), mean_square),
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", MODELS)
def test_training_has_the_gradients_of_a_plain_computation(kind, penalty):
    torch.manual_seed(0)
    model = MODELS[kind]().double()
    make, quantity = PENALTIES[penalty]
    term, labels = make(), torch.arange(3)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.005)
    for _ in range(3):  # examined, known, examined again
        x = torch.randn(3, 4, 6, dtype=torch.float64)
        expected = gradient(0.5 * quantity(dense(model, x)), model)
        optimizer.zero_grad()
        J = jn.linearize(model, x)
        (F.cross_entropy(J.output, labels) + term(J)).backward(retain_graph=True)
        assert J.engine == "layerwise"
        assert_near(arrived(model), expected + of_the_loss(J, labels, model), 1e-8)
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        optimizer.step()


def of_the_loss(J, labels, model):
    return gradient(F.cross_entropy(J.output, labels), model)


def test_adapters_alone_learn_and_can_be_merged():
    model = with_adapters(mlp(), ["1", "3"]).double()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names
    assert all("lora" in name for name in names)
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    before = jn.linearize(model, x).dense()
    merged = model.merge_and_unload()
    torch.testing.assert_close(jn.linearize(merged, x).dense(), before)
    torch.testing.assert_close(dense(merged, x), before)


def test_a_student_beside_its_moving_average():
    """‖J − A‖ for the average A of past weights, which no gradient goes to."""
    torch.manual_seed(0)
    model, penalty = mlp().double(), jn.AnalyticPenalty(1.0)
    average = AveragedModel(mlp().double(), multi_avg_fn=get_ema_multi_avg_fn(0.9))  # of other weights before
    average.update_parameters(average.module)
    average.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(3, 4, 6, dtype=torch.float64)
        A = dense(average, x).detach()
        expected = gradient(mean_sigma(dense(model, x) - A), model)
        teacher = jn.linearize(average, x)
        torch.testing.assert_close(teacher.dense(), A)
        optimizer.zero_grad()
        penalty(jn.linearize(model, x).minus(teacher)).backward()
        assert_near(arrived(model), expected, 1e-8)
        assert all(p.grad is None for p in average.parameters())
        optimizer.step()
        average.update_parameters(model)
