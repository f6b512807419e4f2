"""Pictures of measurements, read off matplotlib's own objects."""

import builtins

import numpy as np
import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm import plots


@pytest.fixture(scope="module")
def found():
    """Of images and of a table: x, an estimate and directions."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.rand(9, 2, 3, 3)
    with torch.no_grad():
        image = x, jn.spectral_norm(jn.linearize(net, x)), jn.singular_vectors(jn.linearize(net, x), k=3)
        flat = x.flatten(1)
        table = (
            flat,
            jn.spectral_norm(jn.linearize(net, flat)),
            jn.singular_vectors(jn.linearize(net, flat), k=2),
        )
    return {"images": image, "table": table}


def test_an_estimate_is_a_histogram(found):
    _, e, _ = found["table"]
    (axes,) = e.plot().axes
    assert sum(bar.get_height() for bar in axes.patches) == 9
    assert f"median {float(e.sigma.median()):#.3g}" in axes.get_title()
    assert f"largest {float(e.sigma.max()):#.3g}" in axes.get_title()


def test_of_images_also_the_directions_of_the_most_sensitive(found):
    _, e, _ = found["images"]
    *pictures, _ = e.plot().axes
    order = e.sigma.argsort(descending=True)[: plots.SHOWN].tolist()
    assert [axes.get_title().split(",")[0] for axes in pictures] == [f"#{i}" for i in order]
    shown = np.asarray(pictures[0].images[0].get_array())
    np.testing.assert_allclose(shown, e.v[order[0]].sum(0).cpu().numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["images", "table"])
@pytest.mark.parametrize("with_x", [True, False])
def test_directions_are_columns_below_their_sample(found, kind, with_x):
    x, _, vectors = found[kind]
    axes = vectors.plot(x if with_x else None).axes
    k = vectors.S.shape[1]
    assert len(axes) == plots.SHOWN * (k + with_x)
    first, n = axes[plots.SHOWN * with_x :], 2
    for j in range(k):
        panel = first[j * plots.SHOWN + n]
        assert panel.get_xlabel() == f"σ = {vectors.S[n, j]:#.3g}"
        if kind == "table":
            heights = [bar.get_height() for bar in panel.patches]
            np.testing.assert_allclose(heights, vectors.V[n, j].cpu().numpy(), atol=1e-6)
        else:
            low, high = panel.images[0].get_clim()
            assert low == -high  # white is zero


def test_a_notebook_shows_it_without_pyplot(found):
    _, e, _ = found["table"]
    assert e.plot()._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib(found, monkeypatch):
    really = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return really(name, *rest)

    plots._figure_class.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(jn.JacnormError, match="plot\\(\\) needs matplotlib: pip install matplotlib"):
        found["table"][1].plot()


def test_transposed_and_dense_matrices_too():
    e = jn.spectral_norm(torch.randn(4, 5, 3))
    assert len(e.plot().axes) == 1
    assert len(e.transposed().plot().axes) == 1
