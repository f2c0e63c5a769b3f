"""What a newcomer would write: methods without a ratio, with bytes, maxima, momentum, or another method's code.

Each is one file in ``tests/newcomer``; put into ``methods/`` of a copy of the project it is found, described, held to
the laws, and run on both engines, without another edit.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, copy_project

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NEW = sorted(p.stem for p in (ROOT / "tests" / "newcomer").glob("*.py"))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project whose methods are uncompressed, DLGS, which one inherits from, and the new ones."""
    folder = copy_project(tmp_path_factory.mktemp("newcomer"), ("none", "dlgs"))
    for name in NEW:
        shutil.copy(ROOT / "tests" / "newcomer" / f"{name}.py", folder / "methods")
    return folder


def pytest_in(project: Path, environment: dict, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]


def test_they_are_described_with_what_they_inherit(project, environment):
    said = subprocess.run(
        [sys.executable, "-m", "harness.describe"], cwd=project, env=environment, capture_output=True, text=True
    )
    methods = json.loads(said.stdout)["methods"]
    assert set(NEW) <= methods.keys() and not [m for m in methods.values() if "error" in m]
    often = methods["dlgs_often"]
    assert (often["scope"], often["plan"], often["one_sum"]) == ("plan", "groups", "sparse")
    assert often["fields"]["refresh_every"]["default"] == 4 and "ratio" in often["fields"]
    assert "ratio" not in methods["fixedpoint"]["fields"]
    assert methods["fixedpoint"]["fields"]["levels"] == {"type": "int", "bound": [">=", 1.0], "default": 100}


def test_they_keep_the_laws_that_they_declare(project, environment):
    pytest_in(project, environment, "tests/test_methods.py", "tests/test_sparsifiers.py", "-k", " or ".join(NEW))


@pytest.mark.parametrize("engine", ["horovod", "torch_dist"])
def test_they_run_on_both_engines_with_the_bits_of_local_threads(project, environment, engine):
    pytest_in(project, environment, "tests/test_engines.py", "-k", f"local_threads and {engine}")
