"""How a script begins and ends: where its complaints go, what it refuses to read, what its tables were. No torch."""

import atexit
import sys
import traceback
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from harness.report import runs
from harness.spec import RunSpec

SEALED = (".csv", ".json")  # what other scripts read


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, and of a failure one line to the person too; refuse what is
    damaged of the files that it reads, and runs that are others than the rule's ``params.runs`` (folder -> spec).

    At its end a checksum of each of its own tables is left beside it.
    """
    log = Path(snakemake.log[0])
    sys.stderr = log.open("w", buffering=1)

    def failed(kind, error, trace) -> None:
        traceback.print_exception(kind, error, trace)
        print(f"{kind.__name__}: {error}; more in {log}", file=sys.__stderr__)

    sys.excepthook = failed
    files, written = (list(map(Path, paths)) for paths in (snakemake.input, snakemake.output))
    asked = {Path(folder): RunSpec.from_json(spec) for folder, spec in getattr(snakemake.params, "runs", {}).items()}
    for folder in sorted({path.parent for path in files} | asked.keys()):
        if why := runs.wrong(folder, asked.get(folder)):
            refuse(f"{why}; delete {folder}, and the same command makes it again")
    for path in files:
        if altered(path):
            refuse(f"{path} is not what was written; delete it, and the same command makes it again")
    for path in written:
        _seal(path).unlink(missing_ok=True)
    atexit.register(seal, written)


def refuse(why: str) -> NoReturn:
    """End the script, which cannot do what it was asked, with one line."""
    print(f"error: {why}", file=sys.__stderr__)
    sys.exit(f"error: {why}")


def seal(paths: list[Path]) -> None:
    """Leave the checksum of each table beside it, as far as the disk has room."""
    for path in paths:
        if path.suffix in SEALED and path.exists():
            with suppress(OSError):
                _seal(path).write_text(f"{zlib.crc32(path.read_bytes())}\n")


def altered(path: Path) -> bool:
    """Whether a table is not what a script wrote; of one without a checksum nobody knows."""
    known = _seal(path)
    return known.exists() and known.read_text() != f"{zlib.crc32(path.read_bytes())}\n"


def _seal(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc32")
