"""One list of cases: a new layer, call or net is one entry here, and every test runs on it."""

from .calls import CALLS
from .case import Case, Seeded, lively
from .layers import LAYERS
from .nets import LENET, NETS, SMALL

CASES = NETS + LAYERS + CALLS

__all__ = ["CALLS", "CASES", "LAYERS", "LENET", "NETS", "SMALL", "Case", "Seeded", "lively"]
