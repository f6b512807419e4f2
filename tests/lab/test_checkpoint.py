import pytest
import torch

from jacnorm.lab.checkpoint import CheckpointError, load, save, write_atomically


def test_tensors_and_the_rest_come_back(tmp_path):
    tied = torch.randn(3)
    save(tmp_path / "a.safetensors", {"x": tied, "y": tied, "z": torch.tensor(4)}, {"epoch": 3})
    tensors, rest = load(tmp_path / "a.safetensors")
    assert torch.equal(tensors["x"], tied)
    assert torch.equal(tensors["y"], tied)
    assert tensors["z"] == 4
    assert rest == {"epoch": 3}


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    file = tmp_path / "a"
    write_atomically(file, b"old")
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 100])
def test_damaged_files_are_named(tmp_path, content):
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.safetensors: not a readable"):
        load(file)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path / "a.safetensors")
