"""The commands on a user's own data and nets, from the first line to the last."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.func import jacrev

from jacnorm.lab.card.measuring import measure
from jacnorm.lab.cli import main
from jacnorm.lab.data import load
from jacnorm.lab.nets import build
from jacnorm.lab.run_files import load_run, read_config

NETS = """
from torch import nn

def small():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": self.last(x), "others": self.first(x)}

def both():
    return Both()

def narrow():
    return nn.Linear(2, 3)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_nets", raising=False)
    (tmp_path / "my_nets.py").write_text(NETS)
    write_table()
    return tmp_path


def write_table(shift=0.0):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(45, 4)) + shift, columns=list("abcd"))
    table["kind"] = np.array(["red", "green", "blue"])[np.arange(45) % 3]
    table.to_csv("flowers.csv", index=False)


TABLE = ["--data", "flowers.csv", "--label", "kind"]
TRAIN = ["train", *TABLE, "--epochs", "2"]


def the_run(here):
    (folder,) = (here / "runs").iterdir()
    return folder


def test_a_table_is_trained_on_measured_and_evaluated(here, capsys):
    assert main([*TRAIN, "--net", "my_nets:small"]) == 0
    told = capsys.readouterr()
    assert "36 rows to train on, 9 to test; 4 features, standardized: a, b, c, d; 3 classes" in told.err
    folder = the_run(here)
    assert folder.name.startswith("flowers-my_nets.small-spectral-0.01-s0-")
    assert main(["measure", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 9
    assert main(["evaluate", str(folder), "--calibration"]) == 0
    assert "expected calibration error" in capsys.readouterr().out
    assert main(["doctor", str(folder)]) == 0
    assert "8×4 → 8×3" in capsys.readouterr().out


def test_the_weights_of_an_own_net_are_under_its_own_names(here):
    main([*TRAIN, "--net", "my_nets:small", "--quiet"])
    folder = the_run(here)
    weights, net = load_file(folder / "weights.safetensors"), __import__("my_nets").small()
    net.load_state_dict(weights)  # all keys match
    config = read_config(folder)
    from jacnorm.lab.classification import load

    data = load(config, None, here)
    model = load_run(folder, config, data)
    assert torch.equal(model.body[0].weight, net[0].weight)
    torch.testing.assert_close(model.mean, torch.tensor(data.mean))
    assert model(data.test.images).equal(net(model.normalize(data.test.images)))
    # Files of earlier versions are like this.
    old = {f"body.{name}": tensor for name, tensor in weights.items()} | {
        "mean": model.mean,
        "std": model.std,
    }
    save_file(old, folder / "weights.safetensors")
    assert torch.equal(load_run(folder, config, data).body[0].weight, net[0].weight)


def test_another_file_under_the_same_name_is_not_taken_for_it(here, capsys):
    main([*TRAIN, "--net", "mlp", "--quiet"])
    folder = the_run(here)
    write_table(shift=1.0)
    capsys.readouterr()
    assert main(["measure", str(folder)]) == 2
    assert "flowers.csv has the fingerprint" in capsys.readouterr().err
    assert main([*TRAIN, "--net", "mlp", "--quiet"]) == 0
    assert len(list((here / "runs").iterdir())) == 2
    assert main(["train", "--out", str(folder), "--resume", "--quiet"]) == 2


def test_a_net_that_was_not_trained_here_is_evaluated(here, capsys):
    net = __import__("my_nets").both()
    torch.save(net.state_dict(), "both.pt")
    how = ["--net", "my_nets:both", "--weights", "both.pt", *TABLE]
    accuracies = {}
    for output in ("", "logits", "others", "1"):
        assert main(["evaluate", *how, "--json", *(["--output", output] if output else [])]) == 0
        accuracies[output] = json.loads(capsys.readouterr().out)["test"]["loss"]
    assert accuracies[""] == accuracies["logits"] != accuracies["others"]
    assert accuracies["1"] == accuracies["others"]
    assert main(["doctor", *how[1:2], *how[2:]]) == 0


def test_a_run_that_is_not_finished_is_left_out(here, capsys):
    main([*TRAIN, "--net", "mlp", "--quiet"])
    main([*TRAIN, "--net", "mlp", "--quiet", "--seed", "1"])
    first, second = sorted((here / "runs").iterdir())
    (second / "weights.safetensors").unlink()
    (here / "runs" / "evaluation").mkdir()
    capsys.readouterr()
    folders = [str(first), str(second), "runs/evaluation"]
    assert main(["evaluate", *folders]) == 0
    err = capsys.readouterr().err
    assert f"{second}: left out, it is not finished" in err
    assert "runs/evaluation: left out, it is not a run" in err
    assert main(["evaluate", str(second)]) == 2
    assert "is not finished: go on with" in capsys.readouterr().err


def test_a_sweep_takes_own_data_and_its_report_finds_the_runs(here, capsys):
    text = '[base]\ndata = "flowers.csv"\nlabel_column = "kind"\nnet = "mlp"\nepochs = 1\n'
    (here / "my.toml").write_text(text + '[grid]\nmethod = ["none", "spectral"]\n')
    assert main(["sweep", "my.toml", "--workers", "1"]) == 0
    assert "36 rows to train on" in capsys.readouterr().err
    assert main(["sweep", "my.toml", "--status"]) == 0
    assert "2 of 2" in capsys.readouterr().out
    write_table(shift=1.0)
    assert main(["sweep", "my.toml", "--status"]) == 0
    assert "0 of 2" in capsys.readouterr().out


def test_doctor_adds_a_channel(capsys):
    assert main(["doctor", "lenet", "--input", "28x28"]) == 0
    found = capsys.readouterr()
    assert "8×1×28×28 → 8×10" in found.out
    assert "lenet takes images with channels: 1×28×28" in found.err


def save_photos():
    from pathlib import Path

    for c in range(2):
        Path(f"photos/{c}").mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), 90 * c + i).save(f"photos/{c}/{i}.png")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["train", "--data", "flowers.csv"], "Name it with --label: a, b, c, d, kind"),
        (["train", "--data", "flowers.csv", "--label", "kin"], "did you mean 'kind'?"),
        (["train", "--data", "digits", "--label", "kind"], "leave out --label"),
        ([*TRAIN, "--net", "my_nets:narrow"], "the net does not take rows of shape (4,)"),
        ([*TRAIN, "--net", "lenet"], "lenet takes square images, these are the rows of a table"),
        ([*TRAIN, "--augment"], "crops and mirror images are for images"),
        ([*TRAIN, "--method", "adversarial"], "has no pixels from 0 to 1 to attack"),
        (["train", *TABLE, "--data-fingerprint", "1234"], "these settings are for data with 1234"),
        (["train", "--data", "empty"], "empty: there are no folders in it"),
        (
            ["measure", "--net", "mlp", *TABLE, "--picture", "x.png"],
            "--picture shows images; flowers.csv has rows",
        ),
        (["evaluate", "--net", "mlp", *TABLE, "--noise"], "--noise is for images with pixels from 0 to 1"),
        (["evaluate"], "name the folders of runs, or --net"),
        (["evaluate", "--net", "mlp"], "a net needs --data"),
        (["evaluate", "x", "--net", "mlp"], "folders of runs or --net, and not both"),
        (["evaluate", "x", "--data", "digits"], "go with --net"),
        (["measure", "--net", "my_nets:both", *TABLE, "--output", "other"], "did you mean output='others'?"),
    ],
)
def test_mistakes_are_told_in_one_line(here, args, says, capsys):
    (here / "empty").mkdir()
    assert main(args) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert not (here / "runs").exists()


