"""The commands as people run them: real processes, real files, a real kill -9."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch

from jacnorm.lab.checkpoint import load as load_tensors
from jacnorm.lab.cli import main
from jacnorm.lab.nets import MLP
from jacnorm.lab.run_files import locked

HERE = Path(__file__).parent
PATHS = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


def jacnorm(*args, check=0, cwd=None):
    """Runs the command in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "jacnorm", *map(str, args)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=cwd,
        timeout=120,
    )
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def here(capsys):
    """Runs the command in this process. A new process would need seconds to import torch."""

    def call(*args):
        assert main([str(a) for a in args]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    options = ["--epochs", "3", "--weight", "0.1", "--learning-rate", "0.05", "--quiet"]
    assert main(["train", *options, "--out", str(folder)]) == 0
    return folder


def test_train_prints_what_it_found_and_where(tmp_path):
    out = jacnorm("train", "--epochs", 1, "--quiet", cwd=tmp_path)
    assert "test accuracy" in out.stdout
    assert out.stderr == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name in out.stdout
    assert (folder / "weights.safetensors").exists()


def test_train_from_toml_with_an_option_on_top(tmp_path, here):
    file = tmp_path / "run.toml"
    file.write_text('method = "frobenius"\nweight = 0.003\nepochs = 1\n')
    out = here("train", "--config", file, "--seed", 7, "--json", "--out", tmp_path / "run")
    config = json.loads(out)["config"]
    assert (config["method"], config["epochs"], config["seed"]) == ("frobenius", 1, 7)


def test_evaluate(run, here):
    trained = json.loads((run / "result.json").read_text())
    found = json.loads(here("evaluate", run, "--json"))
    assert found["test"] == trained["test"]
    assert "accuracy" in here("evaluate", run)


def test_doctor_of_a_run_looks_at_its_own_images(run, here):
    out = here("doctor", run, "--batch", 5)
    assert out.startswith("MLP, evaluation mode: 5×1×8×8 → 5×10\n")


def test_measure_a_run(run, tmp_path, here):
    picture = tmp_path / "s.png"
    out = here("measure", run, "--picture", picture, "--vectors", 2)
    assert "most sensitive" in out
    assert "classified correctly" in out
    assert out.startswith("Method: spectral-warm. digits test, 360 images")
    assert out.endswith(f"picture: {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(here("measure", run, "--json", "--top", 3))
    assert numbers["images"] == sum(c["images"] for c in numbers["by_class"].values()) == 360
    assert numbers["most_sensitive"][0]["sigma"] == pytest.approx(numbers["sigma"]["100%"])
    assert len(numbers["most_sensitive"]) == 3
    assert numbers["not_converged"] == 0
    assert numbers["method"] == "spectral-warm"
    in_pixels = json.loads(here("measure", run, "--json", "--units", "pixels"))
    ratio = in_pixels["sigma"]["50%"] / numbers["sigma"]["50%"]
    assert ratio == pytest.approx(1 / 0.3763, rel=1e-3)  # 1 / the standard deviation of a pixel


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_measure_ones_own_model(tmp_path, ending, here):
    import safetensors.torch

    torch.manual_seed(0)
    state = MLP((64, 256, 256, 10)).state_dict()
    file = tmp_path / f"weights.{ending}"
    if ending == "pt":
        torch.save(state, file)
    else:
        safetensors.torch.save_file(state, file)
    out = here("measure", "--net", "mlp", "--weights", file, "--data", "digits", "--images", 50, "--json")
    numbers = json.loads(out)
    assert numbers["images"] == 50
    own = here("measure", "--net", "own_net:small", "--data", "digits", "--images", 20)
    assert "digits test" in own


def test_measure_knows_what_the_net_takes(tmp_path, here):
    import safetensors.torch

    from jacnorm.lab.data import load
    from jacnorm.lab.nets import build

    torch.manual_seed(0)
    net = build("mlp", (1, 8, 8), 10)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "w.safetensors")
    common = ("--net", "mlp", "--weights", tmp_path / "w.safetensors", "--data", "digits", "--images", 40)
    numbers = json.loads(here("measure", *common, "--takes", "pixels", "--json"))
    images = load("digits").test.images[:40]
    import jacnorm as jn

    with torch.no_grad():
        expected = float(jn.spectral_norm(jn.linearize(net, images)).sigma.mean())
    (std,) = load("digits").std
    assert numbers["units"] == "normalized"
    assert numbers["sigma"]["mean"] == pytest.approx(std * expected, rel=1e-4)
    numbers = json.loads(here("measure", *common, "--takes", "pixels", "--units", "pixels", "--json"))
    assert numbers["sigma"]["mean"] == pytest.approx(expected, rel=1e-4)
    labels = load("digits").test.labels[:40]
    assert numbers["accuracy"] == pytest.approx(float((net(images).argmax(1) == labels).double().mean()))


def test_weights_of_a_run_are_recognized(run, capsys):
    weights = str(run / "weights.safetensors")
    assert main(["measure", "--net", "mlp", "--data", "digits", "--weights", weights]) == 2
    assert f"use jacnorm measure {run}" in capsys.readouterr().err
    assert main(["measure", str(run), "--weights", weights]) == 2
    assert "--weights, --takes, --output, --tokens and --at go with --net" in capsys.readouterr().err


def test_going_on_takes_the_settings_from_the_folder(tmp_path, here, capsys):
    here("train", "--net", "own_net:small", "--epochs", 1, "--out", tmp_path)
    for file in ("checkpoint.safetensors", "weights.safetensors", "result.json"):
        (tmp_path / file).unlink()  # as if it was stopped in the first epoch
    assert main(["train", "--out", str(tmp_path), "--resume", "--net", "mlp"]) == 2
    assert "net was 'own_net:small'" in capsys.readouterr().err
    out = json.loads(here("train", "--out", tmp_path, "--resume", "--json"))
    assert (out["config"]["net"], out["config"]["epochs"]) == ("own_net:small", 1)


def test_an_unfinished_run_says_how_to_go_on(tmp_path, here, capsys):
    here("train", "--epochs", 1, "--out", tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    assert main(["measure", str(tmp_path)]) == 2
    assert f"jacnorm train --out {tmp_path} --resume" in capsys.readouterr().err


def test_a_pickle_is_not_executed(tmp_path, capsys):
    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    torch.save(Payload(), tmp_path / "evil.pt")
    assert main(["measure", "--net", "mlp", "--weights", str(tmp_path / "evil.pt"), "--data", "digits"]) == 2
    assert "not a plain state_dict" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_a_run_is_trained_by_one_process(tmp_path, capsys):
    with locked(tmp_path / "run"):
        assert main(["train", "--out", str(tmp_path / "run"), "--epochs", "1"]) == 2
        assert "run is being trained by another process: name another with --out" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "run"), "--epochs", "1", "--quiet"]) == 0


