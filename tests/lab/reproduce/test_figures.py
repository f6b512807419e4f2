"""Figures from hand-made records, and networks that are measured once."""

import copy
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from made_results import changed, cut, full, record, screen

from jacnorm.lab.claims import Claim
from jacnorm.lab.data import Split, load
from jacnorm.lab.evaluate.boundary import boundary
from jacnorm.lab.figures.draw import drawings
from jacnorm.lab.nets import MLP, Normalized
from jacnorm.lab.reproduce.figures import FigurePlan, figure
from jacnorm.lab.reproduce.measurement import as_frame
from jacnorm.lab.reproduce.networks import Bench, measure_missing
from jacnorm.lab.reproduce.paper_figures import Distances, Robustness, TimeAndError, percentiles
from jacnorm.lab.reproduce.runs import Network, networks, read_runs, subjects
from jacnorm.lab.sweep.experiment import read_experiment

EXPERIMENT = """
title = "Table"
[base]
epochs = 3
[grid]
method = ["none", "spectral-bound", "spectral"]
warm_start = [false, true]
seed = [0, 1]
[screening]
epochs = 1
"""
ROBUSTNESS = Robustness(images=100, variances=(0.0, 0.2), steps=(0, 4), queries=(0, 4))
ACCURACY = {label: [90.0, 91.0] for label in ("none", "spectral-bound", "spectral", "spectral-warm")}


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "table1-digits.toml"
    file.write_text(EXPERIMENT)
    experiment = read_experiment(file)
    screen(experiment, lambda config: 0.5)
    full(experiment, ACCURACY, lambda config: True)
    return experiment


def plan(number, measurement, table):
    file = table.results.with_name(f"figure{number}-digits.jsonl")
    networks = table.results.with_suffix(".toml")
    return FigurePlan(file.stem, f"Figure {number}", number, networks, measurement, (), results=file)


def named(plan, name, **changes):
    return replace(plan, name=name, results=plan.results.with_name(f"{name}.jsonl"), **changes)


def made(the_plan, table, parts):
    """A record of every network; `parts` gives what was measured of it."""
    for network in subjects(the_plan, table).networks:
        settings = the_plan.measurement.kinds(network)
        record(the_plan.results, network.config, settings, parts(network))


def attack(name, last, worst):
    return {
        "attack": name,
        "iterations": [0, 2, 4],
        "epsilons": [32 / 255],
        "clean": 0.9,
        "last": [last],
        "worst": [worst],
    }


def robustness_of(network):
    """Clean 90 %; PGD leaves 70 %, then 50 % or 52 % (seed 1), and then 10 points more for spectral."""
    right = 0.5 + 0.02 * network.config.seed + 0.1 * (network.label == "spectral")
    return {
        "noise": {"variances": [0.0, 0.1, 0.2], "drop": [0.0, 0.1, 0.2], "clean": 0.9},
        "attacks": {
            name: attack(name, [0.9, 0.7, right], [0.9, 0.7, right - 0.1])
            for name in ("pgd", "tpgd", "square")
        },
        "judge": {"robust": [0.4, 0.3], "clean": 0.9, "attacks": ["apgd-ce", "square"], "epsilon": 32 / 255},
    }


def test_figure_3(table, tmp_path):
    strengths = {"variances": (0.0, 0.1, 0.2), "steps": (0, 2, 4), "queries": (0, 2, 4)}
    the_plan = plan(3, Robustness(images=100, judge_images=50, **strengths), table)
    made(the_plan, table, robustness_of)
    section = figure(the_plan, table)
    paper, stronger = section.tables
    assert paper.header == ("method", "n", "noise", "PGD", "TPGD", "Square")
    assert "(variance 0.1 to 0.2, 2 to 4 steps, 2 to 4 queries)" in paper.caption
    # PGD: −20 and then −40 or −38 points; −30 and −29, mean −29.5, sd 1/√2. Noise: −10 and −20 in both.
    assert paper.rows[0] == ("none", "2", "−15.00 ± 0.00", *["−29.50 ± 0.71"] * 3)
    assert paper.rows[2] == ("spectral", "2", "−15.00 ± 0.00", *["−24.50 ± 0.71"] * 3)
    assert stronger.rows[0] == ("none", "2", *["41.00 ± 1.41"] * 3, "30.00 ± 0.00")
    assert "first 100 test images" in section.notes[1]
    assert section.notes[0] == (
        "About the networks that were chosen in “Table”: two-stage screening by the loss on the test split "
        "(protocol “paper”)."
    )
    assert paper.caption.endswith("(Protocol “paper”, two-stage screening.)")
    assert section.warnings == ()
    assert list(section.frame["method"].unique()) == ["none", "spectral-bound", "spectral", "spectral-warm"]


