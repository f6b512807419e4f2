import pytest
import torch
from torch import nn

from jacnorm.lab.nets import VGG16, LeNet, NetError, Normalized, ResNet18, build


def parameters(net):
    return sum(p.numel() for p in net.parameters())


def test_the_papers_lenet():
    assert parameters(LeNet()) == 61_706
    assert LeNet()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert LeNet(3, 10, 32)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vgg16_has_thirteen_convolutions_and_five_pools():
    net = VGG16()
    count = [sum(isinstance(m, kind) for m in net) for kind in (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)]
    assert count == [13, 13, 5]
    assert (net[-1].in_features, net[-1].out_features) == (512, 10)
    assert VGG16(width=0.25)[-1].in_features == 128


def test_resnet18_has_the_usual_number_of_parameters():
    assert parameters(ResNet18()) == 11_173_962
    assert ResNet18(width=0.1)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_normalization_is_inside():
    net = Normalized(nn.Identity(), mean=(0.5, 0.2), std=(0.25, 0.1))
    x = torch.rand(3, 2, 4, 4)
    expected = torch.stack([(x[:, 0] - 0.5) / 0.25, (x[:, 1] - 0.2) / 0.1], 1)
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenet5", "choose mlp, lenet"),
        ("no_such_module:net", "No module named"),
        ("torch.nn:NoSuchNet", "NoSuchNet"),
        ("builtins:dict", "returned dict, not an nn.Module"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(NetError, match=message):
        build(name, (1, 28, 28), 10)


def test_lenet_says_what_it_cannot_take():
    with pytest.raises(NetError, match="12×12 or more"):
        build("lenet", (1, 8, 8), 10)
