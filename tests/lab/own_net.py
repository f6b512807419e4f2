"""A user's own network, for `--net own_net:small`."""

from torch import nn


def small():
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10)),
    )


def smooth():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 10))


def not_a_net():
    return 3


def needs_arguments(size):
    return nn.Linear(size, 10)


def four_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def for_larger_images():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def raises():
    raise RuntimeError("no weights in the cellar")


def a_pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x.flatten(1), x

    return Pair()