def test_masked_gradients_are_told(table, tmp_path):
    """Where Square, which follows no gradient, leaves much less than PGD and TPGD."""
    the_plan = plan(3, ROBUSTNESS, table)

    def parts(network):
        found = robustness_of(network)
        if network.label == "none":
            found["attacks"]["square"] = attack("square", [0.9, 0.5, 0.1], [0.9, 0.5, 0.1])
        return found

    made(the_plan, table, parts)
    beware = figure(the_plan, table).notes[-1]
    assert beware.startswith("Beware: in 2 of 2 networks of “none” gradients may be masked")
    made(named(the_plan, "other"), table, robustness_of)
    assert "Beware" not in "".join(figure(named(the_plan, "other"), table).notes)


def test_figure_4(table, tmp_path):
    the_plan = plan(4, Distances(images=100, directions=5), table)

    def parts(network):
        shift = network.config.seed + 10 * (network.label == "spectral")
        line = [float(i) + shift for i in range(101)]
        far = [None if i > 40 else 1.0 for i in range(101)]  # no median
        points = {"points": 80 + network.config.seed, "left_out": 19, "directions": 5}
        return {"boundary": {"sampled": line, "attack": line, "first_order": far, **points}}

    made(the_plan, table, parts)
    (found,) = figure(the_plan, table).tables
    assert found.rows[0] == ("none", "2", "80–81", "50.50 ± 0.71", "50.50 ± 0.71", "–")
    assert found.rows[2] == ("spectral", "2", "80–81", "60.50 ± 0.71", "60.50 ± 0.71", "–")
    quantities = the_plan.measurement.quantities(figure(the_plan, table).frame)
    assert quantities["sampled"]["spectral"].to_dict() == {0: 60.0, 1: 61.0}
    assert quantities["first_order"]["spectral"].isna().all()


def test_a_claim_about_two_figures(table, tmp_path):
    """Larger regions, more robust: the points of both figures are those of the same networks."""
    three = plan(3, ROBUSTNESS, table)
    four = plan(4, Distances(images=100, directions=5), table)
    claim = Claim("t", quantity="pgd-worst", rises_with="sampled")
    both = replace(four, claims=(claim,), beside=three)

    def regions(network):
        size = 1.0 + ("none", "spectral-bound", "spectral-warm", "spectral").index(network.label)
        line = [size + 0.1 * network.config.seed] * 101
        points = {"points": 80, "left_out": 19, "directions": 5}
        return {"boundary": {"sampled": line, "attack": line, "first_order": line, **points}}

    made(four, table, regions)
    section = figure(both, table)  # and of figure 3 there is nothing yet
    assert section.verdicts[0].outcome == "not tested"
    assert list(drawings(section)) == drawings(replace(section, relations=()))  # nothing is to be seen
    made(three, table, robustness_of)
    section = figure(both, table)
    assert section.verdicts[0].evidence.startswith(
        "none < spectral-bound < spectral-warm < spectral: Page's L"
    )
    x, y = section.quantities["sampled"], section.quantities["pgd-worst"]
    assert x["none"].to_list() == [1.0, 1.1]  # seeds 0 and 1
    assert y["spectral"].to_list() == [50.0, pytest.approx(52.0)]
    assert [drawing.name for drawing in drawings(section)][1:] == ["figure4-digits-pgd-worst-by-sampled"]
    some = replace(claim, methods=("none", "spectral", "spectral-warm"))
    (drawn,) = figure(replace(both, claims=(some, claim)), table).relations  # drawn once
    assert drawn == ("sampled", "pgd-worst", some.methods)


