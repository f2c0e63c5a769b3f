"""The command dlgs-bench."""

import errno
import importlib
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support import METHODS, ROOT

from dlgs_bench import __version__, cli, list_methods

pytestmark = pytest.mark.unit


def test_every_command_is_listed_and_can_be_imported(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (module, _, what) in cli.COMMANDS.items():
        assert name in text and what in text
        assert callable(importlib.import_module(module).main)


@pytest.mark.parametrize("module", ["dlgs_bench.not_shipped", "dlgs_bench.not_shipped.compare"])
def test_a_command_that_an_installed_package_lacks_is_not_listed(module, capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "compare", (module, [], "compare two result sets"))
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "compare" not in text and "advise" in text


@pytest.mark.parametrize("arguments", [[], None], ids=["called", "in a shell"])
def test_without_a_command_the_help_is_shown(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dlgs-bench"])
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith("usage: dlgs-bench")


def test_the_version_is_the_packages(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dlgs-bench {__version__}\n"


def test_an_unknown_command_is_one_line(capsys):
    assert cli.main(["advice"]) == 2
    assert capsys.readouterr().err == f"dlgs-bench: advice is not a command; give one of: {', '.join(cli.COMMANDS)}\n"


def test_a_command_that_lacks_a_package_says_which(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "compare", ("dlgs_bench.not_shipped", [], ""))
    assert cli.main(["compare"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dlgs-bench compare: dlgs_bench.not_shipped is missing; run it from a clone")


def test_methods_are_listed_with_their_parameters(capsys):
    assert cli.main(["methods"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == METHODS
    assert cli.main(["methods", "dlgs"]) == 0
    assert "refresh_every=32" in capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with suppress(SystemExit):  # argparse exits after its help
        cli.main([command, "--help"])
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_an_unknown_option_is_one_line(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--nonsense"])
    out, err = capsys.readouterr()
    line = err or f"{end.value.code}\n"  # Python prints a text
    assert end.value.code and not out and line.endswith("\n") and line.count("\n") == 1


@pytest.mark.parametrize("error", [SystemExit(0), SyntaxError("invalid syntax"), ModuleNotFoundError("No module")])
def test_a_method_that_cannot_be_loaded_is_one_line_and_the_others_are_listed(error, capsys, monkeypatch):
    def row(name):
        print("noise")
        if name == "topk":
            raise error
        return name

    monkeypatch.setattr(list_methods, "row", row)
    assert cli.main(["methods"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [name for name in METHODS if name != "topk"]
    (line,) = [line for line in err.splitlines() if line != "noise"]
    assert line.startswith(f"dlgs-bench methods: methods/topk.py: {type(error).__name__}: ")


def test_ctrl_c_is_one_line(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    assert cli.main(["advise"]) == 130
    assert capsys.readouterr().err == "dlgs-bench: interrupted\n"


def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        called = [sys.executable, "-m", "dlgs_bench.cli", "--help"]
        done = subprocess.run(called, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "dlgs-bench: the output: No space left on device; give another path\n"


def test_an_error_is_one_line_although_the_output_is_closed(capsys, monkeypatch):
    def full(arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "CHECKSUMS")

    monkeypatch.setattr(cli, "_run", full)
    monkeypatch.setattr(sys, "stdout", None)  # as Python sets it if a shell closes the output
    assert cli.main(["check-set"]) == 2
    assert capsys.readouterr().err == "dlgs-bench: CHECKSUMS: No space left on device; give another path\n"


def test_an_unknown_method_is_one_line_with_the_nearest_name(capsys):
    assert cli.main(["methods", "tokp"]) == 2
    assert "'tokp' is not a method (did you mean 'topk'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["methods", "--help"], ["advise", "tests/recorded_profile.json"]], ids=" ".join
)
def test_a_reader_that_has_enough_ends_a_command_quietly(arguments):
    """The pipe is closed before the command writes, as ``head`` may close it."""
    called = [sys.executable, "-m", "dlgs_bench.cli", *arguments]
    process = subprocess.Popen(called, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 0
