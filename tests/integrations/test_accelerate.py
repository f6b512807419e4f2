"""accelerate needs no integration; here is the proof."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from hand import BATCH, COUNT, RATE, by_hand, small_net
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn


def trained(digits, folder, *, epochs, load=False, accumulate=3):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, project_dir=folder)
    net, penalty = small_net(), jn.SpectralPenalty(0.5)
    loader = DataLoader(TensorDataset(*digits, torch.arange(COUNT)), batch_size=BATCH)
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    accelerator.register_for_checkpointing(penalty)
    if load:
        accelerator.load_state(folder)
    for _ in range(epochs):
        for x, y, index in loader:
            with accelerator.accumulate(model):
                J = jn.linearize(model, x)
                accelerator.backward(F.cross_entropy(J.output, y) + penalty(J, index=index))
                optimizer.step()
                optimizer.zero_grad()
    accelerator.save_state(folder)
    return net.state_dict(), penalty.u


def test_the_weights_are_those_of_a_loop_by_hand_even_after_a_checkpoint(digits, tmp_path):
    net, penalty = small_net(), jn.SpectralPenalty(0.5)
    by_hand(net, digits, penalty, accumulate=3)
    expected = net.state_dict(), penalty.u
    torch.testing.assert_close(trained(digits, tmp_path / "whole", epochs=2), expected)
    trained(digits, tmp_path / "parts", epochs=1)
    torch.testing.assert_close(trained(digits, tmp_path / "parts", epochs=1, load=True), expected)
