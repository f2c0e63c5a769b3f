"""Where a script's complaints go. No torch."""

import sys
from pathlib import Path


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, which the workflow shows if the rule fails."""
    sys.stderr = Path(snakemake.log[0]).open("w", buffering=1)  # noqa: SIM115 - open until the script ends
