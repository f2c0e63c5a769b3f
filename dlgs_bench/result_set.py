"""Check whether a folder of results is complete, matches its checksums and has a known schema version.

dlgs-bench check-set FOLDER [--write]

``set.json`` contains the machine, the day and the commit of the results, and a checksum of every other file except the
page ``README.md``, whose words may change.
"""

import argparse
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlgs_bench import checksums
from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.errors import OneLineParser

NAME = "set.json"
SCHEMA = 1  # the version of set.json and of the columns below
PAGE = "README.md"
PROVENANCE = "provenance.json"  # which a run of the workflow writes next to its tables
DAY = r"\d{4}-\d{2}-\d{2}"
COMMIT = r"[0-9a-f]{7,40}(\+changes)?"
# key -> (what its text must be, in words, and as a pattern)
FACTS = {
    "machine": ("the processor, cores and memory in words", r"\S.*"),
    "date": ("a day as 2026-11-25, or two with 'to' between them", rf"{DAY}( to {DAY})?"),
    "commit": ("one or more commits, separated by ', '", rf"{COMMIT}(, {COMMIT})*"),
}
_RUN = ("run", "model", "variant", "ratio", "topology", "workers", "machine")
# A tidy table, by the end of its name -> the columns that other programs read.
COLUMNS = {
    "timing": (*_RUN, "rate_mbit", "timed", "block", "phase", "share", "iteration_s"),
    "accuracy": (*_RUN, "seed", "epoch", "step", "train_loss", "train_accuracy", "test_accuracy"),
}


def faults(folder: Path) -> list[str]:
    """What is missing, does not match its checksum, or has an unknown schema version; one line for each fault."""
    path = folder / NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [f"{path}: missing; write it with: dlgs-bench check-set {folder} --write"]
    except (OSError, ValueError, RecursionError) as error:
        return [f"{path}: {error}; write it again with --write"]
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        version = record.get("schema") if isinstance(record, dict) else None
        return [f"{path}: schema: {version!r} is not {SCHEMA}; write it again with --write, or use another version"]
    there = contents(folder)
    return [
        *_wrong_facts(path, record),
        *_wrong_files(folder, record.get("files"), there),
        *_wrong_tables(folder, there),
    ]


def _wrong_facts(path: Path, record: dict[str, Any]) -> list[str]:
    return [
        f"{path}: {key}: {record.get(key)!r} is not {words}; give --{key}, with --write"
        for key, (words, pattern) in FACTS.items()
        if not re.fullmatch(pattern, str(record.get(key) or ""))
    ]


def _wrong_files(folder: Path, expected: Any, there: dict[str, int | None]) -> list[str]:
    if not isinstance(expected, dict):
        return [f"{folder / NAME}: files: {expected!r} is not a table of checksums; write it again with --write"]
    wrong = []
    if not (folder / PAGE).is_file():
        wrong.append(f"{folder / PAGE}: missing; write how to repeat the results")
    for name in sorted((expected.keys() | there.keys()) - {PAGE}):
        if name not in there:
            wrong.append(f"{folder / name}: missing, but in {NAME}; restore it, or write {NAME} again with --write")
        elif name not in expected:
            wrong.append(f"{folder / name}: not in {NAME}; remove it, or write {NAME} again with --write")
        elif expected[name] != there[name]:
            wrong.append(
                f"{folder / name}: does not match its checksum; restore it, or write {NAME} again with --write"
            )
    return wrong


def _wrong_tables(folder: Path, names: Iterable[str]) -> list[str]:
    wrong = []
    for name in names:
        if kind := re.search(r"(?:^|[/_])(timing|accuracy)\.csv(\.gz)?$", name):
            header = _header(folder / name)
            if missing := [key for key in COLUMNS[kind[1]] if key not in header]:
                wrong.append(
                    f"{folder / name}: {missing[0]}: the column is missing; add it, schema {SCHEMA} requires it"
                )
    return wrong


