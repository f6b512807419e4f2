"""What is drawn, from frames with known numbers."""

import math
import re

import pandas as pd

from jacnorm.lab.figures.draw import drawings
from jacnorm.lab.figures.methods import accuracy
from jacnorm.lab.looks import looks
from jacnorm.lab.reproduce.chapter import Chapter


def test_a_method_without_any_number_has_no_row():
    columns = {"mean": [95.0, math.nan, math.nan], "sd": [0.1, math.nan, math.nan]}
    columns |= {"paper": [96.0, 97.0, math.nan], "paper_sd": [0.2, 0.1, math.nan]}
    (axes,) = accuracy(pd.DataFrame(columns, index=["none", "weight-decay", "spectral"])).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "weight-decay"]
    drawn = [line for line in axes.lines if line.get_marker() in ("o", "s") and len(line.get_xdata())]
    points = [(*line.get_xydata()[0].tolist(), line.get_marker(), line.get_color()) for line in drawn]
    none, decay = (look["color"] for look in looks(["none", "weight-decay"]))
    assert points == [(95.0, -0.12, "o", none), (96.0, 0.12, "s", none), (97.0, 1.12, "s", decay)]


def test_a_relation_is_drawn_where_there_is_something_to_see():
    """Of the networks that have both, and not when one quantity is the same of all."""
    x = pd.DataFrame({"none": [1.0, 2.0], "weight-decay": [3.0, math.nan], "spectral": [math.nan] * 2})
    y = pd.DataFrame({"none": [5.0, 5.0], "weight-decay": [6.0, 7.0], "spectral": [8.0, 9.0]})
    chapter = Chapter("a", "A", (), quantities={"x": x, "y": y}, relations=(("x", "y", ()),))
    (drawing,) = drawings(chapter)
    assert (drawing.name, drawing.caption) == ("a-y-by-x", "Y against x, a point a network")
    assert {"none", "weight-decay"} <= set(re.findall(r">([\w-]+)</text>", drawing.svg))
    assert ">spectral</text>" not in drawing.svg
    assert not drawings(Chapter("a", "A", (), quantities={"x": x, "y": 0 * y}, relations=(("x", "y", ()),)))
