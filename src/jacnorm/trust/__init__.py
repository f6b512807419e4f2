"""Trust: checks of inputs and outputs, checks of the whole model, and when these are repeated."""
