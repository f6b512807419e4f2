"""One file per command of `jacnorm`: its options and what it does."""
