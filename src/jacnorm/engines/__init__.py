"""Products with a Jacobian, call by call as in the paper. A call without a rule uses autograd's graph."""