def test_figure_5(table, tmp_path):
    the_plan = plan(5, TimeAndError(images=10, batch_sizes=(16, 32), repeats=1, rounds=(1, 2)), table)

    def parts(network):
        ratio = {
            "forward": [0.2, 0.2],
            "plain": [1.0, 1.0],
            "frobenius": [2.0, 2.0],
            "analytic": [20.0, 30.0],
            "analytic-svd": [60.0, 90.0],
            "spectral-warm": [2.0, 2.0],
        }
        ratio |= {"spectral-bound": [1.5, 1.25], "spectral": [2.0, 2.0 + network.config.seed]}
        warm = [0.03, 0.02] if network.label == "spectral-warm" else None
        bound = 30.0 + network.config.seed
        errors = {
            "random": [0.25, 0.1],
            "lanczos": [0.2, 0.05],
            "warm": warm,
            "bound": bound,
            "iterations": [1, 2],
        }
        return {"cost": {"times": {"batch_sizes": [16, 32], "ratio": ratio}, "estimation": errors}}

    made(the_plan, table, parts)
    section = figure(the_plan, table)
    times, errors = section.tables
    assert "over 6 networks" in times.caption  # not those of none
    assert "Beware" not in times.caption  # 0.55 is less than a third of 2.50
    assert times.rows[4] == ("spectral", "2.00 ± 0.00", "2.50 ± 0.55")  # 2 and 3 three times: sd √0.3
    assert errors.rows == (
        ("spectral", "25.0 ± 0.0", "10.0 ± 0.0"),
        ("spectral-warm", "3.0 ± 0.0", "2.0 ± 0.0"),
        ("Lanczos", "20.0 ± 0.0", "5.0 ± 0.0"),
        ("spectral-bound: product of norms", "3050 ± 71", "–"),
    )
    many = replace(the_plan.measurement, batch_sizes=(16, 32, 512))  # more than there were images for
    assert many.tables(section.frame)[0].header == ("step", "16", "32")
    shaky = [_slowed(record, i) for i, record in enumerate(section.results, 1)]
    assert "Beware" in the_plan.measurement.tables(as_frame({"spectral": shaky}))[0].caption
    quantities = the_plan.measurement.quantities(section.frame)
    assert quantities["error"]["product-of-norms"].to_dict() == {0: 30.0, 1: 31.0}
    assert quantities["error"]["random-round"].to_dict() == {0: 0.25, 1: 0.25}
    assert quantities["error"]["last-random-round"].to_dict() == {0: 0.1, 1: 0.1}
    assert quantities["error"]["stored-round"].to_dict() == {0: 0.03, 1: 0.03}
    assert len(quantities["time"]["analytic"]) == 6


def _slowed(record, times):
    """As if the machine had been busy with something else."""
    slow = copy.deepcopy(record)
    ratio = slow["cost"]["times"]["ratio"]
    slow["cost"]["times"]["ratio"] = {kind: [times * r for r in ratio[kind]] for kind in ratio}
    return slow


def test_records_with_other_settings_are_named_and_skipped(table, tmp_path):
    before = plan(3, ROBUSTNESS, table)
    made(before, table, robustness_of)
    now = replace(before, measurement=replace(before.measurement, images=200))
    section = figure(now, table)
    assert section.empty
    (warning,) = section.warnings
    assert "8 records measured with other settings: skipped" in warning
    assert section.notes[-1] == "Still missing: 8 of 8 networks."


def test_cut_records_are_named_and_skipped(table, tmp_path):
    the_plan = plan(3, ROBUSTNESS, table)
    made(the_plan, table, robustness_of)
    line = changed(the_plan.results, subjects(the_plan, table).networks[0].config, cut)
    section = figure(the_plan, table)
    assert section.warnings[0].startswith(f"{line}: cut short")
    assert section.tables[0].rows[0][:2] == ("none", "1")
    assert section.notes[-1] == "Still missing: 1 of 8 networks."


