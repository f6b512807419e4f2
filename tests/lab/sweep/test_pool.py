"""The loop that all pools share. The test decides how workers end."""

from dataclasses import dataclass, field

import pytest

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep import pool as pool_module
from jacnorm.lab.sweep.pool import Ending, Pool
from jacnorm.lab.sweep.store import MAX_ATTEMPTS, Store

RUNS = tuple(RunConfig(seed=seed) for seed in range(3))
DONE, ELSEWHERE = "done", Ending()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(pool_module, "POLL_SECONDS", 0)


def finish(store, config):
    store.publish(config, {"id": config.id, "config": {}, "test": {}, "history": [{"validation_loss": 1.0}]})


@dataclass
class Scripted:
    config: RunConfig
    store: Store
    ending: object
    stopped: bool = False

    def poll(self):
        if self.ending is DONE:
            finish(self.store, self.config)
            return Ending()
        if isinstance(self.ending, BaseException):
            raise self.ending
        return self.ending

    def stop(self):
        self.stopped = True


@dataclass(kw_only=True)
class ScriptedPool(Pool):
    """`script` says how each attempt of a run ends. A run without a script is done at once."""

    script: dict = field(default_factory=dict)
    started: list = field(default_factory=list)
    slots: int = 2

    def _slots(self):
        return self.slots

    def _start(self, config):
        endings = self.script.get(config.seed, [])
        self.started.append(Scripted(config, self.store, endings.pop(0) if endings else DONE))
        return self.started[-1]


def pool_in(folder, **options):
    store = Store(folder / "small.jsonl", folder / "runs")
    return ScriptedPool(store, **options)


def seeds(workers):
    return [worker.config.seed for worker in workers]


def test_every_run_is_done_once_and_no_more_run_than_there_is_room_for(tmp_path):
    pool, seen = pool_in(tmp_path), []
    pool.run_all(RUNS, lambda running: seen.append(len(running)))
    assert seeds(pool.started) == [0, 1, 2]
    assert max(seen) == 2
    assert all(pool.store.is_done(run) for run in RUNS)


def test_what_is_done_or_has_failed_for_good_is_left_alone(tmp_path):
    pool = pool_in(tmp_path)
    finish(pool.store, RUNS[0])
    for _ in range(MAX_ATTEMPTS):
        pool.store.add_failure(RUNS[1], "no luck")
    pool.run_all(RUNS, lambda running: None)
    assert seeds(pool.started) == [2]


def test_a_run_that_is_somebody_elses_just_now_is_tried_again_and_nothing_is_counted(tmp_path):
    pool = pool_in(tmp_path, script={0: [ELSEWHERE] * (MAX_ATTEMPTS + 2)})
    pool.run_all(RUNS, lambda running: None)
    assert seeds(pool.started).count(0) == MAX_ATTEMPTS + 3
    assert pool.store.is_done(RUNS[0])
    assert pool.store.failures(RUNS[0]) == []


def test_failures_are_counted_with_their_reasons(tmp_path):
    reasons = [Ending(f"reason {i}") for i in range(MAX_ATTEMPTS)]
    pool = pool_in(tmp_path, script={0: [*reasons], 1: reasons[:-1]})
    pool.run_all(RUNS, lambda running: None)
    assert pool.store.failures(RUNS[0]) == ["reason 0", "reason 1", "reason 2"]
    assert pool.store.has_failed(RUNS[0])
    assert not pool.store.is_done(RUNS[0])
    assert pool.store.is_done(RUNS[1])  # in its last attempt
    assert seeds(pool.started).count(0) == seeds(pool.started).count(1) == MAX_ATTEMPTS


def test_a_run_that_another_sweep_gives_up_is_not_tried_again(tmp_path):
    pool = pool_in(tmp_path, slots=0)  # nothing starts here while the other sweep trains it

    def watch(running):
        if pool.store.has_failed(RUNS[2]):
            pool.slots = 2
        else:
            pool.store.add_failure(RUNS[2], "no luck there")

    pool.run_all(RUNS, watch)
    assert seeds(pool.started) == [0, 1]
    assert len(pool.store.failures(RUNS[2])) == MAX_ATTEMPTS


@pytest.mark.parametrize("where", ["watch", "poll"])
def test_what_runs_is_stopped_when_the_sweep_is(where, tmp_path):
    pool = pool_in(tmp_path, script={0: [None], 1: [None if where == "watch" else KeyboardInterrupt()]})

    def watch(running):
        if where == "watch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run_all(RUNS, watch)
    assert [worker.stopped for worker in pool.started] == [True, True]


def test_waits_while_there_is_no_room(tmp_path):
    pool = pool_in(tmp_path, slots=0)
    seen = []

    def watch(running):
        seen.append(list(running))
        pool.slots = int(len(seen) >= 3)

    pool.run_all(RUNS, watch)
    assert seen[:3] == [[], [], []]
    assert all(pool.store.is_done(run) for run in RUNS)


def test_a_report_that_some_epochs_lack_is_no_column(tmp_path):
    """In an epoch without penalty there is no report of it."""
    store, config = Store(tmp_path / "results.jsonl", tmp_path / "runs"), RUNS[0]
    history = [{"validation_loss": 1.0, "sigma_error": -0.1}, {"validation_loss": 0.5}]
    store.publish(config, {"id": config.id, "config": {}, "test": {}, "history": history})
    assert store.result(config)["history"] == {"validation_loss": [1.0, 0.5]}
