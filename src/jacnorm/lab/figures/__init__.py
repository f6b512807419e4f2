"""Drawings by matplotlib. They know frames of networks and chapters."""
