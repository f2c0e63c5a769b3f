"""How a script begins: where its complaints go, and what it refuses to read. No torch."""

import json
import sys
import zlib
from pathlib import Path


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, which the workflow shows if the rule fails; refuse what is
    damaged of the runs that it reads."""
    sys.stderr = Path(snakemake.log[0]).open("w", buffering=1)  # noqa: SIM115 - open until the script ends
    for folder in sorted({Path(path).parent for path in snakemake.input}):
        if why := damaged(folder):
            sys.exit(f"error: {why}; delete {folder}, and the same command makes it again")


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
