"""How a script begins and ends: where its complaints go, what it refuses to read, the seals of its tables. No torch."""

import atexit
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from dlgs_bench import checksums
from dlgs_bench.report import runs
from dlgs_bench.spec import RunSpec


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, and of a failure one line to the person too; refuse what is
    damaged of the files that it reads, and runs that are others than the rule's ``params.runs`` (folder -> spec).

    At its end a checksum of each of its own tables is left beside it.
    """
    log = Path(snakemake.log[0])
    sys.stderr = log.open("w", encoding="utf-8", buffering=1)

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
        if checksums.altered(path):
            refuse(f"{path} is not what was written; delete it, and the same command makes it again")
    for path in written:
        checksums.unseal(path)
    atexit.register(checksums.seal, written)


def refuse(why: str) -> NoReturn:
    """End the script, which cannot do what it was asked, with one line."""
    print(f"error: {why}", file=sys.__stderr__)
    sys.exit(f"error: {why}")
