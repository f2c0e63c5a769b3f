"""How a script begins: where its complaints go, and what it refuses to read. No torch."""

import json
import sys
import traceback
import zlib
from pathlib import Path
from typing import NoReturn


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, and of a failure one line to the person too; refuse what is
    damaged of the runs that it reads."""
    log = Path(snakemake.log[0])
    sys.stderr = log.open("w", buffering=1)

    def failed(kind, error, trace) -> None:
        traceback.print_exception(kind, error, trace)
        print(f"{kind.__name__}: {error}; more in {log}", file=sys.__stderr__)

    sys.excepthook = failed
    for folder in sorted({Path(path).parent for path in snakemake.input}):
        if why := damaged(folder):
            refuse(f"{why}; delete {folder}, and the same command makes it again")


def refuse(why: str) -> NoReturn:
    """End the script, which cannot do what it was asked, with one line."""
    print(f"error: {why}", file=sys.__stderr__)
    sys.exit(f"error: {why}")


def damaged(folder: Path) -> str:
    """What is not as the run in a folder left it, or nothing; a folder without run.json holds no run."""
    record = folder / "run.json"
    if not record.exists():
        return ""
    try:
        files = json.loads(record.read_text()).get("files", {})
    except ValueError:
        return f"{record} is damaged"
    wrong = (name for name, known in files.items() if _checksum(folder / name) != known)
    return next((f"{folder / name} is not what its run wrote" for name in wrong), "")


def _checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.exists() else None
