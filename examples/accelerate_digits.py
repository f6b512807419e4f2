"""With Hugging Face's accelerate: linearize takes the prepared model, and backward takes loss plus penalty.

accelerate launch examples/accelerate_digits.py        # or python, for a single process
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn

EPOCHS, BATCH, TRAIN = 30, 32, 300


def digits():
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(x[:TRAIN], torch.tensor(data.target[:TRAIN]), torch.arange(TRAIN))


def train(penalty=None):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    loader = DataLoader(digits(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if penalty is not None:
        accelerator.register_for_checkpointing(penalty)  # its vectors go into save_state()
    for _ in range(EPOCHS):
        for x, y, index in loader:
            with accelerator.accumulate(model):
                J = jn.linearize(model, x)
                loss = F.cross_entropy(J.output, y)
                if penalty is not None:
                    loss = loss + penalty(J, index=index)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    with torch.no_grad():
        x, y, _ = digits().tensors
        J = jn.linearize(accelerator.unwrap_model(model), x)
        accuracy = (J.output.argmax(1) == y).float().mean().item()
        return jn.spectral_norm(J).sigma.mean().item(), accuracy


def main():
    plain, penalized = train(), train(jn.SpectralPenalty(weight=0.1))
    for name, (sigma, accuracy) in {"none": plain, "SpectralPenalty": penalized}.items():
        print(f"{name:<16} mean σ {sigma:.2f}  train accuracy {accuracy:.1%}")
    assert penalized[0] < 0.7 * plain[0]
    assert penalized[1] > 0.95


if __name__ == "__main__":
    main()
