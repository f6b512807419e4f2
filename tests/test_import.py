"""`import jacnorm` adds little to `import torch` and `import numpy`: its own modules, and what is small."""

import json
import subprocess
import sys

CODE = """
import json, sys
import numpy, torch
before = set(sys.modules)
import jacnorm
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Not one when this was written; another version of torch may leave a few small ones for us to import.
SPARE = 10
HEAVY = ("torch._dynamo", "torch._inductor", "torch.onnx", "torch.utils.tensorboard")


def test_training_does_not_wait_for_pandas():
    modules = "jacnorm.lab.commands.train, jacnorm.lab.commands.sweep, jacnorm.lab.sweep.pool"
    code = f"import sys, {modules}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_heavy_comes_with_it():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    added = [name for name in json.loads(done.stdout) if name.partition(".")[0] != "jacnorm"]
    strangers = {name.partition(".")[0] for name in added} - {"torch", *sys.stdlib_module_names}
    of_torch = [name for name in added if name.startswith("torch.")]
    assert strangers == set()
    assert [name for name in of_torch if name.startswith(HEAVY)] == []
    assert len(of_torch) <= SPARE, of_torch
