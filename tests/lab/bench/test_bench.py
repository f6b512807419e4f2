"""The ways of the benchmark compute what they claim, and its numbers arrive on the page."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import jacnorm as jn
from jacnorm.lab.bench import forms, memory, parts, peers, starts, suites, timing, zoo
from jacnorm.lab.bench.by_hand import by_hand
from jacnorm.lab.bench.nets import NETS, batch, make
from jacnorm.lab.bench.networks import NETWORKS, network
from jacnorm.lab.bench.networks_page import aims_in_words, ordered
from jacnorm.lab.bench.page import markdown, picture
from jacnorm.lab.bench.quality import Following
from jacnorm.lab.bench.targets import AIMS, course
from jacnorm.lab.bench.targets_page import picture_of_targets, targets_in_words
from jacnorm.lab.bench.timing import stepper
from jacnorm.lab.bench.ways import DEFAULT, DOUBLE, FROBENIUS, PUSH, WAYS, WEIGHT
from jacnorm.lab.cli import main
from jacnorm.lab.data import DataSet, Split

ROOT = Path(__file__).parents[3]

X, LABELS, INDEX = batch("lenet", 4)


def test_the_clock_can_be_imported_first():
    """The evaluations use it, and it uses none of them."""
    code = "import sys, jacnorm.lab.bench.timing; sys.exit('jacnorm.lab.evaluate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def exact(net):
    return torch.linalg.matrix_norm(jn.linearize(net, X).dense().detach(), 2)


def gradient(net, sigma):
    net.zero_grad()
    sigma.sum().backward()  # some ways learn from the backward pass
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in net.parameters()]
    )


@pytest.mark.parametrize("way", [w for w in WAYS if w.estimates], ids=lambda w: w.name)
def test_estimates_come_from_below(way):
    net = make("lenet")
    output, penalty = way.make(net)(X, INDEX)
    torch.testing.assert_close(output, net(X))
    assert 0 < penalty.item() / WEIGHT / float(exact(net).mean()) < 1 + 1e-4


@pytest.mark.parametrize("estimate", [forms.StoredBackward, forms.StoredForward, forms.StoredRefined])
def test_they_converge_to_the_exact_norm_and_its_gradient(estimate):
    net = make("lenet")
    way = estimate(net)
    for _ in range(40):
        _, sigma = way(X, INDEX)
        found = gradient(net, sigma)
    torch.testing.assert_close(sigma.detach(), exact(net), rtol=2e-2, atol=0)
    expected = gradient(net, jn.AnalyticPenalty(1.0)(jn.linearize(net, X)))
    assert torch.cosine_similarity(found, expected, dim=0) > 0.99


@pytest.mark.parametrize("name", ["mlp", "vit-64"])
def test_the_sweeps_written_out_converge_to_the_exact_penalty(name):
    net, (x, _, index) = make(name), batch(name, 4)
    way = by_hand(net, WEIGHT)
    for _ in range(60):
        output, penalty = way(x, index)
    found = gradient(net, penalty)
    torch.testing.assert_close(output, net(x))
    expected = jn.AnalyticPenalty(WEIGHT)(jn.linearize(net, x))
    torch.testing.assert_close(penalty.detach(), expected.detach(), rtol=1e-3, atol=0)
    assert torch.cosine_similarity(found, gradient(net, expected), dim=0) > 0.999


@pytest.mark.parametrize("name", [DEFAULT, FROBENIUS])
def test_the_ways_with_half_precision_round(name, monkeypatch):
    monkeypatch.setattr("jacnorm.pytorch.half.half_pays", lambda *_: True)
    found, single = (
        gradient(net, way.make(net)(X, INDEX)[1])
        for way in WAYS
        if way.name in (name, f"{name}, bfloat16")
        for net in [make("lenet")]
    )
    assert 1e-5 < float((found - single).norm() / single.norm()) < 0.05


def test_the_papers_analytical_norm_is_exact():
    net = make("lenet")
    _, sigma = peers.rows_and_svd(net)(X, INDEX)
    torch.testing.assert_close(sigma.detach(), exact(net))
    expected = gradient(net, len(X) * jn.AnalyticPenalty(1.0)(jn.linearize(net, X)))
    torch.testing.assert_close(gradient(net, sigma), expected, rtol=1e-3, atol=1e-5)


def test_both_frobenius_estimates_have_the_same_mean():
    net = make("lenet")
    torch.manual_seed(0)
    found = torch.stack([peers.frobenius(net)(X, INDEX)[1].detach() for _ in range(100)]).mean()
    expected = jn.frobenius_norm(jn.linearize(net, X)).square().mean()
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0)


def test_the_start_at_the_losss_gradient():
    """One round of power iteration from softmax(z) − e_c."""
    net = make("lenet")
    output, sigma = forms.FromLoss(net)(X, INDEX)
    dense = jn.linearize(net, X).dense().detach()
    u = output.detach().softmax(1) - torch.eye(10)[output.argmax(1)]
    v = torch.nn.functional.normalize(torch.einsum("boi,bo->bi", dense, u))
    expected = torch.einsum("boi,bi->bo", dense, v).norm(dim=1)
    torch.testing.assert_close(sigma.detach(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", [name for name in NETS if "1024" not in name])  # it is there with 256
def test_every_net_takes_a_step(name):
    way = next(w for w in WAYS if w.name == DEFAULT)
    stepper(make(name, width=0.1), way.make, batch(name, 2))()


@pytest.mark.parametrize("net", ["transformer", "lenet"])
def test_parts_of_a_step(net):
    found = parts.shares(make(net), batch(net, 2))
    assert found["J v and the terms"] > 0
    assert found["terms handed over"] > 0


def test_parts_of_a_step_in_which_the_model_is_verified_do_not_count(monkeypatch):
    taken = []

    def watched(model, x):
        taken.append(jn.linearize(model, x))
        return taken[-1]

    monkeypatch.setattr(parts, "linearize", watched)
    monkeypatch.setattr(parts, "SECONDS", 0)
    parts.shares(make("lenet"), batch("lenet", 2))
    assert [J.verified for J in taken] == [True, True, False, True, False, False]


def test_following_a_training():
    digits = torch.rand(64, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    split = Split(digits, torch.arange(64) % 10)
    ways = [w for w in WAYS if w.name in (DEFAULT, "spectral, random start", "stored u, backward form")]
    following = Following(DataSet.of("noise", split, split, tuple("0123456789")), ways, batch_size=16)
    first, *_, last = (following.epoch() for _ in range(7))
    assert last[DEFAULT] < first[DEFAULT] / 2
    assert last[DEFAULT] < last["spectral, random start"]
    cosines = following.cosines(images=16)
    assert 1 > cosines[DEFAULT] > max(0.9, cosines["spectral, random start"])


def test_the_command_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing, "ROUNDS", (3, 3))
    monkeypatch.setattr(parts, "SECONDS", 0)
    monkeypatch.setitem(NETS, "lenet", (*NETS["lenet"][:2], 512))
    monkeypatch.setattr(suites, "WAYS", [w for w in WAYS if w.name == DEFAULT])
    monkeypatch.setattr(suites, "OUTPUTS", (10, 40))
    out = ["--out", str(tmp_path)]
    assert main(["bench", "methods", "--batch", "4", *out]) == 0
    assert main(["bench", "measure", "--images", "20", *out]) == 0
    assert "times faster" in capsys.readouterr().out
    found = json.loads((tmp_path / "bench.json").read_text())
    numbers = found["methods"]["lenet, batch 4"]
    assert 1e-9 < numbers["one_minus_cosine"] < 1e-3
    assert numbers["cost"][DEFAULT] > 1
    assert numbers["parts"]["forward"] + numbers["parts"]["backward"] == pytest.approx(1, abs=0.3)
    assert numbers["memory"]["plain"] < numbers["memory"][DEFAULT]
    assert [row["largest_difference"] < 1e-3 for row in found["measure"]["rows"]] == [True, True]
    page = (tmp_path / "index.md").read_text()
    assert f"| {DEFAULT} |" in page
    assert "## Measuring" in page


def test_memory_of_a_linear_map():
    """The output, its gradient and softmax, the weights' gradient and momentum, and the penalty's term."""
    model, size, width = torch.nn.Linear(512, 400, bias=False), 64, 4 * 512 * 400 / 1e6
    samples = torch.randn(size, 512), torch.randint(400, (size,)), torch.arange(size)
    found = memory.growth(model, [w for w in WAYS if w.name == DEFAULT], samples)
    vector = 4 * size * 512 / 1e6
    assert 2 * width < found["plain"] < 2 * width + 5 * vector
    assert 3 * width < found[DEFAULT] < 4 * width + 8 * vector
    assert memory.growth(model, [], samples) == {"plain": found["plain"]}


def test_all_networks_one_after_the_other(tmp_path, monkeypatch, capsys):
    """Networks that another version has measured are measured again. Those of this version are not."""
    measured = []

    def methods(network, width):
        measured.append(network.name)
        if len(measured) == 3:
            raise KeyboardInterrupt
        numbers = {"jacnorm": jn.__version__, "batch": network.batch, "width": width, "memory_batch": 1}
        return numbers | {"cost": {DEFAULT: 2.0}, "parts": {"forward": 0.3}, "memory": {}}

    monkeypatch.setattr(suites, "methods", methods)
    old = {"lenet": {"batch": 32, "width": 1.0, "cost": {}, "parts": {}, "memory": {}, "memory_batch": 1}}
    (tmp_path / "bench.json").write_text(json.dumps({"methods": old}))
    out = ["bench", "methods", "--net", "all", "--out", str(tmp_path)]
    assert main(out) == 130
    assert list(json.loads((tmp_path / "bench.json").read_text())["methods"]) == measured[:2]
    assert main(out) == 0
    assert measured == [n.name for n in NETWORKS[:3]] + [n.name for n in NETWORKS[2:]]
    assert main(out) == 0
    assert len(measured) == len(NETWORKS) + 1
    assert f"| {NETWORKS[-1].name} | 2.00 |" in capsys.readouterr().out


def test_the_networks_of_the_page_are_nets_and_others_have_every_way():
    assert all(n.net in NETS and network(n.net, n.batch) is n for n in NETWORKS)
    assert network("lenet", 5).has_all


def test_aims():
    """From known numbers: in plain steps, in steps by double backward, and in memory."""
    cost = {DEFAULT: 2.36, FROBENIUS: 2.30, DOUBLE: 2.3, PUSH: 1.4}
    vit = {"width": 1.0, "cost": cost, "memory": {}}
    large = {"width": 1.0, "cost": {}, "memory": {"plain": 10.0, DEFAULT: 23.0, PUSH: 17.0}}
    text = aims_in_words({"vit-192, batch 8": vit, "vit-128, 1024 tokens, batch 2": large})
    assert f"| vit-192, batch 8 | {DEFAULT} | 2.36 | 2.35 | no |" in text
    assert f"| vit-192, batch 8 | {FROBENIUS} | 2.30 | 2.35 | yes |" in text
    assert f"| vit-192, batch 8 | {DEFAULT}, in steps by double backward | 1.03 | 1.05 | yes |" in text
    assert f"| vit-128, 1024 tokens, batch 2 | memory, {DEFAULT} | 2.30 | 2.4 | yes |" in text
    assert f"| vit-128, 1024 tokens, batch 2 | memory, {PUSH} | 1.70 | 1.6 | no |" in text
    assert "Of 7 aims 2 are missed." in text
    assert aims_in_words({"lenet, batch 5": vit}) is None


def test_networks_are_in_the_order_of_the_page():
    names = [NETWORKS[2].name, "lenet, batch 5", NETWORKS[0].name]
    assert list(ordered(dict.fromkeys(names))) == [NETWORKS[0].name, NETWORKS[2].name, "lenet, batch 5"]


def test_a_page_and_picture_of_known_numbers():
    costs = {DEFAULT: 2.1, "dual numbers": 4.5, "Algorithm 1, unrolled": 2.6}
    numbers = {"batch": 32, "width": 1, "cost": costs, "one_minus_cosine": 0.00013, "memory_batch": 8}
    found = {
        "environment": {"system": "Linux", "torch": "2"},
        "methods": {
            "lenet, batch 32": numbers
            | {"memory": {"plain": 10.0, DEFAULT: 25.0}, "parts": {"forward": 0.337}}
        },
        "training": {"data": "kmnist", "error": {DEFAULT: [0.2, 0.034]}, "cosine": {DEFAULT: 0.987}},
        "outputs": {"what": "outputs", "numbers": [10, 100], "cost": {DEFAULT: [2.1, 2.2]}},
    }
    page = markdown(found)
    assert "| lenet, batch 32 | 2.10 | 0.99987 |" in page
    assert f"| {DEFAULT} | 2.10 | 3.4% | 0.987 |" in page
    assert "| way | lenet, batch 8 |" in page
    assert "| dual numbers | 4.50 |  |  |" in page
    assert f"| {DEFAULT} | 2.5 |" in page  # memory
    assert "| forward | 0.34 |" in page
    assert f"| {DEFAULT} | 2.10 | 2.20 |" in page
    assert picture(found) is not None
    assert picture({"methods": found["methods"]}) is None


def test_mistakes(capsys):
    assert main(["bench", "methods", "--batch", "0"]) == 2
    assert "--batch 0: it must be 1 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "speed"])


def test_starts_on_a_small_net(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(starts, "WATCHED", 30)  # until all samples were seen
    monkeypatch.setattr(starts, "TRIED", 1)
    out = ["--steps", "30", "--out", str(tmp_path)]
    for net in ("critic", "LSTM"):  # side by side
        assert main(["bench", "starts", "--nets", net, *out]) == 0
    assert "| recent samples | 1 | 2.5 |" in capsys.readouterr().out
    found = json.loads((tmp_path / "bench.json").read_text())["starts"]
    assert list(found) == ["critic", "LSTM"]
    assert all(
        way["cosine"] > 0.999 for way in found["critic"]["trained"]
    )  # with one output there is nothing to search
    ways = {(way["start"], way["rounds"]): way for way in found["LSTM"]["trained"]}
    assert ways["scores", 3]["products"] == 7
    assert ways["index=", 1]["products"] == 2
    assert ways["J on a random v", 1]["products"] == 3
    assert ways["scores", 3]["cosine"] > ways["scores", 1]["cosine"]
    assert (tmp_path / "starts.svg").exists()


def test_the_default_start_is_good_or_says_what_to_do():
    """On the trained nets of the page the cosine is 0.9 or more, or there is a warning."""
    found = json.loads((ROOT / "docs/benchmarks/bench.json").read_text())["starts"]
    assert list(found) == [pupil.name for pupil in zoo.PUPILS]
    for net, of in found.items():
        ways = {(way["start"], way["rounds"]): way for way in of["trained"]}
        default = ways["recent samples", 1]
        assert default["cosine"] >= 0.9 or default["warns"], net
        assert ways["recent samples", "auto"]["cosine"] >= 0.9, net
    assert sum(of["trained"][0]["warns"] for of in found.values()) <= 3


@pytest.mark.parametrize("pupil", zoo.PUPILS, ids=lambda p: p.name)
def test_every_pupil_has_something_to_learn(pupil):
    lesson = starts.Lesson(pupil)
    J = lesson.linearized(torch.arange(4))
    assert J.reason is None
    pupil.loss(J.output, lesson.targets[:4]).backward()
    assert all(p.grad is not None for p in lesson.net.parameters() if pupil.at is None or p.dim() > 1)


def test_a_pupil_that_there_is_not(capsys):
    assert main(["bench", "starts", "--nets", "LeNet,Alice"]) == 2
    assert "there is no 'Alice'" in capsys.readouterr().err


def test_targets_become_a_table_and_a_picture():
    curve = {"steps": [10, 20, 30], "sigma": [3.0, 2.0, 1.02], "weight": [0.1, 0.2, 0.3], "score": 0.9}
    runs = [{**curve, "start": start} for start in (0.01, 1.0)]
    runs[1] = {**runs[1], "sigma": [3.0, 2.0, 1.2]}
    found = {"net": {"target": 1.0, "middle": 0.1, "runs": runs}}
    text = targets_in_words(found)
    assert "in 1 of 2 trainings" in text
    assert "| net | 1 | 0.01 | 1.020 | 1.020 | 1.020 | 1.020 | yes | 0.3 | 0.900 |" in text
    assert "| net | 1 | 1 | 1.200 |" in text
    assert len(picture_of_targets({"targets": found}).axes) == 2
    assert picture_of_targets({}) is None


def test_each_target_has_a_lesson_that_learns():
    for aim in AIMS:
        if "MNIST" in aim.name:  # these suites need data sets
            continue
        found = course(replace(aim, steps=9), None, aim.middle)
        assert found["steps"] == list(range(1, 10))
        assert len(set(found["sigma"])) == 9
        assert found["weight"][0] == aim.middle != found["weight"][-1]
