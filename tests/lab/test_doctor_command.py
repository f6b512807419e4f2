"""jacnorm doctor, as people call it."""

import pytest
from torch import nn

from jacnorm.lab.cli import main


@pytest.fixture
def doctor(capsys, monkeypatch):
    monkeypatch.setattr("jacnorm.diagnosis.cost.SECONDS", 0)

    def call(*args):
        code = main(["doctor", *map(str, args)])
        out = capsys.readouterr()
        assert "Traceback" not in out.err
        return code, out.out, out.err

    return call


def test_a_net_of_ours(doctor):
    code, out, _ = doctor("lenet")
    assert code == 0
    assert out.startswith("LeNet, evaluation mode: 8×1×28×28 → 8×10\n\nCost")
    assert "\n\nlayer" in out
    assert "Engine   layerwise" in out
    assert "times a plain one" in out


def test_ones_own_net_in_training(doctor):
    code, out, _ = doctor("own_net:small", "--input", "1x8x8", "--train", "--batch", 4)
    assert code == 0
    assert "Sequential, training mode: 4×1×8×8 → 4×10" in out
    assert "1 batch norm in training mode" in out


def test_a_net_that_cannot_be_served(doctor):
    code, out, err = doctor("own_net:small", "--input", "1x11x11")
    assert code == 1
    assert "Problem  The model failed on x of shape (8, 1, 11, 11)" in out
    assert "It failed here: layer 6" in " ".join(out.split())  # the line may be broken anywhere
    assert err == ""


def test_nets_that_know_their_input(doctor, monkeypatch):
    import own_net

    def with_configuration():
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        net.default_cfg = {"input_size": (3, 2, 2)}
        return net

    monkeypatch.setattr(own_net, "with_configuration", with_configuration, raising=False)
    code, out, _ = doctor("own_net:with_configuration")
    assert code == 0
    assert "8×3×2×2 → 8×3" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lennet"], "there is no net 'lennet': choose mlp, lenet"),
        (["own_net:small"], "say what one sample for own_net:small looks like: --input"),
        (["own_net:nothing", "--input", "4"], "has no attribute 'nothing'"),
        (["own_net:not_a_net", "--input", "4"], "returned int, not an nn.Module"),
        (["own_net:raises", "--input", "4"], "no weights in the cellar"),
        (["lenet", "--input", "1x28x27"], "lenet takes square images"),
        (["lenet", "--batch", "0"], "--batch 0: it must be 1 or more"),
    ],
)
def test_mistakes_are_one_line(doctor, arguments, message):
    code, out, err = doctor(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_shape_that_is_none(doctor, capsys):
    with pytest.raises(SystemExit, match="2"):
        doctor("lenet", "--input", "3x-1")
    assert "'3x-1' is not a shape: write 3x32x32" in capsys.readouterr().err


def test_a_folder_that_is_no_run(doctor, tmp_path):
    code, _, err = doctor(tmp_path)
    assert code == 2
    assert "is not the folder of a run" in err


def test_input_is_not_for_runs(doctor, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    code, _, err = doctor(tmp_path, "--input", "3")
    assert code == 2
    assert "a run and --data have samples of their own" in err


def test_help_has_an_example(doctor, capsys):
    with pytest.raises(SystemExit, match="0"):
        doctor("--help")
    assert "example:\n  jacnorm doctor my_package.nets:resnet --input 3x32x32" in capsys.readouterr().out
