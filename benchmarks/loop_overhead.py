"""What the training loop costs on top of its steps: the paper's LeNet, batch 32, one thread.

    JACNORM_DATA=... python benchmarks/loop_overhead.py kmnist

Alternates whole epochs of the loop with the bare steps of the same batches, already cut out, and prints the
ratio of the medians.
"""

import statistics
import sys
import time

import torch

from jacnorm.lab.classification import start, train_epoch, train_step
from jacnorm.lab.config import RunConfig
from jacnorm.lab.data import DataSet, Split, batches, load
from jacnorm.lab.progress import Progress

IMAGES, ROUNDS = 6400, 7


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(name="kmnist"):
    torch.set_num_threads(1)
    data = load(name)
    train = Split(data.train.images[:IMAGES], data.train.labels[:IMAGES])
    small = DataSet.of(name, train, data.test, data.classes)
    print(f"{name}, {IMAGES} images, {ROUNDS} rounds; cost = loop / bare steps")
    for method in ("none", "spectral"):
        run = start(RunConfig(data=name, net="lenet", method=method), small, "cpu")
        cut = list(batches(train, 32, torch.Generator().manual_seed(0)))

        def bare(run=run, cut=cut):
            for index, images, labels in cut:
                train_step(run, images, labels, index)

        progress = Progress(quiet=True)
        with progress.training(run):
            pairs = [
                (seconds(bare), seconds(lambda r=run, p=progress: train_epoch(r, train, 0, p)))
                for _ in range(ROUNDS)
            ]
        ratio = statistics.median(loop / steps for steps, loop in pairs)
        print(f"{method:<10} {ratio:.3f}   ({1000 * 32 / IMAGES * pairs[0][0]:.2f} ms a bare step)")


if __name__ == "__main__":
    main(*sys.argv[1:])
