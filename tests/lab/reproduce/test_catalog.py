import re
from pathlib import Path

import pytest

from jacnorm.lab.cli import main
from jacnorm.lab.config import ConfigError
from jacnorm.lab.errors import UsageError
from jacnorm.lab.reproduce.catalog import ITEMS, all_items, find_items
from jacnorm.lab.reproduce.figures import read_figure
from jacnorm.lab.reproduce.measurement import as_frame

OURS = Path(__file__).parents[3] / "paper"


def test_our_files_make_up_the_paper():
    names = [item.name for item in find_items(OURS, "all")]
    assert names == [
        *("table1-kmnist", "table1-fashion-mnist", "table1-cifar10"),
        *("figure3-kmnist", "figure3-fashion-mnist", "figure4-kmnist", "figure4-fashion-mnist"),
        "figure5-kmnist",
    ]
    assert [item.name for item in find_items(OURS, "all", "digits")] == [f"{item}-digits" for item in ITEMS]


@pytest.mark.parametrize("item", all_items(OURS), ids=lambda item: item.name)
def test_whatever_is_measured_has_a_unit(item):
    """Evidence without one says little."""
    if item.figure is not None:
        measured = item.figure.measurement.quantities(as_frame({label: [] for label in item.table.labels}))
        assert set(measured) <= set(item.figure.measurement.units)


def test_a_figure_under_another_protocol():
    (item,) = find_items(OURS, "figure3", "kmnist")
    held_out = item.with_protocol("held-out")
    assert (held_out.name, held_out.table.name) == ("figure3-kmnist-held-out", "table1-kmnist-held-out")
    assert item.with_protocol("paper") == item
    (item,) = find_items(OURS, "figure4", "kmnist")
    assert item.figure.beside.name == "figure3-kmnist"
    assert item.with_protocol("held-out").figure.beside.name == "figure3-kmnist-held-out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("figure = 3", "networks = an experiment's name"),
        ('figure = 2\nnetworks = "x"', "needs figure = one of 3, 4, 5"),
        ('figure = 3\nnetworks = "x"\n[measure]\nimage = 3', "did you mean 'images'"),
        ('figure = 3\nnetworks = "x"\n[measure]\nimages = 2.5', "images = 2.5: needs something like 1000"),
        ('figure = 3\nnetworks = "x"\n[measure]\nsteps = 5', r"steps = 5: needs something like \[0, 1, 2"),
        (
            'figure = 3\nnetworks = "x"\n[measure]\nsteps = [0]',
            r"steps = \[0\]: needs a list, rising .*, like \[0, 1",
        ),
        ('figure = 5\nnetworks = "x"\n[measure]\nmethods = [1]', r"like \['spectral-bound', 'spectral'"),
        ('figure = 3\nnetworks = "x"\n[measure]\nimages = -3', "images = -3: needs something like 1000"),
        ('figure = 3\nnetworks = "x"\n[measure]\nimages = 0', "images = 0: needs something like 1000"),
        ('figure = 3\nnetworks = "x"\n[measure]\nvariances = [0.1, 0.0]', r"variances = \[0.1, 0.0\]: needs"),
        (
            'figure = 3\nnetworks = "x"\n[measure]\nsteps = [-1, 2]',
            r"steps = \[-1, 2\]: needs a list, rising",
        ),
        (
            'figure = 5\nnetworks = "x"\n[measure]\nrounds = [0, 1]',
            r"rounds = \[0, 1\]: needs a list, rising",
        ),
        ('figure = 5\nnetworks = "x"\n[measure]\nmethods = []', r"methods = \[\]: needs a list"),
        ('figure = 3\nnetworks = "x"\nmeasure = 5', r"\[measure\] is a part of its own, found measure = 5"),
        ('figure = [3]\nnetworks = "x"', "needs figure = one of 3, 4, 5"),
        ('figure = 3\nnetworks = "x"\ntitle = 7', "title = 7: needs a text"),
        ('figure = 3\nnetworks = "x"\n[grid]\nseed = [1]', "there is no 'grid'"),
        ('figure = 4\nnetworks = "x"\nbeside = 3', "beside = 3: needs a figure's name"),
        ('figure = 4\nnetworks = "x"\nbeside = "y"', "y.toml: there is no such file"),
        ('figure = 4\nnetworks = "x"\nbeside = "other"', "'other' is about other networks, .*z.toml"),
        ('figure = 3\nnetworks = "z"\nbeside = "other"', "'other' measures '.*' as well"),
    ],
)
def test_bad_files(tmp_path, text, message):
    file = tmp_path / "figure3-x.toml"
    file.write_text(text)
    (tmp_path / "other.toml").write_text('figure = 3\nnetworks = "z"')
    with pytest.raises(ConfigError, match=message):
        read_figure(file)


