from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from jacnorm.lab.nets import MLP, Normalized


@pytest.fixture(scope="session")
def trained(digits):
    """A small network that classifies most digits correctly, and is easy to attack."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Normalized(MLP((64, 48, 10)), digits.mean, digits.std)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
        for _ in range(150):
            index = torch.randint(len(digits.train), (128,))
            optimizer.zero_grad()
            cross_entropy(model(digits.train.images[index]), digits.train.labels[index]).backward()
            optimizer.step()
    model.zero_grad()
    return model.eval()


@pytest.fixture(scope="session")
def few(digits):
    return digits.test.take(torch.arange(120))


class Linear(nn.Module):
    """Logits W x + b of the pixels."""

    def __init__(self, weight, bias):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0])
        self.linear.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, images):
        return self.linear(images.flatten(1))


@pytest.fixture(scope="session")
def linear_three():
    """A linear classifier of 16 pixels with three classes, and images with their exact distances."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 16, generator=generator)
    model = Linear(weight, -weight.sum(1) / 2)  # at the grey image all logits are zero
    images = 0.3 + 0.4 * torch.rand(60, 1, 4, 4, generator=generator)
    with torch.no_grad():
        logits = model(images).double()
    labels = logits.argmax(1)
    gaps = logits.gather(1, labels[:, None]) - logits
    normals = (weight[labels][:, None] - weight).double()
    exact = (gaps / normals.norm(dim=2)).scatter(1, labels[:, None], torch.inf)
    return SimpleNamespace(
        model=model, images=images, labels=labels, gaps=gaps, normals=normals, exact=exact.amin(1).float()
    )
