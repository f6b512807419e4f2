"""The paper's table and figures: ours beside the paper's. Everything is told from the files in results/."""
