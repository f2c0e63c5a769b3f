"""The option ``--figure FILE.svg`` of commands: the file is checked before the work, and written as a whole."""

import io
import os
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dlgs_bench.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_option(parser: ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="also draw a figure (needs matplotlib)")


def check(path: Path) -> None:
    """Raise ValueError in one line if no figure can be written to ``path``."""
    if path.suffix != ".svg":
        raise ValueError(f"--figure: {path} does not end in .svg; give a file that does")
    folder = path.absolute().parent
    try:
        if not folder.is_dir():
            raise ValueError(f"--figure: the folder of {path} does not exist; create it")
        if path.is_dir() or not os.access(folder, os.W_OK):
            raise ValueError(f"--figure: {path} is a folder, or its folder is not writable; give another file")
    except OSError as error:  # a name that is too long
        raise _refused(path, error) from None
    try:
        import matplotlib  # noqa: F401 - not among the packages that the wheel needs
    except ImportError:
        raise ValueError("--figure: matplotlib is not installed; install it, or leave --figure out") from None


def write(path: Path, draw: Callable[[], "Figure"], caption: str) -> None:
    """Write the figure that ``draw`` returns, with its caption; ValueError in one line if the file system refuses it.

    ``draw`` runs with matplotlib's own settings, and the settings of the process are as before afterwards. The same
    figure gives the same file.
    """
    import matplotlib

    drawn = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of the user can require LaTeX, for example
        matplotlib.rcParams["text.parse_math"] = False  # a title can contain $
        matplotlib.rcParams["svg.hashsalt"] = "figure"  # the ids in an SVG are random otherwise
        draw().savefig(drawn, format="svg", metadata={"Date": None, "Description": caption})
    try:
        write_atomically(path, drawn.getvalue())
    except OSError as error:  # a full disk, for example
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> ValueError:
    return ValueError(f"--figure: {path}: {error.strerror}; give another file")
