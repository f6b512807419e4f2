"""Matrices built from chosen singular values: convergence has a right answer."""

import pytest
import torch
from cases import NETS
from oracles import dense, with_spectrum

import jacnorm as jn
from jacnorm.estimators import gram, hutchinson, lanczos, power_iteration
from jacnorm.estimators.operator import Matrix
from jacnorm.lab.nets import LeNet

ESTIMATORS = [power_iteration, lanczos, gram]


SPECTRA = {
    "well separated": [5.0, 2.0, 1.0, 0.1],
    "top repeated": [3.0, 3.0, 1.0],
    "rank one": [2.0],
    "clustered": [1.0, 0.995, 0.99, 0.5],
    "tiny": [1e-12, 1e-13],
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (4, 50)])
@pytest.mark.parametrize("name", SPECTRA)
def test_largest_singular_value(estimator, name, shape):
    A = with_spectrum(SPECTRA[name], *shape)
    options = {} if estimator is gram else {"max_iterations": 40_000}
    e = estimator(A, tol=1e-6, **options)
    assert e.converged.all()
    torch.testing.assert_close(e.sigma / SPECTRA[name][0], torch.ones(2).double(), rtol=1e-6, atol=0)
    assert (e.residual <= 1e-6 * e.sigma).all()
    torch.testing.assert_close(torch.einsum("bmn,bn->bm", A, e.v), e.sigma[:, None] * e.u, atol=1e-5, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_zero_matrix(estimator):
    e = estimator(torch.zeros(2, 40, 50))
    assert torch.equal(e.sigma, torch.zeros(2))
    assert e.converged.all()
    assert torch.isfinite(e.u).all()
    assert torch.isfinite(e.v).all()


def test_residual_tells_when_it_has_not_converged():
    A = with_spectrum([1.0, 0.99, 0.5], 40, 50)
    e = power_iteration(A, tol=1e-6, max_iterations=3)
    assert not e.converged.any()
    assert e.iterations == 3
    true = torch.tensor([1.0, 0.99, 0.5]).double()
    distance = (e.sigma[:, None] - true).abs().amin(1)
    assert (distance <= e.residual).all()
    assert "not converged" in str(e)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_samples_estimate_does_not_depend_on_the_others(estimator):
    easy, hard = with_spectrum([9.0, 0.1], 40, 50, 1), with_spectrum([1.0, 0.98, 0.97], 40, 50, 1)
    alone = estimator(easy, tol=1e-3)
    together = estimator(torch.cat([hard, easy, hard]), tol=1e-3)
    torch.testing.assert_close(together.sigma[1:2], alone.sigma, rtol=1e-14, atol=0)
    torch.testing.assert_close(together.u[1:2], alone.u, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [64, 1024])
def test_one_large_value_among_many_equal_ones(n, seed):
    """A start that hardly sees the top vector looks converged at once, at the wrong value."""
    u = torch.randn(
        n, dtype=torch.float64, generator=torch.Generator(torch.get_default_device()).manual_seed(seed)
    )
    u /= u.norm()
    e = jn.spectral_norm(torch.eye(n, dtype=torch.float64) + 0.05 * torch.outer(u, u))
    torch.testing.assert_close(e.sigma, torch.tensor([1.05]).double(), rtol=1e-3, atol=0)
    assert e.converged.all()


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("scale", [1e-25, 1e20, 1e30])
def test_any_magnitude(size, scale):
    A = scale * torch.eye(size)
    e = jn.spectral_norm(A)
    torch.testing.assert_close(e.sigma / scale, torch.ones(1))
    assert e.converged.all()
    torch.testing.assert_close(jn.singular_values(A, k=1)[0] / scale, torch.ones(1))
    torch.testing.assert_close(jn.frobenius_norm(A) / scale, torch.tensor([size**0.5]))


NORMS = [
    lambda A: jn.spectral_norm(A).sigma,
    jn.singular_values,
    lambda A: jn.singular_vectors(A).S,
    lambda A: jn.induced_norm(A, "inf").lower,
]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [3, 50])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_named(norm, n, value):
    with pytest.raises(jn.NonFiniteError, match="NaN or inf"):
        norm(torch.full((2, n, n), value))


@pytest.mark.parametrize("norm", [*NORMS, jn.frobenius_norm])
@pytest.mark.parametrize("n", [3, 50])
def test_matrices_in_half_precision_are_measured_in_single(norm, n):
    A = torch.randn(2, n, n).bfloat16()
    found = norm(A)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, norm(A.float()))
    with torch.autocast(A.device.type, dtype=torch.bfloat16):
        torch.testing.assert_close(norm(A.float()), found, rtol=1e-6, atol=0)


