"""The results of an experiment: a file beside the experiment, one JSON object per line. Lines are only added.

    paper/table1-kmnist/experiment.toml   paper/table1-kmnist/results.jsonl
    paper/checks/rate-kmnist.toml         paper/checks/results.jsonl#rate-kmnist
    my.toml                               my.jsonl

Experiments of one folder share its results.jsonl, if there is one. Each line then names its experiment in
`of`, and a path names it after #.

A line is a run, or a measurement of a network. It is written in one piece under a lock. If the process is
killed, at most the last line is cut short. It does not count, and the next process that writes removes it.
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

VERSION = 1  # records without a version have it as well
SHOWN = 3  # runs named in a warning
Result = dict[str, Any]


class ResultError(UsageError):
    """A result cannot be used. The message names its file."""


class NewerVersionError(ResultError):
    """A newer jacnorm wrote the result. This version neither reads nor replaces it."""


@dataclass(frozen=True)
class Results:
    """The content of a file. Lines that cannot be used are named, never silently dropped."""

    records: Mapping[str, Result] = field(default_factory=dict)  # by the run's id
    newer: Mapping[str, str] = field(default_factory=dict)  # id -> what is wrong: a newer jacnorm wrote it
    damaged: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()  # a warning about results of runs that the experiment does not have

    @property
    def warnings(self) -> tuple[str, ...]:
        unusable = tuple(f"{text}: skipped" for text in (*self.damaged, *self.newer.values()))
        return unusable + self.unwanted


def results_file(experiment: Path, folder: Path | None = None) -> Path:
    """The file of results: beside the experiment's file, or in a folder of results."""
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
    """Results of other experiments beside this one. They may contain the same runs."""
    if _file_and_part(file)[0].name == "results.jsonl":
        found = set(file.absolute().parent.parent.glob("*/*.jsonl"))
    else:
        found = {*file.parent.glob("*.jsonl"), *file.absolute().parent.parent.glob("*/results*.jsonl")}
    parts = [_part(other, name) for other in sorted(found) for name in _read_parts(other)]
    return [other for other in parts if other.absolute() != file.absolute()]


def experiment_file(beside: Path, name: str) -> Path:
    """The file of an experiment. Another file names it by its path without /experiment.toml or .toml."""
    path = Path(os.path.normpath(beside.parent / name))
    folder = path / "experiment.toml"
    return folder if folder.exists() else path.with_name(f"{path.name}.toml")


def _has_a_folder(file: Path) -> bool:
    return file.name == "experiment.toml"


def read_results(file: Path) -> Results:
    """The results in a file; empty if there is no such file."""
    whole, part = _file_and_part(file)
    return _of_part(_read_parts(whole), part)


def _of_part(parts: Mapping[str, Results], name: str) -> Results:
    """Damaged lines may belong to any experiment, so all of them get the warning."""
    return parts.get(name, Results(damaged=next(iter(parts.values())).damaged if parts else ()))


def written_at(file: Path) -> tuple[int, ...]:
    """Numbers that change whenever a result is added; empty if there is no such file."""
    whole, _ = _file_and_part(file)
    try:
        status = whole.stat()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ResultError(f"{whole}: cannot be read ({error.strerror})") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_parts(file: Path) -> Mapping[str, Results]:
    """The results of a file by experiment. It is parsed once per change, since sweeps read it often."""
    written = written_at(file)
    return _read(file, *written) if written else {}


@lru_cache(maxsize=64)
def _read(file: Path, *_written: int) -> Mapping[str, Results]:
    try:
        return _parse(file, file.read_bytes())
    except OSError as error:
        raise ResultError(f"{file}: cannot be read ({error.strerror})") from error


def _parse(file: Path, content: bytes) -> dict[str, Results]:
    """Results by the experiment that a line names in `of`; "" is the file's own experiment."""
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
        raise ResultError(f"{where}: has no {missing[0]!r}, so it is incomplete")
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
    """Measurements of a network come in parts. A part that is measured again replaces the old one."""
    several = [name for name in ("settings", "attacks") if name in record]
    parts: Result = {name: before.get(name, {}) | record[name] for name in several}
    return {**before, **record, **parts}


def select(file: Path, known: Collection[str]) -> Results:
    """The records of these runs in a file, and a warning if it has records of other runs."""
    found = read_results(file)
    records = {name: record for name, record in found.records.items() if name in known}
    if not (others := [name for name in found.records if name not in known]):
        return replace(found, records=records)
    some = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
    others_found = f"{count(len(others), 'result')} of runs that this experiment does not ask for"
    return replace(found, records=records, unwanted=(f"{file}: {others_found}: skipped ({some})",))


def append_result(file: Path, record: Result) -> None:
    """Add a record, unless the file has it. The record is on disk when this returns."""
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
    """Whether the file has this run; for measurements, whether it has all of them with the same settings."""
    before = found.records.get(record["id"])
    if before is None:
        return record["id"] in found.newer
    done = before.get("settings", {})
    return all(short(done.get(part)) == short(how) for part, how in record.get("settings", {}).items())


@contextmanager
def _locked(file: Path) -> Iterator[IO[bytes]]:
    """The file, opened and locked. The system releases the lock when the process dies."""
    while True:
        with file.open("a+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if _is_still(opened, file):
                opened.seek(0)
                yield opened
                return


def _is_still(opened: IO[bytes], file: Path) -> bool:
    """Whether the opened file is still the one on disk. While we waited, git may have replaced it."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    except FileNotFoundError:
        return False


def read_result(path: Path) -> Result:
    """A file with one JSON object, as in the folder of a run or an evaluation."""
    try:
        return _object(str(path), path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror})") from error


def loss(result: Result, quantity: str, sign: int = 1) -> float:
    """The final value of a quantity that each epoch has, or infinity if the run diverged. With sign = −1 high
    values are good."""
    return math.inf if has_diverged(result) else sign * float(result["history"][quantity][-1])


def has_diverged(result: Result) -> bool:
    """Whether the run diverged. It then has no test numbers, and `diverged` says what happened."""
    return result["test"] is None


def short(value: Any) -> Any:
    """All numbers rounded to six digits. No measurement here is more exact."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: short(inner) for name, inner in value.items()}
    return [short(inner) for inner in value] if isinstance(value, list | tuple) else value


def add_results(old: Path, file: Path) -> int:
    """Add results of a file, or of a folder with one file per run. Returns how many. Repeating is safe."""
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
