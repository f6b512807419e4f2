"""`jacnorm train` in each process of torchrun, stopped after two epochs and resumed; run by test_share.py."""

import sys
from contextlib import nullcontext

import torch

from jacnorm.lab.cli import main
from jacnorm.lab.commands import train
from jacnorm.lab.progress import Progress
from jacnorm.lab.run import processes

epoch_done = Progress.epoch_done


def stop_after_two(self, metrics):
    epoch_done(self, metrics)
    if metrics["epoch"] == 2:
        raise KeyboardInterrupt


if __name__ == "__main__":
    with processes(torch.device("cpu")) as share:
        train.processes = lambda device: nullcontext(
            share
        )  # the processes of one torchrun can meet only once
        Progress.epoch_done = stop_after_two
        assert main(["train", *sys.argv[1:]]) == 130
        Progress.epoch_done = epoch_done
        code = main(["train", "--resume", "--json", *sys.argv[1:]])
    sys.exit(code)
