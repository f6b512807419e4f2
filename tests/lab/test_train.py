"""The training loop: it learns, it is repeatable, and nothing is lost when it stops."""

import io
import json
import math

import pytest
import torch

from jacnorm.lab.classification import scheduled, score
from jacnorm.lab.config import METHODS, RunConfig
from jacnorm.lab.data import DataSet, Split
from jacnorm.lab.errors import UsageError
from jacnorm.lab.progress import Progress
from jacnorm.lab.run import DivergedError
from jacnorm.lab.run_files import load_run, read_config
from jacnorm.lab.train import train
from jacnorm.pytorch import half


def weights(folder, digits):
    return load_run(folder, read_config(folder), digits).state_dict()


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method, digits, tmp_path):
    weight = {"frobenius": 0.003, "spectral-bound": 0.001}.get(method, 0.01)
    config = RunConfig(method=method, weight=weight, epochs=4, learning_rate=0.05)
    result = train(config, digits, tmp_path)
    assert result["test"]["accuracy"] > 0.9
    assert [m["epoch"] for m in result["history"]] == [1, 2, 3, 4]
    assert result["history"][-1]["validation_accuracy"] == result["test"]["accuracy"]
    assert json.loads((tmp_path / "result.json").read_text()) == result
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["history"]


@pytest.mark.parametrize("how", [{"autocast": True}, {"precision": "bfloat16"}, {"budget": 1.3}])
def test_cheaper_ways_learn_alike(how, digits, tmp_path):
    """They change every step a little. Equal weights would mean that they do nothing."""
    for method in ("none", "spectral") if "autocast" in how else ("spectral",):
        config = RunConfig(method=method, epochs=4, learning_rate=0.05, **how)
        result = train(config, digits, tmp_path / method)
        assert result["test"]["accuracy"] > 0.9
        plain = train(
            RunConfig(method=method, epochs=1, learning_rate=0.05), digits, tmp_path / f"plain {method}"
        )
        assert result["history"][0]["train_loss"] == pytest.approx(plain["history"][0]["train_loss"], rel=0.1)
        if "precision" not in how:  # half precision is used only where it is faster
            assert result["history"][0]["train_loss"] != plain["history"][0]["train_loss"]


def test_a_folder_may_be_named_by_a_string(digits, tmp_path):
    train(RunConfig(epochs=1), digits, tmp_path)
    assert_same(weights(str(tmp_path), digits), weights(tmp_path, digits))


def test_regularized_networks_are_less_sensitive(digits, tmp_path):
    found = {}
    for method, weight in {"none": 1.0, "weight-decay": 0.01, "spectral": 0.1, "analytic": 0.1}.items():
        config = RunConfig(method=method, weight=weight, epochs=6, learning_rate=0.05)
        found[method] = train(config, digits, tmp_path / method)["test"]["sigma"]
    assert found["spectral"] < found["weight-decay"] < found["none"]
    assert found["spectral"] == pytest.approx(found["analytic"], rel=0.15)


def test_l2_is_the_weight_decay_penalty(digits, tmp_path):
    """One epoch of SGD with weight decay gives the same weights as the penalty in the loss."""
    from torch.nn.functional import cross_entropy

    import jacnorm as jn
    from jacnorm.lab.classification import start
    from jacnorm.lab.data import batches

    config = RunConfig(method="weight-decay", weight=0.01, epochs=1)
    train(config, digits, tmp_path)
    run = start(RunConfig(method="none"), digits, "cpu")
    penalty = jn.WeightDecay(0.01)
    for _, images, labels in batches(digits.train, 32, torch.Generator().manual_seed(run.seed(0))):
        J = jn.linearize(run.model.body, run.model.normalize(images))
        run.optimizer.zero_grad()
        (cross_entropy(J.output, labels) + penalty(J)).backward()
        run.optimizer.step()
    expected = run.model.state_dict()
    for name, value in weights(tmp_path, digits).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", ["mlp", "own_net:small", "own_net:smooth"])
