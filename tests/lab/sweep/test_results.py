"""Lines are only added to the file. A kill at any moment loses no finished record and doubles none."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import jacnorm
from jacnorm.lab.cli import main
from jacnorm.lab.results import (
    add_results,
    append_result,
    experiment_file,
    neighbours,
    read_result,
    read_results,
    results_file,
)


def run(i, **more):
    return {"id": f"run-{i}", "config": {"seed": i}, "test": {}, "history": {"loss": [1.0] * 400}, **more}


def ids(file):
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_a_line_that_was_cut_short_at_any_byte_does_not_count_and_is_removed_by_the_next(tmp_path):
    file = tmp_path / "my.jsonl"
    small = {"id": "a", "config": {}, "test": {}, "history": {}}
    append_result(file, small)
    append_result(file, {**small, "id": "σ"})
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        file.write_bytes(whole[:end])
        assert list(read_results(file).records) == ["a"]
        assert len(read_results(file).warnings) == (end > first)
        append_result(file, {**small, "id": "σ"})
        assert file.read_bytes() == whole
        assert read_results(file).warnings == ()


def test_a_record_is_not_added_twice(tmp_path):
    file = tmp_path / "my.jsonl"
    for _ in range(2):
        append_result(file, run(1))
    assert ids(file) == ["run-1"]


def test_what_is_measured_of_a_network_comes_in_parts(tmp_path):
    file, head = tmp_path / "my.jsonl", {"id": "a", "config": {}}
    part = lambda name, images, value: {
        **head,
        "settings": {name: {"images": images, "steps": (0, 0.1 + 0.2)}},
        **({"noise": value} if name == "noise" else {"attacks": {name: value}}),
    }
    for one in (part("noise", 5, 1), part("pgd", 5, 2), part("square", 5, 3), part("pgd", 5, 99)):
        append_result(file, one)
    assert len(ids(file)) == 3  # the last record was there
    append_result(file, part("pgd", 7, 4))  # measured again with other settings
    found = read_results(file).records["a"]
    assert (found["noise"], found["attacks"]) == (1, {"pgd": 4, "square": 3})
    assert {name: how["images"] for name, how in found["settings"].items()} == {
        "noise": 5,
        "pgd": 7,
        "square": 5,
    }


# Results need no PyTorch, which takes seconds to import: the package without what its __init__ does.
WRITER = f"""
import sys, types
from pathlib import Path
sys.modules["jacnorm"] = types.ModuleType("jacnorm")
sys.modules["jacnorm"].__path__ = {list(jacnorm.__path__)}
from jacnorm.lab.results import append_result
file, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for i in range(first, last):
    history = {{"loss": [1.0] * 4000}}
    append_result(file, {{"id": f"run-{{i}}", "config": {{}}, "test": {{}}, "history": history}})
    print(i, flush=True)
