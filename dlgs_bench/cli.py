"""The command ``dlgs-bench``: the programs of the package under one name.

Each command is a module with ``main(arguments)``. A module is imported only when its command is called, so a command
does not need the packages of the other commands.
"""

import importlib
import importlib.util
import io
import os
import sys

from dlgs_bench import __version__

# name -> (module, its first arguments, what it does)
COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "advise": ("dlgs_bench.advise", [], "predict from a job's profile whether compressing its gradients pays"),
    "rehearse": ("dlgs_bench.rehearse", [], "replay a profile on this machine over slowed links"),
    "compare": ("dlgs_bench.report.compare", [], "compare result sets: which rows of Table 2 agree"),
    "methods": ("dlgs_bench.list_methods", [], "list the compression methods with their parameters"),
    "check-testbed": ("dlgs_bench.testbed.testbed", ["check"], "check whether this machine can slow its links"),
    "check-set": (
        "dlgs_bench.result_set",
        [],
        "check whether a folder of results is complete and matches its checksums",
    ),
}


def usage() -> str:
    """The text of ``dlgs-bench --help``."""
    lines = [f"  {name:<14} {what}" for name, (module, _, what) in COMMANDS.items() if _is_installed(module)]
    return "\n".join(
        ["usage: dlgs-bench <command> [options]", "", *lines, "", "dlgs-bench <command> --help shows its options"]
    )


def _is_installed(module: str) -> bool:
    """Whether the package has this module: a wheel leaves out modules that need the rest of the repository."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package of the module is not installed
        return False


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for a wrong call. Without a command, print the help.

    A closed pipe is not an error. Ctrl-C and a full disk end in one line.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack a character of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)  # the output can be closed, and is None then
    except KeyboardInterrupt:
        print("dlgs-bench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has enough
        status = 0
    except OSError as error:  # such as a full disk
        path = error.filename or "the output"
        print(f"dlgs-bench: {path}: {error.strerror}; give another path", file=sys.stderr)
        status = 2
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it exits
    return status


def _run(arguments: list[str] | None) -> int:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"dlgs-bench {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"dlgs-bench: {name} is not a command; give one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, first, _ = COMMANDS[name]
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing; run it from a clone of the repository, with its environment (make env)"
        print(f"dlgs-bench {name}: {why}", file=sys.stderr)
        return 2
    return command.main([*first, *rest]) or 0


if __name__ == "__main__":
    sys.exit(main())