def test_same_seed_same_weights_and_another_seed_others(net, digits, tmp_path):
    few = DataSet.of("digits", digits.train.take(torch.arange(200)), digits.test, digits.classes)
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        before = torch.get_rng_state()
        train(RunConfig(net=net, seed=seed, epochs=2), few, tmp_path / name)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)  # for any state
    a, b, c = (weights(tmp_path / name, digits) for name in "abc")
    assert_same(a, b)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def interrupted(config, data, folder, epoch, monkeypatch):
    """A run that ends after this epoch, as if it had been killed."""

    class Stop(Exception):
        pass

    def stop(self, metrics):
        if metrics["epoch"] == epoch:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "epoch_done", stop)
        with pytest.raises(Stop):
            train(config, data, folder)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimizers_take_the_steps_of_pytorchs(optimizer, digits, tmp_path):
    """One epoch of weight decay. With Adam the decay goes through the gradient, with AdamW it does not."""
    from torch.nn.functional import cross_entropy

    from jacnorm.lab.classification import start
    from jacnorm.lab.data import batches

    few = DataSet.of("digits", digits.train.take(torch.arange(300)), digits.test, digits.classes)
    config = RunConfig(method="weight-decay", weight=0.1, epochs=1, optimizer=optimizer, learning_rate=0.003)
    train(config, few, tmp_path)
    run = start(RunConfig(method="none"), few, "cpu")
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    theirs = kind(run.model.parameters(), 0.003, weight_decay=0.1)
    for _, images, labels in batches(few.train, 32, torch.Generator().manual_seed(run.seed(0))):
        theirs.zero_grad()
        cross_entropy(run.model(images), labels).backward()
        theirs.step()
    assert_same(weights(tmp_path, few), run.model.state_dict())


@pytest.mark.parametrize(
    "how",
    [
        *(
            {"method": method}
            for method in ("none", "spectral", "spectral-bound", "frobenius", "margin", "adversarial")
        ),
        *({"optimizer": name, "learning_rate": 0.002} for name in ("adam", "adamw")),
        {"method": "weight-decay", "optimizer": "adamw"},
        {"method": "spectral", "target": 0.5},
    ],
    ids=lambda how: " ".join(map(str, how.values())),
)
@pytest.mark.parametrize("net", ["mlp", "own_net:small", "own_net:smooth"])
def test_resuming_ends_with_the_very_same_weights(how, net, digits, tmp_path, monkeypatch):
    few = DataSet.of("digits", digits.train.take(torch.arange(200)), digits.test, digits.classes)
    config = RunConfig(net=net, epochs=4, schedule="cosine", augment=True, **how)
    whole = train(config, few, tmp_path / "whole")
    interrupted(config, few, tmp_path / "parts", 2, monkeypatch)
    with pytest.raises(UsageError, match="add --resume"):
        train(config, few, tmp_path / "parts")
    import jacnorm.trust.verdicts

    jacnorm.trust.verdicts._histories.clear()  # as in a new process
    parts = train(config, few, tmp_path / "parts", resume=True)
    assert_same(weights(tmp_path / "whole", digits), weights(tmp_path / "parts", digits))
    assert parts["test"] == whole["test"]
    timing = {"seconds", "images_per_second"}
    for ours, theirs in zip(parts["history"], whole["history"], strict=True):
        assert {k: v for k, v in ours.items() if k not in timing} == {
            k: v for k, v in theirs.items() if k not in timing
        }


def test_a_resumed_run_keeps_the_precision_that_it_began_with(digits, tmp_path, monkeypatch):
    """It keeps it even if another precision is faster now."""
    few = DataSet.of("digits", digits.train.take(torch.arange(200)), digits.test, digits.classes)
    config = RunConfig(method="spectral", precision="bfloat16", epochs=2)
    monkeypatch.setattr(half, "_why_not", lambda *_: None)
    half._tried.cache_clear()
    train(config, few, tmp_path / "whole")
    interrupted(config, few, tmp_path / "parts", 1, monkeypatch)
    monkeypatch.setattr(half, "_why_not", lambda *_: "is no faster")
    half._tried.cache_clear()
    train(config, few, tmp_path / "parts", resume=True)
    half._tried.cache_clear()
    assert_same(weights(tmp_path / "whole", digits), weights(tmp_path / "parts", digits))


def test_resuming_with_other_settings_is_refused(digits, tmp_path):
    train(RunConfig(epochs=1), digits, tmp_path)
    with pytest.raises(UsageError, match=r"other settings: weight was 0\.01, epochs was 1"):
        train(RunConfig(epochs=2, weight=0.5), digits, tmp_path, resume=True)


