"""What figures of evaluations show, read off matplotlib's own objects."""

import numpy as np
import pytest

from jacnorm.lab.config import LABELS
from jacnorm.lab.evaluate.common import wilson
from jacnorm.lab.figures.draw import draw
from jacnorm.lab.figures.methods import calibration, landscape
from jacnorm.lab.figures.panels import alone, attacks, noise, strong_attacks
from jacnorm.lab.looks import LOOKS, looks
from jacnorm.lab.reproduce.measurement import as_frame

IMAGES = 400


def record(method="none", seed=0, clean=0.9):
    left = [clean, clean - 0.1, clean - 0.3]
    attack = {"epsilons": [0.1], "iterations": [0, 1, 5], "clean": clean, "worst": [left], "last": [left]}
    bins = {"counts": [0, 100, 300], "confidence": [None, 0.6, 0.98], "accuracy": [None, 0.5, 1.0]}
    return {
        "id": f"{method}-{seed}",
        "config": {"method": method, "seed": seed},
        "noise": {
            "variances": [0, 0.1, 0.2],
            "drop": [clean - part for part in left],
            "clean": clean,
            "images": IMAGES,
        },
        "attacks": {"pgd": attack | {"images": IMAGES}},
        "judge": {
            "attacks": ["apgd-ce", "square"],
            "robust": [0.4, 0.3],
            "clean": clean,
            "epsilon": 0.1,
            "images": 100,
        },
        "calibration": bins | {"ece": 0.05, "images": IMAGES},
        "landscape": {"slope": 1.0 + seed, "curvature": 2.0, "images": IMAGES},
    }


def frame(**groups):
    return as_frame(groups)


TWO = {"none": [record(clean=0.9)], "spectral": [record("spectral", clean=0.8)]}
SEEDS = {"none": [record(seed=s, clean=0.9 + 0.01 * s) for s in range(3)]}


def line(axes, label):
    """x, y and the ends of the bars, of what has this label."""
    container = next(c for c in axes.containers if c.get_label() == label)
    data, _, bars = container
    segments = bars[0].get_segments() if bars else []
    return data.get_xdata(), data.get_ydata(), np.array([s[:, 1] for s in segments])


@pytest.mark.parametrize(
    ("make", "images"),
    [
        (lambda f: alone(noise, f), IMAGES),
        (attacks, IMAGES),
        (lambda f: alone(strong_attacks, f), 100),
    ],
)
def test_accuracy_with_the_number_of_images_and_intervals(make, images):
    axes = make(frame(**TWO)).axes[0]
    assert axes.get_ylabel() == "accuracy, %"
    assert f"{images} images" in axes.get_title()
    assert "95 % intervals" in axes.get_legend().get_title().get_text()
    _, y, bars = line(axes, "none")
    assert y[0] == pytest.approx(90)
    np.testing.assert_allclose(bars[0], 100 * np.array(wilson(0.9, images)))


def test_of_several_networks_the_bars_are_between_them():
    axes = alone(noise, frame(**SEEDS)).axes[0]
    assert axes.get_legend().get_title().get_text() == "mean ± s.d. over 3 networks"
    _, y, bars = line(axes, "none")
    assert y[0] == pytest.approx(91)
    np.testing.assert_allclose(bars[0], [90, 92])


@pytest.mark.parametrize("panel", [noise, strong_attacks])
def test_the_change_begins_at_zero(panel):
    axes = alone(lambda a, f: panel(a, f, change=True), frame(**TWO), single=None).axes[0]
    assert axes.get_ylabel() == "change in accuracy, points"
    for label in TWO:
        assert line(axes, label)[1][0] == pytest.approx(0)
    assert "interval" not in axes.get_legend().get_title().get_text()


def test_calibration_stays_within_100_percent():
    axes = calibration(frame(**TWO)).axes[0]
    assert axes.get_xlim()[1] == axes.get_ylim()[1] == 100
    assert axes.get_xlim()[0] >= 0
    assert f"{IMAGES} images" in axes.get_title()
    _, y, bars = line(axes, "none, error 0.050")
    np.testing.assert_allclose(y, [50, 100])
    np.testing.assert_allclose(bars[0], 100 * np.array(wilson(0.5, 100)))
    assert bars[1].max() == pytest.approx(100)


def test_a_method_has_one_colour_in_all_figures():
    groups = {"spectral": [record("spectral")], "weight-decay": [record("weight-decay")]}
    expected = {name: LOOKS[name]["color"] for name in groups}
    for figure in (alone(noise, frame(**groups)), attacks(frame(**groups)), calibration(frame(**groups))):
        containers = figure.axes[0].containers
        found = {c.get_label().partition(",")[0]: c[0].get_color() for c in containers}
        assert found == expected
    points = [c[0].get_color() for c in landscape(frame(**groups)).axes[0].containers]
    assert points == list(expected.values())


def test_every_label_has_a_look_of_its_own():
    assert set(LABELS) <= set(LOOKS)
    for key in ("color", "marker"):
        assert len({look[key] for look in LOOKS.values()}) == len(LOOKS)


def test_settings_of_a_method_share_its_colour_and_others_get_what_is_left():
    names = ["spectral, weight = 0.1", "spectral, weight = 1", "analytic", "mine", "yours"]
    found = looks(names)
    assert found[0]["color"] == found[1]["color"] == LOOKS["spectral"]["color"]
    assert found[0]["marker"] != found[1]["marker"]
    assert len({look["color"] for look in found[1:]}) == 4


def test_the_change_is_drawn_when_asked_for(tmp_path):
    config = {"data": "digits", "net": "mlp", "weight": 0.01, "epochs": 1}
    records = [record() | {"config": config | {"method": "none", "seed": 0}}]
    assert draw(records, tmp_path) == []
    names = {file.stem for file in tmp_path.glob("*.svg")}
    assert names == {"noise", "attacks", "judge", "calibration", "landscape"}
    assert draw(records, tmp_path, change=True) == []
    changes = {file.stem for file in tmp_path.glob("*.svg")} - names
    assert changes == {"noise-change", "attacks-change", "judge-change"}
    assert draw(records, tmp_path) == [f"{name}-change.svg" for name in ("noise", "attacks", "judge")]
