"""Figures of evaluations: a panel is a function from axes and a frame of networks (`as_frame`)."""

from .draw import draw

__all__ = ["draw"]