@pytest.fixture
def counted(monkeypatch):
    """Measuring that takes no time, is counted, and fails when told to."""
    log = SimpleNamespace(done=[], fail_at=None)

    def kind(self, name, network, bench):
        if len(log.done) == log.fail_at:
            raise KeyboardInterrupt
        log.done.append((network.config.id, name))
        parts = robustness_of(network)
        return {name: parts[name]} if name in parts else {"attacks": {name: parts["attacks"][name]}}

    monkeypatch.setattr(Robustness, "measure", kind)
    monkeypatch.setattr(Bench, "has", lambda self, network, with_rivals: True)
    return log


def test_a_log_file_has_one_line_of_a_quick_figure(table, tmp_path, counted, capsys):
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    measure_missing(plan(3, ROBUSTNESS, table), table, bench)
    assert capsys.readouterr().err == "Figure 3: measuring, 0 of 32 done\n"
    measure_missing(plan(3, ROBUSTNESS, table), table, bench)
    assert capsys.readouterr().err == ""


def test_only_the_boundary_needs_the_networks_of_all_methods(table, tmp_path):
    network = networks(read_runs(table))[0]
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    bench.folder(network.config).mkdir(parents=True)
    (bench.folder(network.config) / "weights.safetensors").touch()
    assert network.rivals
    assert bench.has(network, with_rivals=False)
    assert not bench.has(network, with_rivals=True)
    kinds = (Robustness, Distances, TimeAndError)
    assert [kind().needs_rivals for kind in kinds] == [False, True, False]


def test_each_network_is_measured_once_even_after_an_interruption(table, tmp_path, counted):
    the_plan = plan(3, ROBUSTNESS, table)
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    counted.fail_at = 6  # in the middle of the second network
    with pytest.raises(KeyboardInterrupt):
        measure_missing(the_plan, table, bench)
    section = figure(the_plan, table)
    assert (section.notes[-1], section.warnings) == ("Still missing: 7 of 8 networks.", ())
    counted.fail_at = None
    measure_missing(the_plan, table, bench)
    assert len(counted.done) == len(set(counted.done)) == 8 * 4
    measure_missing(the_plan, table, bench)
    assert len(counted.done) == 8 * 4
    assert figure(the_plan, table).notes[-1].startswith("Measured on")
    longer = replace(the_plan, measurement=replace(the_plan.measurement, steps=(0, 4, 8)))
    measure_missing(longer, table, bench)  # what did not change is not measured again
    assert {name for _, name in counted.done[32:]} == {"pgd", "tpgd"}


def test_what_another_figure_has_measured_is_taken_over(table, tmp_path, counted):
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    first = plan(3, ROBUSTNESS, table)
    measure_missing(first, table, bench)
    assert len(counted.done) == 8 * 4
    lost = subjects(first, table).networks[0].config
    lines = first.results.read_text().splitlines(keepends=True)
    first.results.write_text("".join(line for line in lines if lost.id not in line))
    second = named(first, "attacks-digits")
    measure_missing(second, table, bench)
    assert {network for network, _ in counted.done[32:]} == {lost.id}
    assert figure(second, table).tables[0].rows[0][:2] == ("none", "2")
    other = named(second, "other-digits", measurement=replace(ROBUSTNESS, images=200))
    measure_missing(other, table, bench)
    assert len(counted.done) == 8 * 4 + 4 + 8 * 4  # other settings: all are measured


@pytest.fixture
def measured(monkeypatch):
    """The networks that were measured, which takes no time."""
    done = []
    monkeypatch.setattr(Bench, "has", lambda self, network, with_rivals: True)
    for kind in (Distances, TimeAndError):
        monkeypatch.setattr(
            kind, "measure", lambda self, name, network, _: done.append(network) or {name: {}}
        )
    return done


def test_distances_beside_other_rivals_are_not_taken_over(table, tmp_path, measured):
    """They are those of points that all methods classify correctly."""
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    first = plan(4, Distances(images=100, directions=5), table)
    measure_missing(first, table, bench)
    measure_missing(named(first, "again"), table, bench)
    assert len(measured) == 8
    fewer = replace(table, runs=tuple(run for run in table.runs if run.label != "none"))
    measure_missing(named(first, "fewer"), fewer, bench)
    assert len(measured) == 8 + 6


