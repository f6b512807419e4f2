"""A card: one HTML file about how sensitive a network is, to be attached to it."""

from .make import make_card

__all__ = ["make_card"]
