"""Small runs of the other tasks. Each takes seconds."""

from jacnorm.lab.config import make_config
from jacnorm.lab.progress import Progress
from jacnorm.lab.run import task_of
from jacnorm.lab.train import train

SMALL = {
    "dqn": {
        "epochs": 3,
        "steps": 120,
        "episodes": 2,
        "warmup": 40,
        "hidden": 16,
        "train_every": 8,
        "updates": 2,
        "target_every": 20,
        "batch_size": 16,
        "replay": 200,  # smaller than the number of steps, so that old entries are overwritten
    },
    "policy": {"epochs": 3, "rollout": 32, "environments": 2, "passes": 2, "episodes": 2, "hidden": 16},
    "gan": {
        "data": "digits",
        "epochs": 3,
        "steps": 3,
        "judged": 100,
        "judge_epochs": 2,
        "channels": 4,
        "batch_size": 16,
    },
}
TIMING = {"seconds", "milliseconds_per_update", "milliseconds_per_step"}


def settings(task, **others):
    return make_config({"task": task, **SMALL[task], **others})


def trained(config, folder, **options):
    task = task_of(config)
    return train(config, task.load(config, None, folder.parent), folder, **options)


class Stop(Exception):
    pass


class StopsAfter(Progress):
    def __init__(self, epoch):
        super().__init__(quiet=True)
        self._last = epoch

    def epoch_done(self, metrics):
        if metrics["epoch"] == self._last:
            raise Stop


def without_timing(history):
    return [{name: value for name, value in one.items() if name not in TIMING} for one in history]
