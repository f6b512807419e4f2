"""Penalties in other trainers, one file per trainer. The package root imports none of them.

Shared modules need only torch: `watch` (the Jacobian of a model that a trainer calls), `indexing` (the
positions of samples in the data set), `distributed` (stored vectors in several processes).
"""
