"""Stored vectors: room for them, said before it is made; half precision; a file; checkpoints of before."""

import pytest
import torch
from cases import SMALL
from oracles import dense, gradient, mean_sigma
from torch import nn

import jacnorm as jn
from jacnorm.penalties import stored


def trained(penalty, model, x, calls=30):
    for _ in range(calls):
        value = penalty(jn.linearize(model, x), index=torch.arange(len(x)))
    return value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """The direction suffers a little from rounding, and the gradient's length not at all."""
    model, x = SMALL.make()
    half, full = jn.SpectralPenalty(1.0, stored_as=dtype), jn.SpectralPenalty(1.0)
    values = [trained(penalty, model, x) for penalty in (half, full)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=0)
    assert half.u.dtype == dtype
    assert half.u.nbytes * 4 == full.u.nbytes  # the model is in double precision
    a, b = (gradient(value, model) for value in values)
    assert (a - b).norm() < 1e-2 * b.norm()


def test_in_a_file(tmp_path):
    model, x = SMALL.make()
    file = tmp_path / "vectors.bin"
    penalty = jn.SpectralPenalty(1.0, samples=len(x), stored_in=file, stored_as=torch.float32)
    value = trained(penalty, model, x)
    torch.testing.assert_close(value.detach(), mean_sigma(dense(model, x)).detach(), rtol=1e-3, atol=0)
    assert file.stat().st_size == penalty.u.numel() * 4
    assert "u" not in penalty.state_dict()
    resumed = jn.SpectralPenalty(1.0, samples=len(x), stored_in=str(file), stored_as=torch.float32)
    resumed.load_state_dict(penalty.state_dict())
    assert trained(resumed, model, x, calls=1) >= value * (1 - 1e-6)  # it goes on where the first stopped


def test_a_checkpoint_moves_into_a_file(tmp_path):
    model, x = SMALL.make()
    before = jn.SpectralPenalty(1.0, stored_as=torch.float32)
    trained(before, model, x)
    after = jn.SpectralPenalty(
        1.0, samples=len(before.u), stored_in=tmp_path / "u.bin", stored_as=torch.float32
    )
    after.load_state_dict(before.state_dict())
    assert torch.equal(after.u, before.u)


def test_a_file_of_another_size_is_refused(tmp_path):
    model, x = SMALL.make()
    file = tmp_path / "u.bin"
    file.write_bytes(b"something else")
    penalty = jn.SpectralPenalty(1.0, samples=len(x), stored_in=file)
    with pytest.raises(jn.InputError, match="has 14 bytes; vectors for"):
        penalty(jn.linearize(model, x), index=torch.arange(len(x)))
    assert file.read_bytes() == b"something else"


def test_checkpoints_of_before_load():
    """They know no recent samples."""
    model, x = SMALL.make()
    penalty = jn.SpectralPenalty(1.0)
    trained(penalty, model, x)
    penalty(jn.linearize(model, x))
    old = {k: v for k, v in penalty.state_dict().items() if not k.startswith("recent.")}
    again = jn.SpectralPenalty(1.0)
    again(jn.linearize(model, x))
    again.load_state_dict(old)
    assert torch.equal(again.u, penalty.u)
    assert again.recent.u.numel() == 0


def test_what_does_not_fit_is_said_before_room_is_made(monkeypatch):
    monkeypatch.setattr(stored, "free_bytes", lambda device: 50)
    model, x = SMALL.make()
    penalty = jn.SpectralPenalty(1.0)
    with pytest.raises(jn.InputError, match=r"are free on cpu\. Leave index= out.*stored_as=.*stored_in="):
        penalty(jn.linearize(model, x), index=torch.arange(len(x)))
    assert penalty.u.numel() == 0


@pytest.mark.parametrize(("samples", "words"), [(60_000, "3.9 GB for 60,000"), (None, "0.7 GB for 10,000")])
def test_large_vectors_are_said(samples, words, monkeypatch):
    monkeypatch.setattr(stored, "LARGE", 1e8)
    monkeypatch.setattr(stored, "free_bytes", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "new_zeros", lambda self, *shape: torch.zeros(3, shape[-1]))
    model, x = nn.Conv2d(1, 1, 3, padding=1), torch.randn(3, 1, 128, 128)
    penalty = jn.SpectralPenalty(1.0, samples=samples)
    with pytest.warns(UserWarning, match=f"a vector of 16,384 numbers .*{words}"):
        penalty(jn.linearize(model, x), index=torch.arange(3))


def test_free_memory_is_known_here():
    free = stored.free_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stored_as": torch.int8}, "stored_as=torch.int8: choose torch.float16"),
        ({"stored_in": "u.bin"}, r"samples=len\(dataset\)"),
        ({"samples": 0}, "samples=0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(jn.InputError, match=message):
        jn.SpectralPenalty(**options)


def test_room_made_in_a_validation_step_can_be_trained_with():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    for index in (None, torch.arange(4)):
        penalty = jn.SpectralPenalty(1.0)
        with torch.inference_mode():
            penalty(jn.linearize(model, x), index=index)
        penalty(jn.linearize(model, x), index=index).backward()
        penalty(jn.linearize(model, x), index=index).backward()
