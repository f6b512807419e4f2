import hand
import pytest

from jacnorm.engines import lowered
from jacnorm.pytorch import half


@pytest.fixture(scope="session")
def digits():
    return hand.digits()


@pytest.fixture
def half_pays(monkeypatch):
    """Whatever the machine, and for small layers, too."""
    monkeypatch.setattr(half, "_why_not", lambda *_: None)
    monkeypatch.setattr(lowered, "LEAST", 1)
    half._tried.cache_clear()
    yield
    half._tried.cache_clear()