def test_settings_that_may_be_zero_and_lists_that_begin_with_it(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('figure = 3\nnetworks = "x"\n[measure]\njudge_images = 0\nsteps = [0, 5]\nqueries = [5]')
    found = read_figure(file).measurement
    assert (found.judge_images, found.steps, found.queries) == (0, (0, 5), (5,))


def test_a_misspelled_method_is_told(tmp_path):
    (tmp_path / "mine.toml").write_text('[grid]\nmethod = ["spectral"]')
    (tmp_path / "times.toml").write_text('figure = 5\nnetworks = "mine"\n[measure]\nmethods = ["spectrall"]')
    with pytest.raises(ConfigError, match="'spectrall': did you mean 'spectral'"):
        all_items(tmp_path)


def test_a_bad_claim_is_told_before_anything_is_trained(tmp_path):
    (tmp_path / "table1-x.toml").write_text('[base]\nseed = 1\n[[claims]]\ntext = "x"\nmor = "a"')
    with pytest.raises(ConfigError, match=r"table1-x.*a claim has no 'mor'"):
        find_items(tmp_path, "table1", "x")


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            'quantity = "pdg"\nmore = "none"\nless = "weight-decay"',
            "quantity = 'pdg': choose one of noise, pgd",
        ),
        ('more = "none"\nless = "weight-decay"', "quantity = 'accuracy': choose one of noise, pgd"),
        ('quantity = "pgd"\nrises_with = "sampled"', "quantity = 'sampled': choose one of noise, pgd"),
        (
            'quantity = "pgd"\nmore = "nune"\nless = "none"',
            "pgd is not known of 'nune': did you mean 'none'?",
        ),
    ],
)
def test_a_figures_claims_are_about_what_it_measures(tmp_path, claim, message):
    (tmp_path / "mine.toml").write_text('[grid]\nmethod = ["none"]')
    (tmp_path / "its-noise.toml").write_text(
        f'figure = 3\nnetworks = "mine"\n[[claims]]\ntext = "x"\n{claim}'
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        all_items(tmp_path)


def test_both_quantities_of_a_rise_are_known_of_the_same(tmp_path):
    (tmp_path / "mine.toml").write_text('[grid]\nmethod = ["none"]')
    (tmp_path / "times.toml").write_text('figure = 5\nnetworks = "mine"')
    claim = '[[claims]]\ntext = "x"\nquantity = "sampled"\nrises_with = "time"'
    (tmp_path / "sizes.toml").write_text(f'figure = 4\nnetworks = "mine"\nbeside = "times"\n{claim}')
    with pytest.raises(ConfigError, match="time is not known of 'none'"):
        all_items(tmp_path)


def test_files_are_known_by_what_they_hold(tmp_path):
    """Not by their names: an own experiment and a figure about it."""
    (tmp_path / "mine.toml").write_text("[grid]\nseed = [0]")
    (tmp_path / "its-noise.toml").write_text('figure = 3\nnetworks = "mine"')
    table, figure = all_items(tmp_path)
    assert (figure.name, figure.table, figure.figure.figure) == ("its-noise", table.table, 3)
    assert (table.name, table.figure, table.is_papers, table.is_quick) == ("mine", None, False, False)


def test_data_that_no_file_is_for():
    with pytest.raises(UsageError, match="on cifar10; there are: kmnist, fashion-mnist, digits"):
        find_items(OURS, "figure3", "cifar10")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["table1", "--experiments", "nowhere"], "run this in a checkout"),
        (["table1", "--quick", "--data", "kmnist"], "--quick is on digits"),
        (["table1", "--workers", "0"], "--workers 0"),
        (["table2"], "'table2' is no item: did you mean 'table1'?"),
        (["mine.toml"], "mine.toml: there is no such file"),
        (["mine.toml", "--data", "kmnist"], "mine.toml says what to run: leave out --quick and --data"),
    ],
)
def test_mistakes_are_told_in_one_line(options, message, capsys):
    try:
        code = main(["reproduce", *options])
    except SystemExit as exit_of_argparse:
        code = exit_of_argparse.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
