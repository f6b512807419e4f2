"""`jacnorm train` that is stopped after two epochs, in each process of torchrun; run by test_share.py."""

import sys

from jacnorm.lab.cli import main
from jacnorm.lab.progress import Progress

epoch_done = Progress.epoch_done


def stop_after_two(self, metrics):
    epoch_done(self, metrics)
    if metrics["epoch"] == 2:
        raise KeyboardInterrupt


Progress.epoch_done = stop_after_two
assert main(["train", *sys.argv[1:]]) == 130
