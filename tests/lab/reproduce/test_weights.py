"""Accuracy and σ for each λ, from hand-made results with known numbers."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_results import diverge, publish

from jacnorm.lab.figures.methods import over_weights
from jacnorm.lab.looks import looks
from jacnorm.lab.report.content import collect
from jacnorm.lab.report.page import to_html, write_markdown, write_pages
from jacnorm.lab.reproduce.catalog import read_item, sweep_as_text
from jacnorm.lab.reproduce.table1 import table1
from jacnorm.lab.reproduce.weights import by_chance
from jacnorm.lab.sweep.experiment import read_experiment

EXPERIMENT = """# Which λ is best? Not known yet.
title = "Some λ"
[base]
data = "digits"
epochs = 20
protocol = "held-out"
[grid]
method = ["none", "frobenius", "spectral"]
weight = [0.01, 0.1, 1.0]
learning_rate = [0.01, 0.1]
seed = [0, 1, 2]
"""
# With a spread of 1 and three seeds each, chance explains 2.92·√(1/3 + 1/3) = 2.384 points.
ACCURACY = {
    ("none", None): [94.0, 95.0, 96.0],  # mean 95, s.d. 1
    ("frobenius", 0.01): [96.0, 96.0, 96.0],
    ("frobenius", 0.1): [92.5, 92.7, 92.9],  # 2.3 below: chance explains it
    ("frobenius", 1.0): [92.4, 92.6, 92.8],  # 2.4 below: it does not
    ("spectral-warm", 0.01): [92.5, 92.5, 92.5],  # 2.5 below
    ("spectral-warm", 0.1): [95.0, 95.0, 95.0],
    ("spectral-warm", 1.0): [97.0, 97.0, 40.0],  # the mean is far below, for all its own spread
}


def result(config):
    """Accuracy, loss and σ. The worse learning rate has another accuracy, which must not be told."""
    weight = None if config.method == "none" else config.weight
    if config.learning_rate == 0.1:
        return 99.0, 0.9, 77.0
    return ACCURACY[config.label, weight][config.seed], 0.5, 2.0 / (weight or 0.5) + config.seed


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(EXPERIMENT)
    return read_experiment(file)


def train(experiment, runs=None):
    for config in experiment.runs if runs is None else runs:
        accuracy, loss, sigma = result(config)
        publish(experiment.results, config, accuracy, loss, sigma)


def without(experiment, method):
    return replace(experiment, runs=tuple(run for run in experiment.runs if run.method != method))


def with_weights(experiment, *weights):
    """And no regularizer, which looks at none."""
    runs = (run for run in experiment.runs if run.method == "none" or run.weight in weights)
    return replace(experiment, runs=tuple(runs))


def marked(table):
    return {table.rows[i][:2] for i, _ in table.best}


def test_the_table(experiment):
    train(experiment)
    table = table1(experiment).tables[-1]
    assert table.header == ("method", "λ", "n", "accuracy", "σ", "difference", "chance")
    assert table.rows == (
        ("frobenius", "0", "3", "95.00 ± 1.00", "5.00 ± 1.00", "–", "–"),
        ("frobenius", "0.01", "3", "96.00 ± 0.00", "201.00 ± 1.00", "+1.00", "2.38"),
        ("frobenius", "0.1", "3", "92.70 ± 0.20", "21.00 ± 1.00", "−2.30", "2.38"),
        ("frobenius", "1", "3", "92.60 ± 0.20", "3.00 ± 1.00", "−2.40", "2.38"),
        ("spectral-warm", "0", "3", "95.00 ± 1.00", "5.00 ± 1.00", "–", "–"),
        ("spectral-warm", "0.01", "3", "92.50 ± 0.00", "201.00 ± 1.00", "−2.50", "2.38"),
        ("spectral-warm", "0.1", "3", "95.00 ± 0.00", "21.00 ± 1.00", "+0.00", "2.38"),
        ("spectral-warm", "1", "3", "78.00 ± 32.91", "3.00 ± 1.00", "−17.00", "2.38"),
    )
    assert table.best == {(i, j) for i in (2, 6) for j in range(7)}
    assert "after 20 epochs: accuracy on held-out images" in table.caption
    assert table.caption.endswith("(Protocol “held-out”, the whole grid.)")
    assert "it is not further below no regularizer than chance explains" in table.marked_caption


def test_chance_by_hand():
    """Student's t of 95 %, one-sided: 6.3138 with one degree of freedom, 2.1318 with four."""
    two = pd.Series([95.0, 96.0])  # s.d. √½
    assert by_chance(two, 8) == pytest.approx(6.313752 * math.sqrt(0.5) * math.sqrt(1 / 2 + 1 / 8), rel=1e-6)
    five = pd.Series([1.0, 2.0, 3.0, 4.0, 5.0])  # s.d. √2.5
    assert by_chance(five, 5) == pytest.approx(2.131847 * math.sqrt(2.5) * math.sqrt(2 / 5), rel=1e-6)
    assert math.isnan(by_chance(pd.Series([95.0]), 3))


