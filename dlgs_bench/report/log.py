"""What every script does first: log its errors, check its input files, write checksums of its tables. No torch."""

import atexit
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol

from dlgs_bench import checksums
from dlgs_bench.report import check_run
from dlgs_bench.spec import RunSpec


class Script(Protocol):
    """The object ``snakemake`` in a script: the files and parameters of its rule."""

    input: Any
    output: Any
    params: Any
    log: Any


def log_errors(snakemake: Script) -> None:
    """Prepare a script: every script calls it first.

    Standard error goes to the log of the rule. If the script fails, one line is also printed for the user. The script
    ends at once if an input file is corrupt, or if a run is not the run in the rule's ``params.runs`` (folder -> spec).
    When the script ends, a checksum is written next to each of its tables.
    """
    log = Path(snakemake.log[0])
    sys.stderr = log.open("w", encoding="utf-8", buffering=1)

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        traceback.print_exception(kind, error, trace)
        print(f"{kind.__name__}: {error}; more in {log}", file=sys.__stderr__)

    sys.excepthook = failed
    files, written = (list(map(Path, paths)) for paths in (snakemake.input, snakemake.output))
    specs = getattr(snakemake.params, "runs", {})
    requested = {Path(folder): RunSpec.from_json(spec) for folder, spec in specs.items()}
    for folder in sorted({path.parent for path in files} | requested.keys()):
        if why := check_run.problem(folder, requested.get(folder)):
            refuse(f"{why}; delete {folder}, and the same command makes it again")
    for path in files:
        if checksums.mismatched(path):
            refuse(f"{path}: the content does not match its checksum; delete it, and the same command makes it again")
    for path in written:
        checksums.remove_for(path)
    atexit.register(checksums.write_for, written)


def refuse(why: str) -> NoReturn:
    """End the script with one line of error."""
    print(f"error: {why}", file=sys.__stderr__)
    sys.exit(f"error: {why}")
