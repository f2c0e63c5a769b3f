"""What a newcomer would write: methods without a ratio, with bytes, maxima, momentum, or another method's code.

Each is one file in ``tests/newcomer``, or a code block of a document. In ``methods/`` of a copy of the project it is
found, described, tested against the laws, and run on both engines, without another edit.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import DOCUMENTED, PATIENCE_S, ROOT, copy_project, documented_method, python_in

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NEW = sorted(p.stem for p in (ROOT / "tests" / "newcomer").glob("*.py"))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project whose methods are uncompressed, DLGS, which one inherits from, and the new ones."""
    folder = copy_project(tmp_path_factory.mktemp("newcomer"), ("none", "dlgs"))
    for name in NEW:
        shutil.copy(ROOT / "tests" / "newcomer" / f"{name}.py", folder / "methods")
    for name in DOCUMENTED:
        (folder / "methods" / f"{name}.py").write_text(documented_method(name))
    return folder


def test_they_are_described_with_what_they_inherit(project):
    methods = json.loads(python_in(project, "-m", "dlgs_bench.describe"))["methods"]
    assert {*NEW, *DOCUMENTED} <= methods.keys() and not [m for m in methods.values() if "error" in m]
    often = methods["dlgs_often"]
    assert (often["scope"], often["plan"], often["sum_kind"]) == ("plan", "groups", "sparse")
    assert often["fields"]["refresh_every"]["default"] == 4 and "ratio" in often["fields"]
    assert "ratio" not in methods["fixedpoint"]["fields"]
    assert methods["fixedpoint"]["fields"]["levels"] == {"type": "int", "bounds": [[">=", 1.0]], "default": 100}


def test_they_keep_the_laws_that_they_declare_and_run_on_both_engines(project):
    """A separate process runs the tests that a contributor runs."""
    files = ["tests/test_methods.py", "tests/test_sparsifiers.py", "tests/test_engines.py"]
    chosen = " or ".join([*NEW, *DOCUMENTED, "local_threads"])
    said = python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen, timeout_s=600)
    assert " passed" in said


def test_the_tests_of_a_method_start_no_ranks(project):
    """The pages say so of ``pytest -k <method>``. test_cuda.py has the marker of ranks, which its other tests start.
    test_hook_states.py needs methods that the copy lacks."""
    called = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", "not unit"]
    called += ["--ignore", "tests/test_cuda.py", "--ignore", "tests/test_hook_states.py", "-k", " or ".join(DOCUMENTED)]
    done = subprocess.run(called, cwd=project, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout[-4000:]
