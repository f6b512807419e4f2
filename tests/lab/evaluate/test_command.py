"""jacnorm evaluate, from training to numbers and figures."""

import json
import shutil
from functools import partial

import pytest
from safetensors.torch import load_file, save_file

from jacnorm.lab.cli import main
from jacnorm.lab.evaluate import judge
from jacnorm.lab.evaluate.compare import comparison, grouped
from jacnorm.lab.evaluate.record import alarms

FIGURES = ("noise", "attacks", "judge", "boundary", "calibration", "landscape", "cost")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method, seed in (("spectral", 0), ("spectral", 1), ("none", 0)):
        options = ["--method", method, "--seed", str(seed), "--weight", "0.1", "--learning-rate", "0.05"]
        assert (
            main(["train", *options, "--epochs", "8", "--quiet", "--out", str(folder / f"{method}{seed}")])
            == 0
        )
    return folder


def test_everything_end_to_end(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.evaluate.kinds.judge", partial(judge, iterations=3, queries=5))
    folders = [str(folder) for folder in sorted(runs.iterdir())]
    capsys.readouterr()
    code = main(
        ["evaluate", *folders, "--all", "--images", "40", "--directions", "5", "--out", str(tmp_path)]
    )
    printed = capsys.readouterr().out
    assert code == 0
    for name in FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text(), name
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert {r["id"][:16] for r in records} == {"digits-mlp-none-", "digits-mlp-spect"}
    for r in records:
        assert r["id"] in printed
        assert r["images"] == r["noise"]["images"] == 40
        assert r["boundary"]["directions"] == 5
        assert r["judge"]["robust"][-1] <= r["judge"]["clean"] == r["noise"]["clean"]
        assert r["environment"]["threads"] >= 1
        assert r["noise"]["seed"] == 0
        warm = r["cost"]["estimation"]["warm"]
        assert (warm is not None) == (r["config"]["method"] == "spectral")
        if warm is not None:  # stored vectors of the training are better starts than random ones
            assert warm[0] < r["cost"]["estimation"]["random"][0]
    assert len({tuple(r["boundary"]["points"]) for r in records}) == 1
    assert list(map(len, grouped(records).values())) in ([1, 2], [2, 1])


def test_evaluating_again_adds_to_what_is_there(runs, tmp_path, capsys):
    common = ["evaluate", str(runs / "none0"), "--images", "30", "--out", str(tmp_path / "out"), "--json"]
    for options in (["--noise"], ["--attacks", "pgd"], ["--attacks", "square", "--calibration"]):
        assert main([*common, *options]) == 0
    (file,) = (tmp_path / "out").glob("*.json")
    record = json.loads(file.read_text())
    assert {"noise", "attacks", "calibration"} <= set(record)
    assert set(record["attacks"]) == {"pgd", "square"}
    common[3] = "20"  # other images have their own record
    assert main([*common, "--noise"]) == 0
    assert set(json.loads(file.read_text())) & {"attacks", "calibration"} == set()


def test_attacks_of_another_strength_take_the_place_of_the_first(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.evaluate.kinds.judge", partial(judge, iterations=3, queries=5))
    options = [str(runs / "none0"), "--images", "20", "--out", str(tmp_path)]
    assert main(["evaluate", *options, "--attacks", "pgd,tpgd", "--epsilon", "8/255"]) == 0
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text())["attacks"]
    assert [a["epsilons"] for a in found.values()] == [[8 / 255]] * 2
    assert main(["evaluate", *options, "--attacks", "pgd,tpgd", "--epsilon", "0.2"]) == 0
    assert "dropped" not in capsys.readouterr().err  # both are measured again
    assert main(["evaluate", *options, "--attacks", "pgd", "--epsilon", "0.1"]) == 0
    assert {name: a["epsilons"] for name, a in json.loads(file.read_text())["attacks"].items()} == {
        "pgd": [0.1]
    }
    assert f"{file}: tpgd of another strength dropped" in capsys.readouterr().err
    assert main(["evaluate", *options, "--judge", "--epsilon", "0.1"]) == 0
    assert json.loads(file.read_text())["judge"]["epsilon"] == 0.1


def test_a_picture_compares_attacks_of_one_strength(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.evaluate.kinds.judge", partial(judge, iterations=3, queries=5))
    one, other, out = str(runs / "none0"), str(runs / "spectral0"), ["--images", "20", "--out", str(tmp_path)]
    assert main(["evaluate", one, *out, "--attacks", "pgd", "--judge", "--epsilon", "8/255"]) == 0
    assert main(["evaluate", other, *out, "--attacks", "pgd,square", "--judge"]) == 0
    before = {file: file.read_bytes() for file in tmp_path.glob("*.svg")}
    assert {file.name for file in before} == {"attacks.svg", "judge.svg"}
    capsys.readouterr()
    assert main(["evaluate", one, other, *out, "--calibration"]) == 0
    assert before == {file: file.read_bytes() for file in before}
    told = "of an earlier evaluation, not of all these runs: attacks.svg, judge.svg\n"
    assert capsys.readouterr().err.endswith(told)
    assert main(["evaluate", one, *out, "--attacks", "pgd,tpgd"]) == 0
    assert main(["evaluate", one, other, *out, "--calibration"]) == 0
    shown = (tmp_path / "attacks.svg").read_text()
    assert [name in shown for name in ("<!-- PGD", "<!-- TPGD", "<!-- Square")] == [True, False, False]


def test_what_is_done_is_kept_when_the_rest_fails(runs, tmp_path, capsys, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jacnorm.lab.evaluate.kinds.judge", stop)
    options = ["--noise", "--attacks", "pgd", "--judge", "--images", "20", "--out", str(tmp_path)]
    assert main(["evaluate", str(runs / "none0"), *options]) == 130
    (file,) = tmp_path.glob("*.json")
    kept = json.loads(file.read_text())
    assert set(kept["attacks"]) == {"pgd"}
    assert len(kept["noise"]["accuracy"]) == 7
    assert "judge" not in kept
    # There is no record of these images yet. The earlier record stays.
    other = ["--judge", "--images", "30", "--out", str(tmp_path)]
    assert main(["evaluate", str(runs / "none0"), *other]) == 130
    assert json.loads(file.read_text()) == kept


def test_published_networks_have_no_stored_vectors(runs, tmp_path, capsys):
    published = tmp_path / "spectral0"
    published.mkdir()
    for name in ("config.json", "weights.safetensors"):
        shutil.copyfile(runs / "spectral0" / name, published / name)
    assert main(["evaluate", str(published), "--cost", "--images", "20", "--out", str(tmp_path / "o")]) == 0
    assert "no checkpoint.safetensors, so no error from stored vectors" in capsys.readouterr().err
    (file,) = (tmp_path / "o").glob("*.json")
    assert json.loads(file.read_text())["cost"]["estimation"]["warm"] is None


def test_files_that_are_damaged_are_named(runs, tmp_path, capsys):
    assert main(["evaluate", str(runs / "none0"), "--noise", "--images", "20", "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    assert main(["evaluate", str(runs / "none0"), "--noise", "--images", "20", "--out", str(tmp_path)]) == 2
    assert f"{file}: cut short or not JSON" in capsys.readouterr().err
    damaged = shutil.copytree(runs / "none0", tmp_path / "none0")
    (damaged / "result.json").write_text("{")
    assert main(["evaluate", str(damaged)]) == 2
    assert f"{damaged / 'result.json'}: cut short or not JSON" in capsys.readouterr().err


def test_points_belong_to_the_networks_that_were_compared(runs, tmp_path, capsys):
    """Distances are of the points that all compared networks classify correctly."""
    common = ["--images", "30", "--directions", "2", "--out", str(tmp_path), "--json"]
    one, other, third = (str(runs / name) for name in ("none0", "spectral0", "spectral1"))
    found = []
    for options in ([one, other, "--boundary"], [one, other, "--noise"], [one, third, "--noise"]):
        capsys.readouterr()
        assert main(["evaluate", *options, *common]) == 0
        found.append(["boundary" in json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert found == [[True, True], [True, True], [False, False]]
    assert sum("boundary" in json.loads(file.read_text()) for file in tmp_path.glob("*.json")) == 2  # kept


def test_numbers_of_other_weights_are_not_added_to(runs, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(runs / "none0", folder)
    common = ["evaluate", str(folder), "--images", "30", "--out", str(tmp_path / "out"), "--json"]
    assert main([*common, "--noise"]) == 0
    weights = load_file(folder / "weights.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, folder / "weights.safetensors")
    capsys.readouterr()
    assert main([*common, "--calibration"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "calibration" in record
    assert "noise" not in record


def test_a_run_is_not_compared_with_itself(runs, capsys):
    assert main(["evaluate", str(runs / "none0"), str(runs / "none0")]) == 2
    assert "named more than once" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_before_the_work(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["evaluate", str(runs / "none0"), "--noise", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_one_run_prints_one_record(runs, capsys):
    folder = runs / "none0"
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--calibration", "--images", "30", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["calibration"]["images"] == 30
    assert "noise" not in record
    written = json.loads((folder / "evaluation" / f"{record['id']}.json").read_text())
    assert written == record
    assert (folder / "evaluation" / "calibration.svg").exists()


def test_several_runs_print_a_line_each_and_write_nothing_unasked(runs, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [str(runs / name) for name in ("none0", "spectral0")]
    capsys.readouterr()
    assert main(["evaluate", *folders, "--json"]) == 0
    methods = [json.loads(line)["config"]["method"] for line in capsys.readouterr().out.splitlines()]
    assert methods == ["none", "spectral"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attacks", "pgd,fgsm"], "there is no attack 'fgsm'"),
        (["--images", "0"], "--images 0: it must be 1 or more"),
        (["--boundary", "--directions", "0"], "--directions 0"),
        (["--noise", "--epsilon", "8/255"], "--epsilon is the strength of --attacks and --judge"),
        (["--attacks", "pgd", "--epsilon", "8/"], "a number above 0 and up to 1 is needed"),
        (["--attacks", "pgd", "--epsilon=-8/-255"], "a number above 0 and up to 1 is needed"),
    ],
)
def test_mistakes_are_told_in_one_line(options, message, runs, capsys):
    try:
        code = main(["evaluate", str(runs / "none0"), *options])
    except SystemExit as exit_of_argparse:
        code = exit_of_argparse.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_runs_on_different_data_are_not_compared(runs, tmp_path, capsys):
    other = shutil.copytree(runs / "none0", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "data": "kmnist"}))
    assert main(["evaluate", str(runs / "none0"), str(other)]) == 2
    assert "different data sets, digits, kmnist" in capsys.readouterr().err


def test_the_alarm_when_square_beats_the_gradient():
    def record(pgd, square, images=100):
        return {
            "images": images,
            "attacks": {"pgd": {"worst": [[0.9, pgd]]}, "square": {"worst": [[0.9, square]]}},
        }

    assert alarms(record(0.5, 0.5)) == alarms(record(0.4, 0.5)) == []
    (alarm,) = alarms(record(0.5, 0.4))
    assert "Square, which sees no gradient, leaves 40.00% right" in alarm
    assert alarms(record(0.5, 0.4, images=20)) == []  # two images are too few for an alarm


@pytest.mark.parametrize(
    ("configs", "labels"),
    [
        ([{"method": "none", "seed": 0}, {"method": "none", "seed": 1}], ["none"]),
        (
            [
                {"method": "weight-decay", "weight": 0.1, "seed": 0},
                {"method": "weight-decay", "weight": 0.01, "seed": 0},
            ],
            ["weight-decay, λ = 0.1", "weight-decay, λ = 0.01"],
        ),
        (
            [{"method": "none", "epochs": 1, "seed": 0}, {"method": "none", "epochs": 2, "seed": 0}],
            ["none, epochs = 1", "none, epochs = 2"],
        ),
        (
            [{"method": "spectral", "warm_start": warm, "seed": 0} for warm in (True, False)],
            ["spectral-warm", "spectral"],
        ),
    ],
)
def test_labels_tell_groups_apart(configs, labels):
    records = [{"id": str(i), "config": config} for i, config in enumerate(configs)]
    assert list(grouped(records)) == labels


def compared(*runs):
    """The comparison of made records: (method, epochs, seed, accuracy)."""
    return comparison(
        [
            {
                "id": f"{method}-{epochs}-{seed}",
                "config": {"method": method, "epochs": epochs, "seed": seed},
                "test": {"accuracy": accuracy, "loss": 0.5, "sigma": 2.0},
            }
            for method, epochs, seed, accuracy in runs
        ]
    )


def test_seeds_are_averaged_and_screening_runs_stand_apart():
    told = compared(
        ("weight-decay", 4, 0, 0.5),
        ("weight-decay", 15, 0, 0.9),
        ("weight-decay", 15, 1, 0.92),
        ("none", 15, 0, 0.8),
    )
    full, screening = told.split("\n\nMean")
    assert full.splitlines()[0] == "Mean ± standard deviation over n seeds, epochs = 15:"
    header, decay, none = full.splitlines()[2:]
    assert header.split("  ")[0] == "method"
    assert "2  91.00% ± 1.41%  0.5000 ± 0.0000" in decay  # 0.02/√2
    assert none.split()[:3] == ["none", "1", "80.00%"]
    assert "epochs = 4 (not to be compared with 15):" in screening
    assert "50.00%" in screening
    assert "50.00%" not in full


def test_many_methods_or_long_names_still_fit_a_terminal():
    told = comparison(
        [
            {
                "id": str(i),
                "config": {
                    "method": "weight-decay",
                    "batch_size": 32 + i % 2,
                    "weight": 0.1 + i,
                    "epochs": 1,
                    "seed": 0,
                },
                "test": {"accuracy": i / 20, "loss": 0.5, "sigma": 2.0},
                "noise": {"variances": [0.1, 0.2, 0.3], "accuracy": [0.3, 0.2, 0.1]},
            }
            for i in range(12)
        ]
    )
    assert max(map(len, told.splitlines())) <= 120
    for i in range(12):
        assert (
            told.count(f"({i + 1}) weight-decay, batch size = {32 + i % 2}, λ = {0.1 + i:g}\n") == 1
        )  # the key
        assert told.count(f"{i / 20:.2%}") >= 1
    assert told.count("accuracy, noise of variance 0.3") == 2  # the columns are in two blocks
