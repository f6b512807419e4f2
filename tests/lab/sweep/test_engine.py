"""The loop that all engines share, with workers that end as the test says."""

from dataclasses import dataclass, field

import pytest

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep import engine as engine_module
from jacnorm.lab.sweep.engine import Ending, Engine
from jacnorm.lab.sweep.store import MAX_ATTEMPTS, Store

RUNS = tuple(RunConfig(seed=seed) for seed in range(3))
DONE, ELSEWHERE = "done", Ending()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(engine_module, "POLL_SECONDS", 0)


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
class ScriptedEngine(Engine):
    """`script` has how each attempt of each run ends; runs without one are done at once."""

    script: dict = field(default_factory=dict)
    started: list = field(default_factory=list)
    slots: int = 2

    def _slots(self):
        return self.slots

    def _start(self, config):
        endings = self.script.get(config.seed, [])
        self.started.append(Scripted(config, self.store, endings.pop(0) if endings else DONE))
        return self.started[-1]


def engine_in(folder, **options):
    store = Store(folder / "small.jsonl", folder / "runs")
    return ScriptedEngine(store, **options)


def seeds(workers):
    return [worker.config.seed for worker in workers]


def test_every_run_is_done_once_and_no_more_run_than_there_is_room_for(tmp_path):
    engine, seen = engine_in(tmp_path), []
    engine.run_all(RUNS, lambda running: seen.append(len(running)))
    assert seeds(engine.started) == [0, 1, 2]
    assert max(seen) == 2
    assert all(engine.store.is_done(run) for run in RUNS)


def test_what_is_done_or_has_failed_for_good_is_left_alone(tmp_path):
    engine = engine_in(tmp_path)
    finish(engine.store, RUNS[0])
    for _ in range(MAX_ATTEMPTS):
        engine.store.add_failure(RUNS[1], "no luck")
    engine.run_all(RUNS, lambda running: None)
    assert seeds(engine.started) == [2]


def test_a_run_that_is_somebody_elses_just_now_is_tried_again_and_nothing_is_counted(tmp_path):
    engine = engine_in(tmp_path, script={0: [ELSEWHERE] * (MAX_ATTEMPTS + 2)})
    engine.run_all(RUNS, lambda running: None)
    assert seeds(engine.started).count(0) == MAX_ATTEMPTS + 3
    assert engine.store.is_done(RUNS[0])
    assert engine.store.failures(RUNS[0]) == []


def test_failures_are_counted_with_their_reasons(tmp_path):
    reasons = [Ending(f"reason {i}") for i in range(MAX_ATTEMPTS)]
    engine = engine_in(tmp_path, script={0: [*reasons], 1: reasons[:-1]})
    engine.run_all(RUNS, lambda running: None)
    assert engine.store.failures(RUNS[0]) == ["reason 0", "reason 1", "reason 2"]
    assert engine.store.has_failed(RUNS[0])
    assert not engine.store.is_done(RUNS[0])
    assert engine.store.is_done(RUNS[1])  # at its last attempt
    assert seeds(engine.started).count(0) == seeds(engine.started).count(1) == MAX_ATTEMPTS


def test_a_run_that_another_sweep_gives_up_is_not_tried_again(tmp_path):
    engine = engine_in(tmp_path, slots=0)  # nothing starts here while the other one is at it

    def watch(running):
        if engine.store.has_failed(RUNS[2]):
            engine.slots = 2
        else:
            engine.store.add_failure(RUNS[2], "no luck there")

    engine.run_all(RUNS, watch)
    assert seeds(engine.started) == [0, 1]
    assert len(engine.store.failures(RUNS[2])) == MAX_ATTEMPTS


@pytest.mark.parametrize("where", ["watch", "poll"])
def test_what_runs_is_stopped_when_the_sweep_is(where, tmp_path):
    engine = engine_in(tmp_path, script={0: [None], 1: [None if where == "watch" else KeyboardInterrupt()]})

    def watch(running):
        if where == "watch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run_all(RUNS, watch)
    assert [worker.stopped for worker in engine.started] == [True, True]


def test_waits_while_there_is_no_room(tmp_path):
    engine = engine_in(tmp_path, slots=0)
    seen = []

    def watch(running):
        seen.append(list(running))
        engine.slots = int(len(seen) >= 3)

    engine.run_all(RUNS, watch)
    assert seen[:3] == [[], [], []]
    assert all(engine.store.is_done(run) for run in RUNS)
