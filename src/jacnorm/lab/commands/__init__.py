"""One file a command of `jacnorm`: what it takes, and what it does."""