def _header(path: Path) -> list[str]:
    """The names of a table's columns; none if the file cannot be read."""
    try:
        content = path.read_bytes()
        first = (gzip.decompress(content) if path.suffix == ".gz" else content).partition(b"\n")[0]
        return first.decode().strip().split(",")
    except (OSError, EOFError, ValueError, zlib.error):
        return []


def contents(folder: Path) -> dict[str, int | None]:
    """The checksum of every file below the folder, except the page, ``set.json``, and files that begin with a dot."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: checksums.of(path) for name, path in names.items() if name not in (NAME, PAGE)}


def write_record(folder: Path, given: dict[str, str]) -> None:
    """Write ``set.json``. A fact that is not ``given`` comes from ``set.json`` or from ``provenance.json``.

    If ``provenance.json`` has changed, the runs were made again, so its facts replace those in ``set.json``.
    """
    files, (facts, old_files) = contents(folder), _written(folder)
    of_runs = facts_of_runs(folder)
    same_runs = old_files.get(PROVENANCE) == files.get(PROVENANCE)
    facts = (of_runs | facts if same_runs else facts | of_runs) | given
    record = {"schema": SCHEMA, **{key: facts.get(key, "") for key in FACTS}, "files": files}
    write_atomically(folder / NAME, f"{json.dumps(record, indent=1)}\n".encode())


def facts_of_runs(folder: Path) -> dict[str, str]:
    """The machine, the days and the commits of a set's runs, from its ``provenance.json``; empty without that file."""
    try:
        record = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        first, last = (record[key][:10] for key in ("first_run", "last_run"))
        days = first if first == last else f"{first} to {last}"
        return {"machine": "; ".join(record["machine"]), "date": days, "commit": ", ".join(record["commit"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _written(folder: Path) -> tuple[dict[str, str], dict[str, int]]:
    """The facts and the checksums in ``set.json``; empty if they cannot be read."""
    try:
        record = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return {key: record[key] for key in FACTS if record.get(key)}, dict(record.get("files") or {})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}, {}


def main(arguments: list[str] | None = None) -> int:
    """One line for each fault, and 1; or one line about the set, and 0."""
    summary, status = __doc__.splitlines()[0], "Exit status: 0 without faults, 1 with faults, 2 for wrong options."
    parser = OneLineParser(prog="dlgs-bench check-set", description=summary, epilog=status)
    parser.add_argument("folder", type=Path, help="a folder of results")
    parser.add_argument("--write", action="store_true", help=f"first write {NAME} with the checksums of all files")
    parser.add_argument("--seal", action="store_true", help=argparse.SUPPRESS)  # the old name of --write
    for key, (words, _) in FACTS.items():
        parser.add_argument(f"--{key}", help=f"with --write: {words}; by default from {PROVENANCE}")
    asked = vars(parser.parse_args(arguments))
    folder, write, old = (asked.pop(key) for key in ("folder", "write", "seal"))
    if old:
        print(f"{parser.prog}: --seal is now called --write; rename it", file=sys.stderr)
    given = {key: value for key, value in asked.items() if value}
    if given and not (write or old):
        parser.error(f"--{next(iter(given))}: it is written only with --write; give --write too")
    if not folder.is_dir():
        parser.error(f"folder: {folder} is not a folder; give a folder of results")
    if write or old:
        try:
            write_record(folder, given)
        except OSError as error:
            parser.error(f"--write: {folder}: {error.strerror}; give a folder that is writable")
    wrong = faults(folder)
    for fault in wrong:
        print(fault, file=sys.stderr)
    if not wrong:
        record = json.loads((folder / NAME).read_text(encoding="utf-8"))
        facts = "; ".join(str(record[key]) for key in FACTS)
        print(f"{folder}: {len(record['files'])} files, schema {SCHEMA}; {facts}")
    return 1 if wrong else 0
