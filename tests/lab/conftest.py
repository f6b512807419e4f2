"""For all tests of the lab. Its being here also makes `own_net` importable, as a user's own module is."""

import pytest

from jacnorm.lab.data import load


@pytest.fixture(scope="session")
def digits():
    return load("digits")
