"""The cost and the quality of penalties: our ways and those of others, measured in one run."""
