"""The method `adversarial`: the attack in a training step, and what it must leave alone."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from jacnorm.lab.attacks import perturbed
from jacnorm.lab.classification import start
from jacnorm.lab.cli import main
from jacnorm.lab.config import RunConfig
from jacnorm.lab.evaluate import adversarial
from jacnorm.lab.run_files import load_run
from jacnorm.lab.sweep.experiment import read_experiment
from jacnorm.lab.train import train

EPSILON = 32 / 255


def attacked(model, split, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return perturbed(model, split.images, split.labels, epsilon=EPSILON, steps=10, generator=generator)


def test_the_attack_raises_the_loss_and_stays_within_the_ball_and_the_pixels(digits):
    model = start(RunConfig(), digits, "cpu").model
    found = attacked(model, digits.test)
    change = found - digits.test.images
    assert change.abs().max() <= EPSILON + 1e-6
    assert change.abs().max() > 0.9 * EPSILON
    assert found.min() >= 0
    assert found.max() <= 1
    corner = (digits.test.images + EPSILON * change.sign().flip(0)).clamp(0, 1)  # the attack on another image
    with torch.no_grad():
        losses = [cross_entropy(model(x), digits.test.labels) for x in (digits.test.images, corner, found)]
    assert losses[0] < losses[2]
    assert losses[1] < losses[2]
    assert not torch.equal(found, attacked(model, digits.test, seed=1))
    assert torch.equal(found, attacked(model, digits.test))


def test_the_attack_leaves_the_network_as_it_was(digits):
    """Batch norm's statistics, gradients and the mode stay. Dropout is off, so torch's draws stay as well."""
    model = start(RunConfig(net="own_net:small"), digits, "cpu").model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    attacked(model, digits.test)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_it_makes_a_network_that_stands_the_attack_better(digits, tmp_path):
    found = {}
    for method in ("none", "adversarial"):
        config = RunConfig(method=method, epsilon=EPSILON, epochs=5, learning_rate=0.05)
        train(config, digits, tmp_path / method)
        model = load_run(tmp_path / method, config, digits)
        found[method] = adversarial(model, digits.test, "pgd", epsilons=(EPSILON,), iterations=(20,))
    assert found["adversarial"].worst[0][0] > found["none"].worst[0][0] + 0.05


def test_it_goes_by_the_command_line_and_in_sweeps(tmp_path, capsys):
    options = ["--epochs", "1", "--quiet", "--json", "--out", str(tmp_path / "run")]
    assert main(["train", "--method", "adversarial", "--epsilon", "32/255", *options]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["epsilon"] == EPSILON
    with pytest.raises(SystemExit):
        main(["train", "--method", "adversarial", "--epsilon", "far"])
    assert "argument --epsilon: invalid number value: 'far'" in capsys.readouterr().err
    file = tmp_path / "grid.toml"
    file.write_text('[grid]\nmethod = ["adversarial"]\nepsilon = ["8/255", "32/255"]\nseed = [0, 1]\n')
    assert {run.epsilon for run in read_experiment(file).runs} == {8 / 255, EPSILON}
