"""At home in other trainers: one file each, none imported by the package root. Import the one you use.

What they share needs nothing but torch: `watch` (the Jacobian of a model that someone else calls), `indexing`
(which samples a batch holds), `distributed` (stored vectors over several processes).
"""
