"""Each task: its loss, the layers that it changes, and the settings that it refuses."""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_tasks import SMALL, settings, trained

from jacnorm.lab.cli import main
from jacnorm.lab.config import RunConfig, make_config
from jacnorm.lab.run import DivergedError, task_of
from jacnorm.lab.settings import ConfigError
from jacnorm.lab.sweep.experiment import read_experiment
from jacnorm.lab.sweep.run import check_names


def started(config, tmp_path):
    task = task_of(config)
    return task.start(config, task.load(config, None, tmp_path), "cpu")


def by_double_backward(critic, x, h):
    """The same by double backward, as people write it."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return h(slope.flatten(1).norm(dim=1)).mean()


LOSSES = {
    "none": lambda s: 0 * s,
    "wgan-gp": lambda s: 10 * (s - 1) ** 2,
    "r1": lambda s: 10 * s**2,
    "spectral": lambda s: 10 * s,
}


@pytest.mark.parametrize("method", LOSSES)
def test_the_critics_loss_is_as_people_write_it(method, tmp_path):
    run = started(settings("gan", method=method, weight=10.0), tmp_path)
    run.draw.manual_seed(1)
    with torch.no_grad():
        real, made = run.real(16), run.made(16)
    place = run.draw.get_state()
    loss, penalty = run.critic_loss(real, made)
    ours = torch.autograd.grad(loss + penalty, list(run.critic.parameters()))
    run.draw.set_state(place)
    share = torch.rand(16, 1, 1, 1, generator=run.draw)
    x = real if method == "r1" else made + share * (real - made)
    if method == "wgan-gp":
        plain = run.critic(made).mean() - run.critic(real).mean()
    else:
        ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
        plain = F.binary_cross_entropy_with_logits(run.critic(real), ones)
        plain = plain + F.binary_cross_entropy_with_logits(run.critic(made), zeros)
    expected = by_double_backward(run.critic, x, LOSSES[method])
    theirs = torch.autograd.grad(plain + expected, list(run.critic.parameters()))
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-9)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-6)


def test_a_step_changes_both_networks_and_neither_more_than_its_own(tmp_path):
    run = started(settings("gan"), tmp_path)
    run.draw.manual_seed(1)
    before = [p.clone() for p in (*run.generator.parameters(), *run.critic.parameters())]
    run.step()
    after = [*run.generator.parameters(), *run.critic.parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(p.requires_grad for p in run.critic.parameters())


def test_stacked_images_have_three_channels_and_a_thousand_modes(tmp_path):
    run = started(settings("gan", stacked=True), tmp_path)
    assert run.real(5).shape == run.made(5).shape == (5, 3, 8, 8)
    assert run.reference.modes == 1000
    assert not torch.equal(run.real(5)[:, 0], run.real(5)[:, 1])


def test_samples_are_kept_as_a_picture(tmp_path):
    trained(settings("gan", epochs=1), tmp_path / "run")
    assert (tmp_path / "run" / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_the_target_network_has_the_vectors_of_the_weights_that_it_got(tmp_path):
    run = started(settings("dqn", method="spectral-norm"), tmp_path)
    layers = [
        [layer for layer in net.q_net if isinstance(layer, torch.nn.Linear)]
        for net in (run.model.q_net, run.model.q_net_target)
    ]
    assert [hasattr(layer, "parametrizations") for layer in layers[0]] == [False, True, False]
    result = trained(settings("dqn", method="spectral-norm", target_every=1), tmp_path / "run")
    assert math.isfinite(result["test"]["return"])
    run.model.learning_starts = 0
    run.model.target_update_interval = 1
    run.learn(60, [])
    run.model._on_step()  # copies
    x = torch.randn(7, 4)
    run.model.policy.set_training_mode(False)
    torch.testing.assert_close(run.model.q_net_target(x), run.model.q_net(x))
    weight = run.model.q_net_target.q_net[2].weight
    assert torch.linalg.matrix_norm(weight.detach(), 2).item() == pytest.approx(1, rel=0.1)


def test_exploration_falls_over_all_epochs(tmp_path):
    run = started(settings("dqn", explore=0.5, explore_to=0.1), tmp_path)
    found = []
    for steps in (0, 90, 180, 360):
        run.model.num_timesteps = steps
        found.append(run.exploration())
    assert found == pytest.approx([1, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("environments", [1, 4])
def test_side_by_side_there_are_as_many_updates(environments, tmp_path):
    run = started(settings("dqn", environments=environments, warmup=0), tmp_path)
    assert run.model.env.num_envs == environments
    run.learn(160, [])
    assert run.updates == 160 // 8 * 2
    assert run.model.replay_buffer.size() * environments == 160


def test_a_policy_is_judged_at_the_levels_of_noise_that_are_asked_for(tmp_path):
    config = settings("policy", noise="0.3 1e-9", epochs=1)
    test = trained(config, tmp_path / "run")["test"]
    assert {name for name in test if "noise" in name} == {
        f"{of}_in_noise_{level}" for of in ("return", "fluctuation") for level in ("0.3", "1e-09")
    }
    assert set(config.quantities) - {"milliseconds_per_update"} <= set(test)
    assert test["return_in_noise_1e-09"] != test["return_in_noise_0.3"]
    with pytest.raises(ConfigError, match=r"noise = .*0\.1 much.*: it must be one number above 0 or more"):
        settings("policy", noise="0.1 much")


@pytest.mark.parametrize("environment", ["MountainCarContinuous-v0", "BipedalWalker-v3"])
def test_other_environments_can_be_trained(environment, tmp_path):
    config = settings("policy", environment=environment, epochs=1, episodes=1, noise="0.1")
    test = trained(config, tmp_path / "run")["test"]
    assert all(math.isfinite(value) for value in test.values())
    assert test["sigma"] > 0


def test_modes_are_told_of_stacked_images():
    assert "modes" in settings("gan", stacked=True).quantities
    assert "modes" not in settings("gan").quantities


def test_weight_decay_and_adams_epsilon_are_the_optimizers(tmp_path):
    run = started(settings("dqn", method="weight-decay", weight=0.3, adam_epsilon=1e-4), tmp_path)
    (group,) = run.model.policy.optimizer.param_groups
    assert (group["weight_decay"], group["eps"]) == (0.3, 1e-4)


def test_caps_is_its_formula(tmp_path):
    run = started(settings("policy", method="caps", weight=0.5, spread=0.1), tmp_path)
    (caps,) = run.additions
    caps.init_callback(run.model)
    a, b = torch.randn(1, 3), torch.randn(1, 3)
    caps._pairs = a, b
    x = torch.randn(8, 3)
    torch.manual_seed(0)
    found = caps.value(x)
    torch.manual_seed(0)
    torch.randint(1, (8,))
    near = x + 0.1 * torch.randn_like(x)
    act = caps.part.function
    expected = (act(a) - act(b)).norm() + (act(x) - act(near)).norm(dim=1).mean()
    torch.testing.assert_close(found, 0.5 * expected)


def test_caps_pairs_are_of_one_episode(tmp_path):
    run = started(settings("policy", method="caps", epochs=1, rollout=256, environments=1), tmp_path)
    (caps,) = run.additions
    run.learn(256, [caps])
    now, then = caps._pairs
    assert len(now) == 254  # 256 states in two episodes: 200 and 56
    assert torch.equal(now[1:199], then[:198])
    speed = then[:, 2] - now[:, 2]
    assert speed.abs().max() < 1.5  # a new episode would begin with a jump


def test_penalties_make_the_functions_flatter(tmp_path):
    found = {}
    for method in ("none", "spectral", "frobenius"):
        config = settings("policy", method=method, weight=3.0, learning_rate=0.01, epochs=3)
        found[method] = trained(config, tmp_path / method)["test"]["sigma"]
    assert found["spectral"] < found["none"] / 2
    assert found["frobenius"] < found["none"] / 2


def test_a_target_is_come_to_and_the_weight_is_told(tmp_path):
    steps = {"learning_rate": 0.003, "epochs": 12, "passes": 10, "batch_size": 8}
    config = settings("policy", method="spectral-target", target=0.1, **steps)
    last = trained(config, tmp_path / "run")["history"][-1]
    assert last["sigma"] == pytest.approx(0.1, rel=0.5)
    assert last["weight"] not in (0.0, 0.01)
    assert config.label == "spectral-target 0.1"


def test_the_strength_of_a_target_is_the_target():
    """The weight is not one of its settings. So a grid over weights has one run of it."""
    runs = [make_config({"task": "gan", "method": "spectral-target", "weight": w}) for w in (0.1, 1.0)]
    assert runs[0].id == runs[1].id
    assert make_config({"task": "gan", "method": "spectral-target", "target": 2.0}).id != runs[0].id


def test_divergence_is_a_result(tmp_path):
    config = settings("policy", learning_rate=1e30)
    with pytest.raises(DivergedError, match="Epoch 1, learning: A weight of the network is NaN or inf"):
        trained(config, tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("task", SMALL)
def test_the_command_trains_and_tells(task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL[task], "epochs": 1}.items()]
    assert main(["train", "--task", task, *typed, "--out", "run", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "mean σ" in told
    assert told.endswith("in run\n")
    assert main(["evaluate", "run", "--noise"]) == 2
    assert f"run is a run of --task {task}; a classifier is needed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["dqn", "--environment", "Pendulum-v1"], "its actions are numbers, .* try --task policy"),
        (["policy", "--environment", "CartPole-v1"], "its actions are a few .* try --task dqn"),
        (["dqn", "--environment", "CartPool-v1"], "environment = 'CartPool-v1'"),
        (["gan", "--data", "digit"], "did you mean 'digits'"),
        (["dqn", "--method", "frobenius"], "method = 'frobenius': choose one of none, spectral-norm"),
        (["dqn", "--momentum", "0.5"], "there is no setting 'momentum'"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(typed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--task", *typed]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_labels_have_the_strength_and_ids_the_task():
    config = make_config(
        {"task": "dqn", "method": "spectral", "weight": 0.1, "environment": "MinAtar/Breakout-v1"}
    )
    assert config.label == "spectral 0.1"
    assert config.id.startswith("dqn-MinAtar.Breakout-v1-spectral-0.1-s0-")
    assert make_config({"task": "gan", "stacked": True}).label == "none"
    assert isinstance(make_config({}), RunConfig)


def test_a_task_that_does_not_exist():
    with pytest.raises(ConfigError, match="task = 'dpn': choose one of classification, gan, policy, dqn"):
        make_config({"task": "dpn"})


FUTURE = sorted((Path(__file__).parents[3] / "paper" / "future").glob("*.toml"))


@pytest.mark.parametrize("file", FUTURE, ids=lambda file: file.stem)
def test_our_experiments_can_be_swept_and_say_what_is_expected(file):
    experiment = read_experiment(file)
    check_names(experiment.runs)
    assert experiment.runs[0].label == "none"  # the others are compared with it
    assert experiment.claims
    text = file.read_text()
    assert "Written before the runs." in text
    assert "# Expected: " in text
    assert "# Against it: " in text


def test_there_are_such_experiments():
    assert len(FUTURE) == 8