def test_images_of_a_folder_are_pixels(here, capsys):
    save_photos()
    assert main(["train", "--data", "photos", "--net", "mlp", "--epochs", "1"]) == 0
    told = capsys.readouterr()
    assert "photos: 10 images to train on, 2 to test; images of 1×8×8" in told.err
    assert main(["evaluate", str(the_run(here)), "--noise"]) == 0


def test_measure_and_card_give_one_number_for_a_table(here, monkeypatch, capsys):
    """That of the dense Jacobian, in standard deviations over the train split. The card shows a few rows."""
    seen = []
    monkeypatch.setattr(
        "jacnorm.lab.card.make.measure", lambda *a, **k: seen.append(measure(*a, **k)) or seen[-1]
    )
    net = build("my_nets:small", (4,), 3)
    torch.save(net.state_dict(), "small.pt")
    own = [*TABLE, "--weights", "small.pt"]
    assert main(["measure", "--net", "my_nets:small", *own, "--images", "6", "--top", "6", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert main(["card", "my_nets:small", *own, "--images", "6", "--attacked", "2"]) == 0
    assert main(["measure", "--net", "my_nets:small", *own, "--images", "6"]) == 0
    data = load("flowers.csv", label="kind")
    x = ((data.test.images[:6] - torch.tensor(data.mean)) / torch.tensor(data.std)).double()
    expected = torch.stack([torch.linalg.matrix_norm(jacrev(net.double())(row), 2) for row in x])
    in_order = {one["index"]: one["sigma"] for one in measured["most_sensitive"]}
    torch.testing.assert_close(
        torch.tensor([in_order[i] for i in range(6)]).double(), expected, rtol=1e-4, atol=0
    )
    torch.testing.assert_close(seen[0].sensitivity.sigma.double(), expected, rtol=1e-4, atol=0)
    assert "standard deviations of each feature over the train split" in Path("card.html").read_text()
    assert "in standard deviations of each over the train split" in capsys.readouterr().out


def test_a_table_has_no_pixels(here, capsys):
    assert main(["measure", "--net", "my_nets:small", *TABLE, "--units", "pixels"]) == 2
    assert "--units pixels is for images; flowers.csv has rows" in capsys.readouterr().err


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_run_finds_its_data_from_another_folder(here, moved, is_old, monkeypatch, capsys):
    """As config.json says. If the project has moved, and for earlier runs: in a folder above the run."""
    project = here / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    write_table()
    assert main(TRAIN) == 0
    if is_old:
        file = the_run(project) / "config.json"
        file.write_text(
            json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "started_in"})
        )
    if moved:
        project = project.rename(here / "moved")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    run = str(the_run(project))
    for how in (["evaluate"], ["card", "--attacked", "2"], ["measure"]):
        assert main([how[0], run, *how[1:]]) == 0
    assert "9 rows" in capsys.readouterr().out
    assert main(["train", "--out", run, "--resume", "--epochs", "2"]) == 0
    assert main(["measure", run]) == 0