def test_chance_is_right_in_19_of_20_cases():
    """The mean of three networks beside five, all drawn from one normal distribution."""
    normal = pd.DataFrame(np.random.default_rng(0).normal(size=(2000, 8)))
    below = [row[5:].mean() < row[:5].mean() - by_chance(row[:5], 3) for _, row in normal.iterrows()]
    assert np.mean(below) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 2000))


def test_a_method_is_compared_with_no_regularizer_at_its_own_settings(experiment):
    """Frobenius is best at the other learning rate, where no regularizer has 90 and not 95."""
    for config in experiment.runs:
        fast = config.learning_rate == 0.1
        accuracy = 92.0 if config.method == "frobenius" else 90.0 if fast else 95.0
        publish(experiment.results, config, accuracy, 0.5 if fast == (config.method == "frobenius") else 0.9)
    weights = table1(experiment).weights.set_index(["method", "weight"])
    assert list(weights["last"]["frobenius"]) == [90.0, 92.0, 92.0, 92.0]
    assert list(weights["last"]["spectral-warm"]) == [95.0] * 4
    assert list(weights["difference"]["frobenius"]) == [0.0, 2.0, 2.0, 2.0]
    lines = over_weights(weights.reset_index()).axes[0].lines
    bare = [(line.get_ydata()[0], line.get_color()) for line in lines if line.get_linestyle() == ":"]
    frobenius, spectral = looks(["frobenius", "spectral-warm"])
    assert bare == [(90.0, frobenius["color"]), (95.0, spectral["color"])]


def test_the_largest_of_the_grid_is_starred(experiment):
    small = with_weights(experiment, 0.01, 0.1)
    train(small)
    table = table1(small).tables[-1]
    assert marked(table) == {("frobenius", "0.1 †"), ("spectral-warm", "0.1 †")}
    assert "†: the largest λ tried." in table.caption


def test_without_no_regularizer_the_smallest_weight_is_the_reference(experiment):
    bare = without(experiment, "none")
    train(bare)
    table = table1(bare).tables[-1]
    # frobenius 0.01 has no spread, so every lower mean is harm. spectral-warm 0.1 is above 0.01.
    assert [row[5:] for row in table.rows[:2]] == [("+0.00", "0.00"), ("−3.30", "0.00")]
    assert marked(table) == {("spectral-warm", "0.1")}
    assert "Difference: from the accuracy of the smallest λ." in table.caption


def test_where_every_weight_does_harm_none_is_marked(experiment):
    harmful = with_weights(experiment, 0.1, 1.0)
    for config in harmful.runs:
        publish(harmful.results, config, 95.0 if config.method == "none" else 90.0)
    table = table1(harmful).tables[-1]
    assert table.best == set()
    assert "No λ is marked: every one does harm." in table.caption


def test_with_one_seed_chance_cannot_be_told(experiment):
    """Screening has one seed. The runs in full, of the chosen λ alone, do not count here."""
    screened = replace(experiment, screening_epochs=4)
    train(screened, screened.screening_runs())
    table = table1(screened).tables[-1]
    assert table.header == ("method", "λ", "n", "accuracy", "σ", "difference")
    assert table.rows[1] == ("frobenius", "0.01", "1", "96.00", "200.00", "+2.00")
    assert marked(table) == {("frobenius", "0.01"), ("spectral-warm", "1 †")}  # 97.0 beside 94.0
    assert "There is one seed, so how much of that is chance cannot be told" in table.marked_caption
    assert "Chance:" not in table.caption
    assert "after 4 epochs" in table.caption


def test_a_weight_at_which_a_seed_diverged_is_never_marked(experiment):
    lost = next(r for r in experiment.runs if r.label == "spectral-warm" and r.weight == 0.1 and r.seed == 1)
    both = [replace(lost, learning_rate=rate) for rate in (0.01, 0.1)]
    train(experiment, [run for run in experiment.runs if run not in both])
    for run in both:
        diverge(experiment.results, run)
    table = table1(experiment).tables[-1]
    assert table.rows[6][:3] == ("spectral-warm", "0.1", "2 of 3")
    assert marked(table) == {("frobenius", "0.1")}


