"""The command line, checked before Snakemake reads it, which shows tracebacks of mistakes in ``--configfile`` and
``--config``.

The profiles run this file: of all that a project holds, a profile is what Snakemake reads first.
"""

import os
import runpy
import sys
from pathlib import Path

from snakemake import cli

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from harness.config import files  # noqa: E402


def mistake(arguments: list[str]) -> str | None:
    """What is wrong with the arguments of ``snakemake``, in one line, or None."""
    said, _ = cli.get_argument_parser().parse_known_args(arguments)
    for number, file in enumerate(said.configfile or []):
        if wrong := files.problem(file):
            target = number and not file.exists()
            return wrong + ("; a target goes before --configfile" if target else "")
    for entry in said.config or []:
        try:
            cli.parse_config([entry])
        except ValueError:
            return f"--config {entry}: give keys of the configuration with their values, as in --config workers=3"
    folder = Path(said.directory or ".").resolve()
    if folder.exists() and not os.access(folder, os.W_OK):
        return f"{folder}: nobody may write here, where Snakemake keeps its notes; copy the project elsewhere"
    return None


if __name__ == "__main__":
    runpy.run_path(str(HERE / "sitecustomize.py"))
    if wrong := mistake(sys.argv[1:]):
        print(f"error: {wrong}", file=sys.stderr)
        sys.exit(1)
