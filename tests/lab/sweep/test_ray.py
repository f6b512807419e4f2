"""A cluster of two machines, which Ray takes for real, and real kills."""

import importlib.util
import os
import re
import signal
from contextlib import suppress

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import AuthenticationError, OutOfMemoryError, TaskCancelledError
from small_sweep import (
    command,
    damaged_run,
    experiment,
    found,
    is_under_way,
    log_of,
    runs_of,
    store_in,
    wait_for_progress,
)

from jacnorm.lab.cli import main
from jacnorm.lab.sweep import ray as ray_module
from jacnorm.lab.sweep.pool import carry_out, order
from jacnorm.lab.sweep.ray import ClusterError, RayPool, RayWorker
from jacnorm.lab.sweep.run import status
from jacnorm.lab.sweep.store import MAX_ATTEMPTS

# Never at the same time as other tests that look for free ports, nor twice at the same time.
pytestmark = pytest.mark.xdist_group("processes that meet")
RUNS = runs_of(seeds=(0, 1))


@pytest.fixture(scope="module")
def cluster():
    """Two machines with room for one run each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = set(children())  # processes of other tests, which stay until the end
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    started = set(children()) - before
    yield cluster
    cluster.shutdown()
    assert_gone(started)


def children():
    return psutil.Process().children(recursive=True)


def assert_gone(processes):
    _, left = psutil.wait_procs(processes, timeout=30)
    assert left == []


def of_session(number):
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):  # the process has just ended
            if os.getsid(process.pid) == number:
                found.append(process)
    return found


def processes_of(store, run):
    """The processes that trained a run, by its log."""
    return re.findall(r"^On \S+, process (\d+)\.$", log_of(store, run), flags=re.MULTILINE)


def process_of(store, run):
    return psutil.Process(int(processes_of(store, run)[-1]))


def test_a_killed_process_is_counted_and_a_hopeless_run_given_up(tmp_path, cluster, undisturbed):
    store, killed = store_in(tmp_path), []
    good, bad = RUNS[0], damaged_run(store)
    for _ in range(MAX_ATTEMPTS - 1):
        store.add_failure(bad, "before")

    def kill_once(running):
        if not killed and good in running and is_under_way(store, good):
            process_of(store, good).kill()
            killed.append(good)

    RayPool(store, address=cluster.address).run_all((good, bad), kill_once)
    assert found(tmp_path) == {good.id: undisturbed()[good.id]}
    assert killed
    assert store.failures(good) == ["its process was killed or crashed (out of memory?)"]
    assert "Going on after epoch" in log_of(store, good)
    assert len(store.failures(bad)) == MAX_ATTEMPTS
    assert len(processes_of(store, bad)) == 1
    ((config, reason),) = status(store, (good, bad)).failed
    assert config == bad
    assert "not a readable safetensors file" in reason


def test_a_machine_that_is_lost_costs_an_epoch_and_no_attempt(tmp_path, cluster, undisturbed):
    store, lost = store_in(tmp_path), []
    (second,) = cluster.worker_nodes
    raylet = second.all_processes["raylet"][0].process.pid

    def lose_the_second(running):
        for run in running:
            if not lost and is_under_way(store, run) and process_of(store, run).ppid() == raylet:
                cluster.remove_node(second, allow_graceful=False)
                lost.append(run)

    RayPool(store, address=cluster.address).run_all(RUNS, lose_the_second)
    assert found(tmp_path) == {run.id: undisturbed()[run.id] for run in RUNS}
    assert len(lost) == 1
    for run in RUNS:
        assert store.failures(run) == []
        assert ("Its machine was lost" in log_of(store, run)) == (run in lost)
        assert ("Going on after epoch" in log_of(store, run)) == (run in lost)
    processes = [number for run in RUNS for number in processes_of(store, run)]
    assert len(set(processes)) == len(processes) == 3  # no process was used twice


def test_a_folder_that_a_machine_does_not_see_ends_the_sweep(tmp_path, cluster, monkeypatch):
    def elsewhere(*args):
        return order(*args) | {"results": str(tmp_path / "not mounted" / "small.jsonl")}

    monkeypatch.setattr(ray_module, "order", elsewhere)
    with pytest.raises(ClusterError, match=r"not mounted is not there on .* share under the same name"):
        RayPool(store_in(tmp_path), address=cluster.address).run_all(RUNS[:1], lambda running: None)


def test_a_result_may_come_late_but_not_never(tmp_path, cluster, monkeypatch):
    store = store_in(tmp_path)
    with ray_module._connected(cluster.address):
        worker = RayWorker(RUNS[0], store, ray.put(0))
        assert worker.poll() is None  # a file server may show the result late
        monkeypatch.setattr(ray_module, "LATE_SECONDS", 0)
        with pytest.raises(ClusterError, match=r"small.jsonl is not there on .* share"):
            worker.poll()
        store.publish(RUNS[0], {"id": RUNS[0].id, "config": {}, "test": {}, "history": []})
        assert worker.poll().reason is None
        failed = RayWorker(RUNS[0], store, ray.put(1))  # and shows the log late as well
        assert failed.poll().reason == "ended with code 1"


def test_room_is_made_of_whole_machines(tmp_path, monkeypatch, capsys):
    make = lambda **options: RayPool(store_in(tmp_path), **options)
    small, large = {"CPU": 1.0, "memory": 1e9}, {"CPU": 3.0, "GPU": 1.0}
    machines = [{"Alive": True, "Resources": small}, {"Alive": True, "Resources": large}]
    machines += [{"Alive": False, "Resources": large}]
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    assert make()._slots() == 1 + 3
    assert make(workers=2)._slots() == 2
    assert make(cpus_per_run=2)._slots() == 1  # the processes of one machine
    assert make(gpus_per_run=1)._slots() == 1
    assert make(gpus_per_run=0.5)._slots() == 2
    pool = make(gpus_per_run=1)
    assert pool._slots() == 1
    machines[1]["Alive"] = False
    assert pool._slots() == pool._slots() == 0
    assert capsys.readouterr().err.count("No machine is left with 1 CPUs and 1 GPUs; waiting for one.") == 1


def test_a_cluster_without_room(tmp_path, cluster):
    pool = RayPool(store_in(tmp_path), address=cluster.address, gpus_per_run=1)
    with pytest.raises(ClusterError, match=r"no machine of the cluster has .*: 1 CPUs and 1 GPUs"):
        pool.run_all(RUNS, lambda running: None)


def test_reasons():
    assert "out of memory" in ray_module._reason(OutOfMemoryError("a long story"))
    assert ray_module._reason(TaskCancelledError()) == "TaskCancelledError"


def test_what_the_command_began_with_ray_it_can_end_without(tmp_path, undisturbed):
    store, (run,) = store_in(tmp_path), RUNS[:1]
    first = command(tmp_path, [run], "--engine", "ray")
    wait_for_progress(store, [run])
    started = of_session(first.pid)
    assert len(started) > 4  # Ray's own processes as well
    os.killpg(first.pid, signal.SIGINT)  # Ctrl-C sends this signal
    out, error = first.communicate(timeout=120)
    assert first.returncode == 130
    assert "Traceback" not in error
    assert "go on with the same command" in out
    assert not store.is_running(run)
    assert not store.is_done(run)
    assert_gone(started)
    kept = store.epoch(run)
    assert carry_out(order(run, store, None, "cpu", threads=1)) == 0  # a process without Ray does the same
    assert kept >= 1
    assert found(tmp_path) == {run.id: undisturbed()[run.id]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--address", "auto"], "need --engine ray"),
        (["--cpus-per-run", "2"], "need --engine ray"),
        (["--engine", "ray", "--workers", "0"], "must be 1 or more"),
        (["--engine", "ray", "--cpus-per-run", "0"], "must be 1 or more"),
        (["--engine", "ray", "--gpus-per-run", "1.5"], "a whole number or a part of one"),
        (["--engine", "ray", "--device", "cuda"], "--gpus-per-run 1"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: .*refused.*ray start"),
        (["--engine", "ray", "--address", "nonsense"], "--address nonsense: .*nvalid"),
    ],
)
def test_mistakes_are_told_in_one_line(options, message, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(experiment(RUNS))
    folders = [f"--results={tmp_path}/results", f"--runs={tmp_path}/runs"]
    assert main(["sweep", f"{tmp_path}/small.toml", *folders, *options]) == 2
    assert re.fullmatch(f"(Small: 2 runs\n)?jacnorm: error: .*{message}.*\n", capsys.readouterr().err)


def unheard(*_, **__):
    os.write(2, b"W gcs_client.cc:210: Unauthenticated: InvalidAuthToken: missing or incorrect\n")
    raise ConnectionError("Failed to connect to Ray cluster")


def without_token(*_, **__):
    raise AuthenticationError("no token was found")


@pytest.mark.parametrize("init", [unheard, without_token])
def test_a_token_that_is_missing(init, monkeypatch, capfd):
    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(
            ClusterError, match=r"--address auto: the cluster asks for its token: .*RAY_AUTH_MODE=token"
        ),
        ray_module._connected("auto"),
    ):
        pass
    assert capfd.readouterr().err == ""  # Ray would print the message many times


def test_without_ray(tmp_path, capsys, monkeypatch):
    (tmp_path / "small.toml").write_text(experiment(RUNS))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    assert main(["sweep", f"{tmp_path}/small.toml", "--engine", "ray"]) == 2
    assert "pip install 'jacnorm[ray]'" in capsys.readouterr().err
