"""The chapter of an experiment, from made results with known numbers."""

import numpy as np
import pytest

from jacnorm.lab.figures.draw import drawings
from jacnorm.lab.reproduce.catalog import read_chapter, read_item
from jacnorm.lab.results import append_result
from jacnorm.lab.settings import ConfigError
from jacnorm.lab.statistics import interval
from jacnorm.lab.sweep.experiment import names, read_experiment

FILE = """
title = "Small"
[base]
task = "dqn"
epochs = 2
[grid]
method = ["none", "spectral"]
weight = [0.01, 0.1]
learning_rate = [1e-3, 1e-2]
seed = [0, 1, 2, 3]
[[claims]]
text = "Spectral learns better"
quantity = "mean_return"
more = "spectral 0.1"
less = "none"
"""


def returned(run):
    """100 per seed, 1000 more at the larger learning rate, and about 5 more with a penalty of 0.1."""
    gain = 5 + 0.1 * run.seed if run.label == "spectral 0.1" else 0
    return 100.0 * run.seed + (1000 if run.learning_rate > 5e-3 else 0) + gain


def result_of(run, test=True):
    value = returned(run)
    numbers = {"return": value, "mean_return": value / 2, "sigma": 1.0, "length": 1.0}
    history = {"return": [value / 2, value], "milliseconds_per_update": [2.0, 4.0], "seconds": [1.0, 1.0]}
    diverged = {} if test else {"diverged": "too far"}
    config = {"seed": run.seed}
    return {"id": run.id, "config": config, "test": numbers if test else None, "history": history, **diverged}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(FILE)
    return path


def with_results(file, keep=lambda run: True, test=lambda run: True):
    experiment = read_experiment(file)
    for run in experiment.runs:
        if keep(run):
            append_result(experiment.results, result_of(run, test(run)))
    return read_chapter(read_item(file))


def test_the_table_has_interquartile_means_over_all_settings(file):
    chapter = with_results(file)
    main, differences, by_setting = chapter.tables
    assert [row[:2] for row in main.rows] == [("none", "8"), ("spectral 0.01", "8"), ("spectral 0.1", "8")]
    strata = [np.arange(4) * 100.0, 1000 + np.arange(4) * 100.0]
    low, high = interval(strata)
    assert main.rows[0][2] == f"650.0 [{low:.1f}, {high:.1f}]"  # the mean of 200, 300, 1000 and 1100
    assert main.rows[0][-1] == "3.0 [3.0, 3.0]"  # for times, the median epoch
    assert "over 2 settings (learning_rate)" in main.caption
    assert differences.rows[0][:2] == ("spectral 0.01 − none", "+0.0" + differences.rows[0][1][4:])
    assert differences.rows[1][1].startswith("+5.1")  # 5, and 0.15 of the seeds 2, 3, 0 and 1
    assert [row[0] for row in by_setting.rows] == ["learning rate 0.001", "learning rate 0.01"]
    assert by_setting.rows[1][1].startswith("575.0 [")  # for learning, half of 1000, 1100, 1200 and 1300


def test_claims_compare_seed_by_seed_and_setting_by_setting(file):
    (verdict,) = with_results(file).verdicts
    assert verdict.outcome == "holds"
    assert "n = 8" in verdict.evidence


def test_what_is_missing_or_diverged_is_said(file):
    chapter = with_results(file, keep=lambda run: run.seed < 3, test=lambda run: run.seed > 0)
    assert chapter.under_way == "18 of 24 runs"
    missing, diverged = chapter.notes
    assert missing == "Still missing: 6 of 24 runs."
    assert diverged.startswith(
        "Left out of these numbers, because they diverged: none s0, learning_rate 0.001;"
    )
    assert chapter.tables[0].rows[0][1] == "4"
    assert chapter.quantities["return"].loc[:, "none"].notna().sum() == 4


def test_nothing_yet(file):
    chapter = read_chapter(read_item(file))
    assert chapter.notes == ("No results yet.",)
    assert chapter.empty
    assert chapter.tables == ()


def test_curves_are_drawn_by_method(file):
    chapter = with_results(file)
    assert chapter.curves.groupby("method", observed=True)["value"].count().to_dict() == {
        "none": 16,
        "spectral 0.01": 16,
        "spectral 0.1": 16,
    }
    (drawing,) = drawings(chapter)
    assert "my-curves" in drawing.svg
    assert all(name in drawing.svg for name in ("none", "spectral 0.01", "epoch", "return"))


def test_the_page_of_an_experiment(file, tmp_path, monkeypatch):
    from jacnorm.lab.cli import main

    with_results(file)
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(file), "--markdown", "page.md"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "spectral 0.1 − none" in text
    assert "jacnorm sweep" in text


def test_a_claim_needs_a_quantity_of_the_task(file):
    file.write_text(FILE.replace('"mean_return"', '"accuracy"'))
    with pytest.raises(ConfigError, match=r"quantity = 'accuracy': .* there are return, mean_return, sigma"):
        read_experiment(file)


def test_runs_are_called_by_label_and_seed(file):
    called = names(read_experiment(file).runs)
    assert "spectral 0.1 s3, learning_rate 0.01" in called.values()
    assert len(set(called.values())) == len(called)
