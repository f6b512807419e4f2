import hand
import pytest


@pytest.fixture(scope="session")
def digits():
    return hand.digits()
