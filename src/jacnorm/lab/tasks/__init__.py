"""What else can be trained than a classifier: the paper's future work. `kinds` has the settings of each."""