"""


def writer(file, first, last):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file), str(first), str(last)], stdout=subprocess.PIPE, text=True
    )


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_processes_that_are_killed_while_they_write(tmp_path):
    """A record that a process has reported is in the file once. The next process continues."""
    file, dice, said = tmp_path / "my.jsonl", random.Random(0), set()
    for _ in range(4):
        process, size = writer(file, 0, 100_000), file.stat().st_size if file.exists() else 0
        wait_for(lambda size=size: file.exists() and file.stat().st_size > size + 200_000)
        time.sleep(dice.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        said |= set(map(int, process.communicate()[0].split()))
        found = read_results(file)
        assert {f"run-{i}" for i in said} <= set(found.records)
        assert len(found.damaged) <= 1  # at most the last line
    append_result(file, run(-1))
    there = ids(file)
    assert len(set(there)) == len(there) > 40
    assert read_results(file).warnings == ()


def test_processes_that_write_at_once(tmp_path):
    """Each process writes all runs, as two sweeps on one folder do."""
    file = tmp_path / "my.jsonl"
    processes = [writer(file, 0, 40) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    for process in processes:
        process.stdout.close()
    assert sorted(ids(file)) == sorted(f"run-{i}" for i in range(40))


def test_a_file_that_was_replaced_while_we_waited_for_it(tmp_path, monkeypatch):
    """git does this when it pulls. New lines must not go into the old file."""
    file, lock = tmp_path / "my.jsonl", __import__("fcntl").flock
    append_result(file, run(1))
    replaced = []

    def slow(*args):
        if not replaced:
            replaced.append(1)
            (tmp_path / "new").write_bytes(file.read_bytes())
            os.replace(tmp_path / "new", file)
        lock(*args)

    monkeypatch.setattr("jacnorm.lab.results.fcntl.flock", slow)
    append_result(file, run(2))
    assert ids(file) == ["run-1", "run-2"]


def test_results_lie_beside_their_experiment(tmp_path):
    mine, theirs = tmp_path / "my.toml", tmp_path / "table1-x" / "experiment.toml"
    assert results_file(mine) == tmp_path / "my.jsonl"
    assert results_file(theirs) == tmp_path / "table1-x" / "results.jsonl"
    assert results_file(theirs, tmp_path) == tmp_path / "table1-x.jsonl"
    theirs.parent.mkdir()
    theirs.touch()
    assert experiment_file(mine, "table1-x") == theirs
    assert experiment_file(theirs, "../my") == mine


def test_experiments_of_a_folder_share_a_file(tmp_path):
    """Each experiment has its own lines, even if two share a run. The others are its neighbours."""
    checks = tmp_path / "paper" / "checks"
    checks.mkdir(parents=True)
    shared = checks / "results.jsonl"
    shared.touch()
    a, b = (results_file(checks / name) for name in ("a.toml", "b.toml"))
    assert not read_results(a).records
    for file, record in ((a, run(1)), (b, run(1)), (b, run(2)), (b, run(2))):
        append_result(file, record)
    assert ids(shared) == ["run-1", "run-1", "run-2"]
    assert read_results(a).records == {"run-1": {"version": 1, **run(1)}}
    assert list(read_results(b).records) == ["run-1", "run-2"]
    assert neighbours(a) == [b]
    assert neighbours(checks / "d.jsonl") == [a, b]
    shared.write_bytes(shared.read_bytes()[:-1])
    assert read_results(a).damaged == read_results(b).damaged == (f"{shared}, line 3: cut short",)
    append_result(a, run(3))
    assert ids(shared) == ["run-1", "run-1", "run-3"]
    (checks / "b.jsonl").touch()  # an own file comes first
    assert results_file(checks / "b.toml") == checks / "b.jsonl"
    assert add_results(b, checks / "b.jsonl") == 1
    assert read_results(checks / "b.jsonl").records == {"run-1": {"version": 1, **run(1)}}


def test_results_of_before_are_carried_over_by_one_command(tmp_path, monkeypatch, capsys):
    """A folder of an earlier version, with one file per run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("grid = {seed = [0, 1]}")
    old = tmp_path / "results" / "my"
    old.mkdir(parents=True)
    for i in range(2):
        (old / f"run-{i}.json").write_text(json.dumps(run(i), indent=1))
    assert main(["sweep", "my.toml", "--status"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    command = "python -m jacnorm.lab.results results/my my.jsonl"
    assert told.endswith(command)
    for _ in range(2):
        done = subprocess.run([sys.executable, *command.split()[1:]], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "my.jsonl: 2 results from results/my\n")
    assert read_results(tmp_path / "my.jsonl").records["run-1"] == {"version": 1, **run(1)}
    assert ids(tmp_path / "my.jsonl") == ["run-0", "run-1"]
    assert main(["sweep", "my.toml", "--status"]) == 0


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_result_that_cannot_be_read(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(Exception, match=r"cut short or not JSON|not a result"):
        read_result(tmp_path / "x.json")
