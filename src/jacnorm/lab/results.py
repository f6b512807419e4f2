"""The results of an experiment: a file beside its own, one JSON object a line, to which lines are added.

    paper/table1-kmnist/experiment.toml   paper/table1-kmnist/results.jsonl
    paper/checks/rate-kmnist.toml         paper/checks/results.jsonl#rate-kmnist
    my.toml                               my.jsonl

Experiments of one folder share its results.jsonl, where there is one: after # stands the experiment whose
lines are meant, which say `of` whom they are.

A line is a run, or what was measured of a network. It is written in one piece under a lock. After a kill at
any moment at most the last line is cut short: it does not count, and the next one to write removes it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from .errors import UsageError
from .wording import count

VERSION = 1  # what names none is of version 1
SHOWN = 3  # of a list of runs
Result = dict[str, Any]


class ResultError(UsageError):
    """A result that cannot be used; the message names its file."""


class NewerVersionError(ResultError):
    """Written by a newer jacnorm: not ours to read or to replace."""


@dataclass(frozen=True)
class Results:
    """What a file holds. What cannot be used is named, never dropped in silence."""

    records: Mapping[str, Result] = field(default_factory=dict)  # by the run's id
    newer: Mapping[str, str] = field(default_factory=dict)  # id -> what is wrong: a newer jacnorm wrote it
    damaged: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()  # a warning of runs that an experiment does not ask for, if there are any

    @property
    def warnings(self) -> tuple[str, ...]:
        unusable = tuple(f"{text}: skipped" for text in (*self.damaged, *self.newer.values()))
        return unusable + self.unasked


def results_file(experiment: Path, folder: Path | None = None) -> Path:
    """Beside the experiment's file, or in a folder of results."""
    if folder is not None:
        return folder / f"{experiment_name(experiment)}.jsonl"
    own, shared = experiment.with_suffix(".jsonl"), experiment.with_name("results.jsonl")
    if _has_a_folder(experiment):
        return shared
    return _part(shared, experiment.stem) if shared.exists() and not own.exists() else own


def _part(file: Path, name: str) -> Path:
    return file.with_name(f"{file.name}#{name}") if name else file


def _file_and_part(file: Path) -> tuple[Path, str]:
    name, mark, part = file.name.partition(".jsonl#")
    return (file.with_name(f"{name}.jsonl"), part) if mark else (file, "")


def experiment_name(file: Path) -> str:
    return file.absolute().parent.name if _has_a_folder(file) else file.stem


def neighbours(file: Path) -> list[Path]:
    """The results of other experiments beside this one, which may have the same runs."""
    if _file_and_part(file)[0].name == "results.jsonl":
        found = set(file.absolute().parent.parent.glob("*/*.jsonl"))
    else:
        found = {*file.parent.glob("*.jsonl"), *file.absolute().parent.parent.glob("*/results*.jsonl")}
    parts = [_part(other, name) for other in sorted(found) for name in _read_parts(other)]
    return [other for other in parts if other.absolute() != file.absolute()]


def experiment_file(beside: Path, name: str) -> Path:
    """As another one's file calls it: by a path from there, without /experiment.toml or .toml at its end."""
    path = Path(os.path.normpath(beside.parent / name))
    folder = path / "experiment.toml"
    return folder if folder.exists() else path.with_name(f"{path.name}.toml")


def _has_a_folder(file: Path) -> bool:
    return file.name == "experiment.toml"


def read_results(file: Path) -> Results:
    """Nothing if there is no such file."""
    whole, part = _file_and_part(file)
    return _of_part(_read_parts(whole), part)


def _of_part(parts: Mapping[str, Results], name: str) -> Results:
    """What is damaged may be of any."""
    return parts.get(name, Results(damaged=next(iter(parts.values())).damaged if parts else ()))


def written_at(file: Path) -> tuple[int, ...]:
    """Changes whenever a result comes; nothing if there is no such file."""
    whole, _ = _file_and_part(file)
    try:
        status = whole.stat()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ResultError(f"{whole}: cannot be read ({error.strerror})") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_parts(file: Path) -> Mapping[str, Results]:
    """Parsed once for each time it was written, since sweeps ask often."""
    written = written_at(file)
    return _read(file, *written) if written else {}


@lru_cache(maxsize=64)
def _read(file: Path, *_written: int) -> Mapping[str, Results]:
    try:
        return _parse(file, file.read_bytes())
    except OSError as error:
        raise ResultError(f"{file}: cannot be read ({error.strerror})") from error


