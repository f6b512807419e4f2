import pytest
import torch

from jacnorm.lab.optimizers import SGD


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_it_steps_as_pytorchs_does(momentum, dtype):
    """Also for a parameter that has no gradient at first, and none in some steps."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(5, dtype=dtype)) for _ in range(2)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    sgd = SGD(ours, 0.1, momentum, weight_decay=0.1)
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=0.1)
    for both in (False, True, True, False, True):
        sgd.zero_grad()
        reference.zero_grad()
        for mine, other in list(zip(ours, theirs, strict=True))[: 2 if both else 1]:
            mine.grad = torch.randn(5, dtype=dtype)
            other.grad = mine.grad.clone()
        sgd.step()
        reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_without_gradients_nothing_moves():
    p = torch.nn.Parameter(torch.ones(2))
    SGD([p], 0.1, 0.8, weight_decay=0.0).step()
    assert torch.equal(p, torch.ones(2))