def test_without_locks_on_files():
    """Windows has no such locks."""
    code = "import sys; sys.modules['fcntl'] = None; from jacnorm.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == "jacnorm: the command line needs Linux, macOS or WSL; the library does not\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "required: COMMAND"),
        (["tran"], "invalid choice"),
        (["train", "--epohcs", "3"], "did you mean '--epochs'?"),
        (["train", "--lr", "3"], "did you mean '--learning-rate'?"),
        (["evaluate", "x", "--epsilonn", "1"], "did you mean '--epsilon'? (see jacnorm evaluate --help)"),
        (["evaluate", "x", "--zzz", "1"], "unrecognized arguments: --zzz 1 (see jacnorm evaluate --help)"),
        (["evaluate", "x", "--epsilon", "8/0"], "'8/0': a number above 0 and up to 1 is needed, like 8/255"),
        (["train", "--data", "FashionMNIST"], "did you mean 'fashion-mnist'?"),
        (["train", "--data", "kmnist", "--data-root", "nowhere"], "nowhere: there is no such folder"),
        (["train", "--net", "own_net:needs_arguments"], "takes nothing and returns a net"),
        (["train", "--net", "own_net:four_classes"], "(2, 10) is needed, one score per class"),
        (["train", "--net", "own_net:for_larger_images"], "does not take images of shape (1, 8, 8)"),
        (["train", "--net", "own_net:a_pair"], "The model returned tuple"),
        (["train", "--out", "/proc/nowhere"], "cannot be written to"),
        (["train", "--epochs", "three"], "invalid int value"),
        (["train", "--epochs", "0"], "epochs = 0: it must be positive"),
        (["train", "--method", "spectra"], "invalid choice"),
        (["train", "--data", "nist"], "there is no data set 'nist'"),
        (["train", "--net", "lenet"], "12×12 or more"),
        (["train", "--net", "own_net:not_a_net"], "returned int, not an nn.Module"),
        (["train", "--config", "none.toml"], "none.toml: there is no such file"),
        (["sweep", "experiments/none.toml"], "experiments are in a checkout of jacnorm"),
        (["train", "--device", "cuda"], "--device cuda: not available here"),
        (["train", "--threads", "0"], "--threads 0"),
        (["evaluate", "nowhere"], "nowhere is not the folder of a run: it has no config.json"),
        (["measure"], "either the folder of a run or --net"),
        (["measure", "--net", "mlp"], "a net needs --data"),
        (["measure", "--net", "mlp", "--data", "digits", "--weights", "none.pt"], "no such file"),
        (["measure", "--net", "mlp", "--data", "digits", "--images", "0"], "--images 0"),
        (["measure", "--net", "mlp", "--data", "digits", "--picture", "x.doc"], "x.doc"),
        (["measure", "--net", "mlp", "--data", "digits", "--picture", "/proc/x/y.png"], "cannot be made"),
        (["measure", "--net", "own_net:four_classes", "--data", "digits"], "one score per class"),
        (
            ["measure", "run", "--takes", "pixels"],
            "--weights, --takes, --output, --tokens and --at go with --net",
        ),
        (["bench", "depth", "--out", "/proc/nowhere"], "cannot be made"),
        (["measure", "--net", "mlp", "--data", "digits", "--vectors", "2"], "--vectors needs --picture"),
        (["measure", "--net", "mlp", "--picture", "x.png", "--vectors", "0"], "--vectors 0"),
    ],
)
def test_mistakes_are_told_in_one_line(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(args)
    except SystemExit as exit_of_argparse:
        code = exit_of_argparse.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_ends_with_one(tmp_path, capsys):
    assert main(["train", "--learning-rate", "1e6", "--epochs", "2", "--out", str(tmp_path)]) == 1
    assert "Epoch 1, step" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "evaluate", "measure", "demo", "sweep", "reproduce", "report"])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert "example:\n  jacnorm " + command in capsys.readouterr().out


