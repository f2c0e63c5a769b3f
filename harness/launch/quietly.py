"""How the workflow's rules start programs, so that Ctrl-C ends them without a traceback. No torch."""

import os
import shlex
import subprocess
from pathlib import Path


def beginning(folder: Path) -> str:
    """What stands before a command in a shell: its program takes SIGINT from ``folder``'s sitecustomize.py on."""
    paths = [str(folder), os.environ.get("PYTHONPATH")]
    hold = ["env", "--block-signal=INT"]
    if subprocess.run([*hold, "true"], capture_output=True).returncode:
        hold.pop()  # GNU coreutils before 8.31
    return shlex.join([*hold, f"PYTHONPATH={os.pathsep.join(filter(None, paths))}"])