def test_times_are_not_taken_over(table, tmp_path, measured):
    """They are this machine's."""
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    for name in ("first", "second"):
        measure_missing(named(plan(5, TimeAndError(), table), name), table, bench)
    assert len(measured) == 2 * 6


def test_what_was_measured_of_an_own_net_is_not_taken_over(table, tmp_path, counted):
    """Its code may have changed since."""
    file = tmp_path / "mine.toml"
    file.write_text(EXPERIMENT.replace("epochs = 3", 'epochs = 3\nnet = "my.nets:small"'))
    mine = read_experiment(file)
    screen(mine, lambda config: 0.5)
    full(mine, ACCURACY, lambda config: True)
    bench = Bench("digits", tmp_path / "runs", None, torch.device("cpu"))
    for name in ("first-mine", "second-mine"):
        measure_missing(named(plan(3, ROBUSTNESS, table), name), mine, bench)
    assert len(counted.done) == 2 * 8 * 4


def test_records_of_a_newer_version_are_left_alone(table, tmp_path, counted):
    the_plan = plan(3, Robustness(images=100), table)
    network = subjects(the_plan, table).networks[0]
    newer = json.dumps({"version": 2, "id": network.config.id}) + "\n"
    the_plan.results.write_text(newer)
    measure_missing(the_plan, table, Bench("digits", tmp_path / "runs", None, torch.device("cpu")))
    assert counted.done == []
    assert the_plan.results.read_text() == newer


def test_without_weights_nothing_is_measured(table, tmp_path, capsys):
    the_plan = plan(3, Robustness(images=100), table)
    measure_missing(the_plan, table, Bench("digits", tmp_path / "runs", None, torch.device("cpu")))
    assert not the_plan.results.exists()
    assert "the weights of 8 networks are not in" in capsys.readouterr().err


def test_percentiles_keep_the_distribution():
    assert percentiles([float(i) for i in range(101)]) == [float(i) for i in range(101)]
    half = percentiles([1.0, 2.0, None, None])
    assert half[0] == 1.0
    assert half[50] == 2.0
    assert half[100] is None


def test_distances_are_those_of_evaluate(monkeypatch):
    """A record's median is that of all distances, on the points that the rivals classify correctly too."""
    # The attack has tests of its own, and foolbox takes seconds to import.
    attack = lambda model, x, y: x.flatten(1).norm(dim=1)
    monkeypatch.setattr(sys.modules[boundary.__module__], "l2_distance", attack)
    data = load("digits")
    own = Normalized(MLP((64, 10, 10)), data.mean, data.std).eval()
    rival = copy.deepcopy(own)
    with torch.no_grad():
        rival.body[-1].bias += 0.05 * torch.randn(10)
        labels = own(data.test.images).argmax(1)  # own is always right, rival mostly
    network = SimpleNamespace(config="own", rivals=("rival",))
    bench = SimpleNamespace(
        data=data,
        trained=lambda name: SimpleNamespace(
            model={"own": own, "rival": rival}[name], config=SimpleNamespace(id=name)
        ),
        test=lambda images: Split(data.test.images[:images], labels[:images]),
    )
    found = Distances(images=40, directions=4).measure("boundary", network, bench)["boundary"]
    whole = boundary(own, bench.test(40), compared_with=[rival], directions=4)
    assert 20 < found["points"] == len(whole.points) < 40
    for kind in ("sampled", "attack", "first_order"):
        assert found[kind][0] == min(getattr(whole, kind))
        assert found[kind][50] == sorted(getattr(whole, kind))[(len(whole.points) - 1) // 2]


def test_rivals_share_the_seed(table, tmp_path):
    found = subjects(plan(4, Distances(), table), table).networks
    assert len(found) == 8
    for network in found:
        assert isinstance(network, Network)
        assert {rival.seed for rival in network.rivals} == {network.config.seed}
        assert {rival.label for rival in network.rivals} | {network.label} == set(ACCURACY)