def test_version():
    import jacnorm as jn

    assert jacnorm("--version").stdout.strip() == f"jacnorm {jn.__version__}"


def start(folder, epochs):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jacnorm", "train", "--net", "own_net:small", "--out", folder),
            *("--epochs", str(epochs), "--resume", "--quiet"),
        ],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_epoch(folder, epoch):
    metrics = folder / "metrics.jsonl"
    until = time.monotonic() + 60
    while not metrics.exists() or len(metrics.read_text().splitlines()) < epoch:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_kill_9_and_resume_end_with_the_very_same_weights(tmp_path, here):
    for epoch, delay in ((1, 0.02), (4, 0.11)):
        process = start(tmp_path / "killed", 8)
        wait_for_epoch(tmp_path / "killed", epoch)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    (tmp_path / "killed" / ".checkpoint.safetensors.half").touch()  # a kill during saving leaves such a file
    last = start(tmp_path / "killed", 8)
    here("train", "--net", "own_net:small", "--out", tmp_path / "whole", "--epochs", 8, "--quiet")
    assert last.wait(60) == 0, last.communicate()[1]
    last.communicate()
    assert list((tmp_path / "killed").glob(".*")) == []
    a, b = (load_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("whole", "killed"))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_a_folder_that_has_other_things_keeps_them(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".env").touch()
    assert main(["train", "--epochs", "1", "--quiet", "--out", str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.glob(".*")} == {".git", ".env"}


def test_ctrl_c_says_how_to_go_on(tmp_path):
    process = start(tmp_path, 500)
    wait_for_epoch(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b" finished epoch" in out
    assert b"; go on with: jacnorm train --out" in out
    assert b"Traceback" not in error


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    with open(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["train", "--epochs", "1", "--out", str(tmp_path)]) == 0
        shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "100%" in shown
    assert "images/s" in shown


def test_tensorboard(tmp_path, here):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    here("train", "--epochs", 2, "--out", tmp_path / "run", "--tensorboard", tmp_path / "board")
    (folder,) = (tmp_path / "board").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert "validation_accuracy" in events.Tags()["scalars"]
    assert [e.step for e in events.Scalars("train_loss")] == [1, 2]


def test_demo(tmp_path, here, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.commands.demo.EPOCHS", 20)  # of 60
    out = here("demo", "--picture", tmp_path / "demo.png")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "%" in line}
    assert set(rows) == {"none", "weight-decay", "frobenius", "spectral"}
    accuracy, noisy, sigma = (
        {name: float(row[i].rstrip("%")) for name, row in rows.items()} for i in range(3)
    )
    assert accuracy["spectral"] > accuracy["none"] - 1
    assert noisy["spectral"] > noisy["none"] + 1
    assert sigma["spectral"] < sigma["none"] / 2
    assert (tmp_path / "demo.png").exists()
