"""Tasks other than classification, the paper's future work. `kinds` has their settings."""
