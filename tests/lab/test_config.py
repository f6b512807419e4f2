from pathlib import Path

import pytest

from jacnorm.lab.classification import make_penalty
from jacnorm.lab.config import METHODS, ConfigError, RunConfig, make_config, read_toml
from jacnorm.lab.results import read_results


def test_defaults_are_the_papers():
    config = RunConfig()
    assert (config.momentum, config.batch_size, config.epochs, config.iterations) == (0.8, 32, 50, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rte": 0.1}, "did you mean 'learning_rate'"),
        ({"learning-rate": 0.1}, "did you mean 'learning_rate'"),
        ({"zzz": 1}, "choose one of task, method"),
        ({"lr": 0.1}, "did you mean 'learning_rate'"),
        ({"train": {"epochs": 1}}, r"\[train\]: write settings without a section"),
        ({"method": "spectrl"}, "did you mean 'spectral'"),
        ({"epochs": "many"}, "epochs = 'many': it must be a whole number"),
        ({"epochs": 1.5}, r"epochs = 1\.5"),
        ({"epochs": True}, "epochs = True"),
        ({"augment": 1}, "augment = 1: it must be true or false"),
        ({"seed": -1}, r"seed = -1: it must be a whole number from 0"),
        ({"seed": 2**63}, r"seed = 9223372036854775808: it must be a whole number from 0"),
        ({"weight": 0.0}, r"weight = 0\.0: it must be positive"),
        ({"weight": float("nan")}, "weight = nan"),
        ({"iterations": 0}, "iterations = 0"),
        ({"momentum": 1.0}, "momentum"),
        ({"optimizer": "adagrad"}, "optimizer = 'adagrad': choose one of sgd, adam, adamw"),
        ({"schedule": "linear"}, "schedule = 'linear'"),
        ({"epsilon": "a lot"}, "epsilon = 'a lot': it must be a number, or a fraction like \"8/255\""),
        ({"epsilon": "1/0"}, "epsilon = '1/0': it must be a number"),
        ({"epsilon": "8"}, "epsilon = '8': it must be a number"),
        ({"epsilon": "32/8"}, r"epsilon = 4\.0: it must be above 0 and at most 1"),
        ({"attack_steps": 0}, "attack_steps = 0"),
        ({"target": -1.0}, r"target = -1\.0: it must be above 0, or 0 for none"),
        ({"target": 1.0, "target_quantile": 1.0}, r"target_quantile = 1\.0: it must be between 0 and 1"),
        ({"target_quantile": 0.5}, r"target_quantile = 0\.5 needs a target"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(settings)


def test_whole_numbers_do_for_floats():
    assert make_config({"weight": 1}).weight == 1.0


def test_fractions_do_for_floats():
    config = make_config({"method": "adversarial", "epsilon": "32/255"})
    assert config.epsilon == 32 / 255
    assert config.id.startswith("digits-mlp-adversarial-0.125-s0-")
    others = [{"epsilon": "8/255"}, {"epsilon": "32/255", "attack_steps": 3}]
    assert len({config.id, *(make_config({"method": "adversarial", **o}).id for o in others)}) == 3


def test_id_depends_on_what_matters_and_on_nothing_else():
    ids = {RunConfig(method=m, seed=s).id for m in METHODS for s in (0, 1)}
    assert len(ids) == 2 * len(METHODS)
    assert RunConfig(method="none", weight=1.0).id == RunConfig(method="none", weight=2.0).id
    assert RunConfig(weight=1.0).id != RunConfig(weight=2.0).id
    assert RunConfig(method="frobenius", iterations=1).id == RunConfig(method="frobenius", iterations=2).id
    assert RunConfig(iterations=1).id != RunConfig(iterations=2).id


def test_ids_stay_what_they_were():
    """Results on disk are found by ids. If you change a default, keep the first with `first=` (config.py)."""
    assert RunConfig(batch_norm="fixed").id == "digits-mlp-spectral-0.01-s0-44136fa355"
    lenet = {"data": "kmnist", "net": "lenet", "batch_norm": "fixed"}
    paper = RunConfig(**lenet, method="frobenius", weight=0.1, seed=3)
    assert paper.id == "kmnist-lenet-frobenius-0.1-s3-4770b8dc5b"
    assert RunConfig().id != RunConfig(batch_norm="fixed").id
    assert RunConfig().id == RunConfig(optimizer="sgd").id != RunConfig(optimizer="adam").id
    assert RunConfig(optimizer="adam", momentum=0.5).id == RunConfig(optimizer="adam").id


def test_settings_that_make_another_method():
    """Tables show them under different names."""
    labels = {
        ("spectral", "warm_start", False): "spectral",
        ("spectral", "warm_start", True): "spectral-warm",
    }
    labels |= {
        ("spectral-bound", "convolution", "operator"): "spectral-bound",
        ("spectral-bound", "convolution", "kernel"): "spectral-bound-kernel",
        ("frobenius", "convolution", "kernel"): "frobenius",
    }
    for (method, name, value), label in labels.items():
        assert make_config({"method": method, name: value}).label == label
    with pytest.raises(ConfigError, match='write method = "spectral-bound" and convolution = "kernel"'):
        make_config({"method": "spectral-bound-kernel"})


def test_a_label_tells_what_makes_a_penalty_cheaper():
    assert RunConfig(every=8, precision="bfloat16").label == "spectral-warm, every 8, precision bfloat16"
    assert RunConfig(budget=1.15, warm_start=False).label == "spectral, budget 1.15"
    assert RunConfig(method="none", every=8).label == "none"  # this method has no penalty
    with pytest.raises(ConfigError, match=r"budget = 1\.15 chooses `every` itself: leave out every = 8"):
        RunConfig(every=8, budget=1.15)


def test_the_norm_of_a_convolution_is_the_penaltys():
    for convolution in ("operator", "kernel"):
        penalty = make_penalty(RunConfig(method="spectral-bound", convolution=convolution))
        assert penalty.convolution == convolution


def test_toml(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('method = "frobenius"\nweight = 0.1\n')
    assert make_config(read_toml(file)) == RunConfig(method="frobenius", weight=0.1)
    file.write_text("method = ")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        read_toml(file)
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        read_toml(tmp_path)
    file.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ConfigError, match=r"run\.toml: not a text file"):
        read_toml(file)
    with pytest.raises(ConfigError, match="no such file"):
        read_toml(tmp_path / "none.toml")


def test_a_target_has_a_label_and_a_run_of_its_own():
    plain, steered = RunConfig(), RunConfig(target=0.5)
    assert (plain.label, steered.label) == ("spectral-warm", "spectral-warm, target 0.5")
    assert plain.id != steered.id
    assert RunConfig(method="weight-decay").id == RunConfig(method="weight-decay", target=0.5).id
    assert make_penalty(steered).steering.target == 0.5
    assert make_penalty(plain).steering is None


@pytest.mark.parametrize("task", ["classification", "dqn"])
def test_the_earlier_name_of_weight_decay_is_the_same_run(task):
    """Results of earlier versions have `l2`, so their ids and the key in files must stay."""
    before, now = (make_config({"task": task, "method": name}) for name in ("l2", "weight-decay"))
    assert before == now
    assert now.id == before.id
    assert "-l2-0.01-s0-" in now.id
    assert now.stored()["method"] == now.relevant()["method"] == "l2"
    assert make_config(now.stored()) == now
    assert now.label.startswith("weight-decay")


def test_results_of_earlier_versions_are_found_by_their_ids():
    records = read_results(Path("paper/table1-kmnist/results.jsonl")).records
    found = {name: make_config(record["config"]) for name, record in records.items() if "-l2-" in name}
    assert len(found) > 10
    assert all(config.id == name for name, config in found.items())
    assert {config.label for config in found.values()} == {"weight-decay"}
