"""Checks the command line before Snakemake reads it, since Snakemake shows a traceback for an invalid ``--configfile``.

The profiles run this program: Snakemake reads a profile before any other file of a project.
"""

import os
import sys
from pathlib import Path

from snakemake import cli

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dlgs_bench.config import files  # noqa: E402


def mistake(arguments: list[str]) -> str | None:
    """What is wrong with the arguments of ``snakemake``, in one line, or None."""
    given, _ = cli.get_argument_parser().parse_known_args(arguments)
    for number, file in enumerate(given.configfile or []):
        if wrong := files.problem(file):
            is_target = number and not file.is_file()
            return wrong + ("; give the target before --configfile" if is_target else "")
    for entry in given.config or []:
        try:
            cli.parse_config([entry])
        except ValueError:
            return f"--config {entry}: is not key=value; give keys of the configuration, as in --config workers=3"
    return None


def writable_cache() -> str | None:
    """Move Snakemake's cache into the project if the user's cache is not writable; what is wrong, or None."""
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path raises without a home
    for folder in (wanted, ROOT / ".cache"):
        try:
            (folder / "snakemake").mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder / "snakemake", os.W_OK):
            os.environ["XDG_CACHE_HOME"] = str(folder)
            return None
    return f"XDG_CACHE_HOME: {wanted} is not writable, nor {ROOT / '.cache'}; set XDG_CACHE_HOME to a writable folder"


if wrong := mistake(sys.argv[1:]) or writable_cache():
    print(f"error: {wrong}", file=sys.stderr)
    sys.exit(1)