def test_settings_that_a_method_does_not_look_at_may_change(digits, tmp_path):
    """They do not count for a run's id either. So another grid can continue the same run."""
    before, now = (RunConfig(method="none", weight=w, warm_start=w < 0.05, epochs=1) for w in (0.01, 0.1))
    assert before.id == now.id
    train(before, digits, tmp_path)
    assert train(now, digits, tmp_path, resume=True)["config"]["weight"] == 0.1


def test_divergence_says_where_and_keeps_the_checkpoint(digits, tmp_path):
    broken = Split(digits.train.images.clone(), digits.train.labels)
    data = DataSet("digits", broken, digits.test, digits.mean, digits.std, digits.classes)
    progress = Progress(quiet=True, listeners=(lambda m: broken.images.fill_(1e38),))
    with pytest.raises(DivergedError, match=r"Epoch 2, step 1: .* The checkpoint of epoch 1 is kept"):
        train(RunConfig(epochs=3), data, tmp_path, progress=progress)
    assert (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "scale", [1e38, 1e37]
)  # in one case the output overflows, in the other only the sum of the losses
def test_divergence_in_the_last_step_is_found_by_validation(scale, digits, tmp_path):
    far = Split(torch.full_like(digits.test.images, scale), digits.test.labels)
    data = DataSet("digits", digits.train, far, digits.mean, digits.std, digits.classes)
    with pytest.raises(DivergedError, match=r"Epoch 1, validation: .*smaller learning rate") as raised:
        train(RunConfig(epochs=3), data, tmp_path)
    assert raised.value.result == json.loads((tmp_path / "result.json").read_text())
    assert raised.value.result["test"] is None
    with pytest.raises(UsageError, match=r"has no network, it diverged\. Epoch 1, validation: "):
        load_run(tmp_path, read_config(tmp_path), data)


def test_divergence_that_only_the_test_split_shows(digits, tmp_path):
    far = Split(torch.full_like(digits.test.images, 1e38), digits.test.labels)
    data = DataSet("digits", digits.train, far, digits.mean, digits.std, digits.classes)
    with pytest.raises(DivergedError, match="Epoch 1, the test split: "):
        train(RunConfig(epochs=1, protocol="held-out"), data, tmp_path)


def test_held_out_protocol_keeps_the_test_split_for_the_end(digits, tmp_path):
    result = train(RunConfig(protocol="held-out", epochs=1), digits, tmp_path)
    assert result["history"][-1]["validation_accuracy"] != result["test"]["accuracy"]
    model = load_run(tmp_path, read_config(tmp_path), digits)
    assert score(model, digits.test) == result["test"]


def test_cosine_schedule():
    config = RunConfig(schedule="cosine", learning_rate=0.1, epochs=10)
    rates = [scheduled(config, epoch) for epoch in range(10)]
    assert rates[0] == 0.1
    assert rates[5] == pytest.approx(0.05)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for rate in rates:
        assert rate == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_a_log_file_gets_a_line_an_epoch(digits, tmp_path):
    stream = io.StringIO()
    train(RunConfig(epochs=2), digits, tmp_path, progress=Progress(stream=stream))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch   1/2  loss")
    assert all(word in lines[1] for word in ("accuracy", "σ", "images/s", "0:00 left"))


def test_score_is_the_mean_over_all_images(digits):
    torch.manual_seed(0)
    from jacnorm.lab.classification import start

    model = start(RunConfig(), digits, "cpu").model
    with torch.no_grad():
        output = model(digits.test.images)
    found = score(model, digits.test, batch_size=7)
    loss = torch.nn.functional.cross_entropy(output, digits.test.labels)
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["accuracy"] == float((output.argmax(1) == digits.test.labels).double().mean())
    assert math.isfinite(found["sigma"])


def test_once_an_epoch_the_penalty_reports(digits, tmp_path):
    config = RunConfig(method="spectral", epochs=2, every=2)
    result = train(config, digits, tmp_path)
    for epoch in result["history"]:
        assert epoch["sigma_error"] == pytest.approx(epoch["sigma_estimated"] / epoch["sigma_measured"] - 1)
        assert 0.3 < epoch["sigma_cosine"] <= 1
    assert "sigma_cost" in result["history"][-1]
