from functools import cache

import pytest
from small_sweep import EPOCHS, found, runs_of, store_in

from jacnorm.lab.sweep.pool import carry_out, order


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The results of runs that nobody kills, made in this process, one after the other."""

    @cache
    def results(epochs=EPOCHS):
        folder = tmp_path_factory.mktemp("undisturbed")
        for run in runs_of(epochs):
            assert carry_out(order(run, store_in(folder), None, "cpu", threads=1)) == 0
        return found(folder)

    return results
