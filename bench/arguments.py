"""The command line of a benchmark."""

import argparse
from pathlib import Path

DATA = {"data": {"nargs": "?", "type": Path, "default": Path("data"), "help": "the folder of cifar10.npz (data)"}}
QUICK = {"--quick": {"action": "store_true", "help": "few repeats: to see that it runs"}}


def parser(document: str, options: dict[str, dict] | None = None) -> argparse.ArgumentParser:
    """Return a parser with the argument ``folder``.

    Args:
        document: the program's docstring, which is its help.
        options: further arguments by name, each with the keywords of ``add_argument``.
    """
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, help="where the tables are written")
    for name, keywords in (options or {}).items():
        made.add_argument(name, **keywords)
    return made