def _parse(file: Path, content: bytes) -> dict[str, Results]:
    """By whom the lines are of; "" for those of the file's own experiment."""
    records: defaultdict[str, dict[str, Result]] = defaultdict(dict)
    newer: defaultdict[str, dict[str, str]] = defaultdict(dict)
    damaged = []
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = _record(f"{file}, line {number}", line)
            mine = records[record.pop("of", "")]
            mine[record["id"]] = merged(mine.get(record["id"], {}), record)
        except NewerVersionError as error:
            theirs = json.loads(line)
            newer[theirs.get("of", "")][theirs.get("id", "")] = str(error)
        except ResultError as error:
            damaged.append(str(error))
    if rest:
        damaged.append(f"{file}, line {len(lines) + 1}: cut short")
    names = dict.fromkeys((*records, *newer)) or [""]
    return {name: Results(records[name], newer[name], tuple(damaged)) for name in names}


def _record(where: str, line: bytes) -> Result:
    record = _object(where, line)
    needed = ("id", "config", *(("settings",) if "settings" in record else ("test", "history")))
    if missing := [name for name in needed if name not in record]:
        raise ResultError(f"{where}: has no {missing[0]!r}, so it is not whole")
    return record


def _object(where: str, text: bytes) -> Result:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ResultError(f"{where}: cut short or not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ResultError(f"{where}: not a result, it holds a {type(content).__name__}")
    version = content.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise NewerVersionError(
            f"{where}: of version {version}, this jacnorm reads up to {VERSION}; a newer one wrote it"
        )
    return content


def merged(before: Result, record: Result) -> Result:
    """What is measured of a network comes in parts; one that is measured again replaces the old one."""
    several = [name for name in ("settings", "attacks") if name in record]
    parts: Result = {name: before.get(name, {}) | record[name] for name in several}
    return {**before, **record, **parts}


def select(file: Path, known: Collection[str]) -> Results:
    """What a file has of the runs asked for; a warning if it has others."""
    found = read_results(file)
    records = {name: record for name, record in found.records.items() if name in known}
    if not (others := [name for name in found.records if name not in known]):
        return replace(found, records=records)
    some = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
    asked = f"{count(len(others), 'result')} of runs that this experiment does not ask for"
    return replace(found, records=records, unasked=(f"{file}: {asked}: skipped ({some})",))


def append_result(file: Path, record: Result) -> None:
    """Add a record, unless it is there already; it is on disk when this returns."""
    whole, part = _file_and_part(file)
    of = {"of": part} if part else {}
    line = json.dumps({"version": VERSION, **of, **record}, ensure_ascii=False).encode() + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(whole) as opened:
        content = opened.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            opened.truncate(end)
        if not is_there(record, _of_part(_parse(whole, content[:end]), part)):
            opened.write(line)
            opened.flush()
            os.fsync(opened.fileno())


def is_there(record: Result, found: Results) -> bool:
    """The same run; or, of the same network, all that was measured, with the same settings."""
    before = found.records.get(record["id"])
    if before is None:
        return record["id"] in found.newer
    done = before.get("settings", {})
    return all(short(done.get(part)) == short(how) for part, how in record.get("settings", {}).items())


@contextmanager
def _locked(file: Path) -> Iterator[IO[bytes]]:
    """Open for this process alone; the system lets go of the lock when it dies, however."""
    while True:
        with file.open("a+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if _is_still(opened, file):
                opened.seek(0)
                yield opened
                return


def _is_still(opened: IO[bytes], file: Path) -> bool:
    """It may have been replaced while we waited, by git for one."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    except FileNotFoundError:
        return False


def read_result(path: Path) -> Result:
    """A file with one JSON object, as a run's folder and an evaluation have them."""
    try:
        return _object(str(path), path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror})") from error


def validation_loss(result: Result) -> float:
    """At the end: what the paper chooses settings by. A run that diverged is as bad as can be."""
    return loss(result, "validation_loss")


def loss(result: Result, quantity: str, sign: int = 1) -> float:
    """At the end, by a quantity of each epoch; −1 is for one that is good when it is high."""
    return math.inf if has_diverged(result) else sign * float(result["history"][quantity][-1])


def has_diverged(result: Result) -> bool:
    """Such a run has no numbers of the test split; `diverged` says what happened."""
    return result["test"] is None


def short(value: Any) -> Any:
    """Six digits are more than any of these numbers is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: short(inner) for name, inner in value.items()}
    return [short(inner) for inner in value] if isinstance(value, list | tuple) else value


def add_results(old: Path, file: Path) -> int:
    """Of another file, or of a folder with a file for each; how many there are. It can be done again."""
    if old.is_dir():
        found = [read_result(one) for one in sorted(old.glob("*.json"))]
    else:
        found = list(read_results(old).records.values())
    for result in found:
        append_result(file, result)
    return len(found)


if __name__ == "__main__":
    try:
        old, new = map(Path, sys.argv[1:])
        print(f"{new}: {count(add_results(old, new), 'result')} from {old}")
    except ValueError:
        sys.exit("usage: python -m jacnorm.lab.results results/my my.jsonl")
