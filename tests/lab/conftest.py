"""Since this file is here, all tests of the lab can import `own_net`, like a user's own module."""

import pytest

from jacnorm.lab.data import load


@pytest.fixture(scope="session")
def digits():
    return load("digits")
