"""Writes docs/versions.md: which versions the library needs, and which ones the tests ran with.

python docs/versions.py
"""

import platform
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = """# Versions

`make versions` makes this page, from `pyproject.toml`, `constraints.txt` and `oldest.txt`.
The tests fail while it is out of date.

* **needed**: the versions that `pip` asks for.
* **tested**: the version that the whole suite runs with, on {system} and CPUs. No test has run on a GPU.
* **oldest run**: the oldest version that tests ran with, and which tests. If it is empty, or newer than the
  needed version, we expect the needed version to work but have not tested it.

**torch.** The tests of jacnorm 0.2 ran with torch 2.13 only. The tests of 0.1 also passed with 2.9 and 2.15.
For 0.2 only 2.13 was available for CPUs. The oldest runs of accelerate, lightning, skorch,
stable-baselines3 and transformers are with jacnorm 0.2. Python 3.11 is the only version that was tested.

| package | extra | needed | tested | oldest run |
| --- | --- | --- | --- | --- |
| Python |  | {python} | {interpreter} |  |
{rows}
"""


def pinned(file):
    """Name to version, and to what stands behind the #."""
    lines = re.findall(r"^([\w.-]+)==(\S+)(?: +# (.*))?$", (ROOT / file).read_text(), re.MULTILINE)
    return {name: (number, remark) for name, number, remark in lines}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required():
    """(extra, package, lower bound) of what the library and its extras need, not of developers' tools."""
    extras = {"": project()["dependencies"], **project()["optional-dependencies"]}
    return [
        (extra, *re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=(\S+)", requirement).groups())
        for extra, requirements in extras.items()
        if extra not in ("docs", "dev")
        for requirement in requirements
    ]


def rows():
    """Of the table, without Python's: what is installed plays no part."""
    tested, oldest = pinned("constraints.txt"), pinned("oldest.txt")
    found = []
    for extra, name, bound in required():
        run = " ".join(filter(None, oldest[name])) if name in oldest else ""
        found.append(f"| {name} | {extra} | {bound} or later | {tested[name][0]} | {run} |")
    return found


def main():
    """Nothing is written of an environment that is not the one of constraints.txt."""
    tested = pinned("constraints.txt")
    for _, name, _ in required():
        installed = version(name).partition("+")[0]  # without +cpu
        if installed != tested[name][0]:
            sys.exit(f"{name} {installed} is installed, and constraints.txt has {tested[name][0]}")
    text = TEXT.format(
        system=platform.system(),
        python=project()["requires-python"].removeprefix(">=") + " or later",
        interpreter=platform.python_version(),
        rows="\n".join(rows()),
    )
    (ROOT / "docs" / "versions.md").write_text(text)


if __name__ == "__main__":
    main()
