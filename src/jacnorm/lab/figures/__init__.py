"""Figures of evaluations, from the same plain records that are stored as JSON."""

from .draw import draw

__all__ = ["draw"]
