"""The two ways to multiply with a Jacobian: layer by layer (the paper's), or with autograd's graph."""
