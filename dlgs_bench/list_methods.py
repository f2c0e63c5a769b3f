"""List the compression methods: name, title, and parameters with their defaults.

dlgs-bench methods [name ...]
"""

import sys
from contextlib import redirect_stdout

from dlgs_bench import plugins
from dlgs_bench.errors import OneLineParser, listed, meant


def row(name: str) -> str:
    """One method in one line, such as ``topk  Top-K  ratio, selection=torch``."""
    from dlgs_bench.exchange.plugin import method_info  # here, since help and errors need no torch, which takes seconds

    described = method_info(name)
    parameters = (
        f"{key}={field['default']}" if "default" in field else key for key, field in described["fields"].items()
    )
    return f"{name:<16} {described['title']:<26} {', '.join(parameters)}".rstrip()


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="dlgs-bench methods", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help="methods to list; all if none is given")
    names, known = parser.parse_args(arguments).names, plugins.names("methods")
    for name in names:
        if name not in known:
            wrong = f"{name!r} is not a method{meant(name, known)}; {listed(known)}"
            print(f"dlgs-bench methods: {wrong}", file=sys.stderr)
            return 2
    status = 0
    for name in names or known:
        try:
            with redirect_stdout(sys.stderr):  # what the file prints
                line = row(name)
        except (Exception, SystemExit) as error:  # whatever the file of a user raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"dlgs-bench methods: {plugins.file_of('methods', name)}: {why}; fix the file", file=sys.stderr)
            status = 1
        else:
            print(line)
    return status