def test_nothing_is_marked_while_runs_are_to_come(experiment):
    train(experiment, experiment.runs[:-1])
    table = table1(experiment).tables[-1]
    assert table.best == set()
    assert table.caption.startswith("What each λ does")
    assert "No λ is marked while runs are to come." in table.caption


def test_a_weight_that_no_method_looks_at_or_that_is_one_makes_no_table(experiment):
    one = with_weights(experiment, 0.01)
    train(one)
    assert table1(one).weights is None
    assert "What each λ does" not in table1(one).text()
    assert table1(without(without(experiment, "spectral"), "frobenius")).weights is None


def test_the_picture(experiment):
    train(experiment)
    figure = over_weights(table1(experiment).weights)
    top, bottom = figure.axes
    frobenius, spectral = looks(["frobenius", "spectral-warm"])
    rings = [line for line in top.lines if line.get_fillstyle() == "none" and len(line.get_xdata())]
    assert [(*line.get_xydata()[0], line.get_color()) for line in rings] == [
        (0.1, pytest.approx(92.7), frobenius["color"]),
        (0.1, pytest.approx(95.0), spectral["color"]),
    ]
    (curve,) = [one for one in bottom.containers if one.lines[0].get_color() == frobenius["color"]]
    assert curve.lines[0].get_xydata().tolist() == [[0.01, 201.0], [0.1, 21.0], [1.0, 3.0]]
    assert bottom.get_yscale() == "log"
    # 78 is more than ten points below 96: an arrow, in the colour of its method.
    ((arrow,), (low, high)) = top.texts, top.get_ylim()
    assert (arrow.get_text(), arrow.xy[0], arrow.get_color()) == ("↓", 1.0, spectral["color"])
    assert (low, high) == (86.0, 96.5)
    (legend,) = figure.legends
    names = ["frobenius", "spectral-warm", "no regularizer", "largest λ that does no harm"]
    assert [text.get_text() for text in legend.get_texts()] == names


def test_it_ends_a_sweep_and_stands_on_both_pages(experiment, tmp_path):
    train(experiment)
    file = tmp_path / "mine.toml"
    printed = sweep_as_text(experiment, file, None)
    assert "frobenius       0.1  3   92.70 ± 0.20   21.00 ± 1.00       −2.30    2.38" in printed
    content = collect([read_item(file)], None, tmp_path, front=False)
    assert '<th scope="row" class="best">frobenius</th><td class="best">0.1</td>' in to_html(content)
    assert "Accuracy and σ for each λ" in to_html(content)
    write_markdown(content, tmp_path / "mine.md")
    assert "| **frobenius** | **0.1** | **3** |" in (tmp_path / "mine.md").read_text()
    assert "](mine/mine-weights.svg)" in (tmp_path / "mine.md").read_text()
    assert "</svg>" in (tmp_path / "mine" / "mine-weights.svg").read_text()


def test_among_the_papers_pages_it_is_a_table_and_for_a_question_about_weights_a_picture(
    experiment, tmp_path
):
    (tmp_path / "checks").mkdir()
    for name, text in (
        ("asks", EXPERIMENT),
        ("other", EXPERIMENT.replace("Which λ", "Which method")),
    ):
        file = tmp_path / "checks" / f"{name}.toml"
        file.write_text(text)
        train(read_experiment(file))
    papers = tmp_path / "table1-digits" / "experiment.toml"
    papers.parent.mkdir()
    papers.write_text(EXPERIMENT + "[paper]\nnone = [95.0, 1.0]\n")
    train(read_experiment(papers))
    files = [papers, *sorted((tmp_path / "checks").glob("*.toml"))]
    content = collect([read_item(one) for one in files], None, tmp_path, front=False)
    shown = {part.chapter.name: [one.name for one in part.drawings] for part in content.sections}
    assert shown["table1-digits"] == ["table1-digits-accuracy"]
    assert shown["asks"] == ["asks-accuracy", "asks-weights"]
    write_pages(content, tmp_path)
    assert [one.name for one in (tmp_path / "checks").glob("*.svg")] == ["asks.svg"]
    assert "What each λ does" in (papers.parent / "README.md").read_text()