def test_a_small_operator_in_half_precision():
    A = Matrix(torch.randn(2, 3, 3))
    A.A, A.dtype = A.A.bfloat16(), torch.bfloat16
    exact = torch.linalg.matrix_norm(A.A.float(), 2)
    torch.testing.assert_close(jn.spectral_norm(A).sigma.float(), exact, rtol=0.03, atol=0)
    torch.testing.assert_close(jn.singular_values(A, k=1)[:, 0].float(), exact, rtol=0.03, atol=0)


def test_values_that_did_not_converge_are_announced():
    with pytest.warns(UserWarning, match="has not converged") as found:
        jn.singular_values(torch.randn(1, 200, 200), k=2, max_iterations=2)
    assert {one.filename for one in found} == {__file__}


def test_lanczos_needs_far_fewer_rounds_than_power_iteration():
    A = with_spectrum([1.0, 0.95, 0.9, *torch.linspace(0.8, 0, 30).tolist()], 40, 50)
    assert lanczos(A, tol=1e-6).iterations < 40 < power_iteration(A, tol=1e-6, max_iterations=1000).iterations


def test_gram_without_room_for_the_rows_gives_the_same():
    A = with_spectrum([5.0, 2.0, 1.0], 6, 50)
    torch.testing.assert_close(gram(A, max_bytes=1).sigma, gram(A).sigma, rtol=1e-12, atol=0)


def test_singular_values_that_occur_more_than_once():
    A = with_spectrum([3.0, 3.0, 3.0, 2.0, 1.0, 1.0], 40, 50)
    expected = torch.tensor([3.0, 3.0, 3.0, 2.0, 1.0]).double().expand(2, 5)
    torch.testing.assert_close(jn.singular_values(A, k=5), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("shape", [(5, 50), (50, 60), (60, 50)])
def test_singular_values(shape):
    A = torch.randn(3, *shape, dtype=torch.float64)
    expected = torch.linalg.svdvals(A)[:, :5]
    torch.testing.assert_close(jn.singular_values(A, k=5, tol=1e-7), expected, rtol=1e-8, atol=0)


def test_singular_values_are_at_most_as_many_as_there_are():
    assert jn.singular_values(torch.randn(2, 1, 7), k=5).shape == (2, 1)


def test_hutchinson_is_unbiased():
    A = torch.randn(1, 6, 9, dtype=torch.float64)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    estimates = hutchinson(A.expand(2000, 6, 9), projections=10, generator=generator)  # each draws its own
    torch.testing.assert_close(estimates.mean(), A.square().sum(), rtol=0.02, atol=0)


@pytest.mark.parametrize("case", NETS, ids=str)
def test_norms_of_networks(case):
    model, x = case.make()
    expected = torch.linalg.svdvals(dense(model, x).detach())
    J = jn.linearize(model, x)
    e = jn.spectral_norm(J, tol=1e-9)
    torch.testing.assert_close(e.sigma, expected[:, 0], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(jn.frobenius_norm(J), expected.square().sum(1).sqrt(), rtol=1e-8, atol=1e-12)
    top = jn.singular_values(J, k=5, tol=1e-8)
    torch.testing.assert_close(top / expected[:, :1], expected[:, :5] / expected[:, :1], rtol=1e-8, atol=1e-8)


def digits(count):
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().images[:count], dtype=torch.float32)[:, None] / 16
    return torch.nn.functional.interpolate(images, (28, 28), mode="bilinear")


def test_tolerance_holds_for_every_one_of_many_real_images():
    x, model = digits(300), LeNet()
    e = jn.spectral_norm(jn.linearize(model, x), tol=1e-3)
    # In single precision, too: flat regions make ties between units that float64 would break otherwise.
    exact = torch.linalg.matrix_norm(dense(model, x).detach().double(), 2)
    assert e.converged.all()
    assert ((e.sigma - exact).abs() / exact).max() <= 1e-3


@pytest.mark.parametrize("estimator", [power_iteration, lanczos, jn.spectral_norm, jn.singular_values])
@pytest.mark.parametrize(("option", "value"), [("tol", 0.0), ("tol", -1.0), ("max_iterations", 0)])
def test_bad_options(estimator, option, value):
    with pytest.raises(jn.InputError, match=option):
        estimator(torch.eye(3), **{option: value})


def test_not_a_matrix():
    with pytest.raises(jn.InputError, match=r"shape \(m, n\) or \(B, m, n\)"):
        jn.spectral_norm(torch.ones(3))
    with pytest.raises(jn.InputError, match=r"\(0, 3, 3\): no axis may be empty"):
        jn.spectral_norm(torch.zeros(0, 3, 3))
    with pytest.raises(jn.InputError, match="found Linear"):
        jn.spectral_norm(torch.nn.Linear(2, 2))