def test_a_run_apart_from_its_data(here, monkeypatch, capsys):
    (here / "elsewhere").mkdir()
    assert main([*TRAIN, "--out", "elsewhere/run"]) == 0
    (here / "elsewhere" / "run").rename(here.parent / f"{here.name}-run")
    monkeypatch.chdir(here / "elsewhere")
    assert main(["measure", str(here.parent / f"{here.name}-run")]) == 0
    (here / "flowers.csv").unlink()
    assert main(["measure", str(here.parent / f"{here.name}-run")]) == 2
    assert "flowers.csv: there is no such file" in capsys.readouterr().err


def test_a_card_of_each_run(here, capsys):
    for seed in (0, 1):
        assert main([*TRAIN, "--seed", str(seed), "--out", f"runs/{seed}"]) == 0
    (here / "runs" / "notes").mkdir()
    capsys.readouterr()
    assert main(["card", "runs/0", "runs/1", "runs/notes", "--attacked", "2"]) == 0
    told = capsys.readouterr()
    assert told.out == "card: runs/0/card.html\ncard: runs/1/card.html\n"
    assert "runs/notes: left out, it is not a run" in told.err
    first, second = (Path(f"runs/{seed}/card.html").read_text() for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["runs/0", "runs/1", "--out", "card.html"], "--out card.html is one file, and 2 models are named"),
        (["mlp", "my_nets:small"], "mlp is not the folder of a run"),
    ],
)
def test_several_cards_are_of_runs(here, models, message, capsys):
    assert main(["card", *models, *TABLE]) == 2
    assert message in capsys.readouterr().err
