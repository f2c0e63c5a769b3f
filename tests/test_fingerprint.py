"""Reading the code behind runs."""

import gc
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import read

from dlgs_bench import fingerprint, plugins
from dlgs_bench.fingerprint import ROOT

pytestmark = pytest.mark.unit


@pytest.fixture
def interrupted():
    """Threads take turns all the time, also while Python makes a tree, in which it collects garbage."""
    before, callback = sys.getswitchinterval(), lambda *_: sum(range(200))
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(callback)
    yield
    gc.callbacks.remove(callback)
    sys.setswitchinterval(before)


def test_threads_may_read_code_at_the_same_time(interrupted):
    files = sorted(fingerprint.PACKAGE.rglob("*.py"))[:10] * 10  # half as many fail without the lock
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(fingerprint._source.__wrapped__, files))) == 100


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "if a:\n {}",
        "if a:\n pass\nelse:\n {}",
        "for a in b:\n pass\nelse:\n {}",
        "while a:\n {}",
        "with a:\n {}",
        "try:\n pass\nexcept a:\n {}",
        "try:\n pass\nexcept a:\n pass\nelse:\n {}",
        "try:\n pass\nfinally:\n {}",
        "match a:\n case b:\n  {}",
        "class A:\n def b(self):\n  async def c():\n   {}",
    ],
)
def test_an_import_counts_wherever_it_stands_and_words_do_not(tmp_path, around):
    imported = tmp_path / "b.py"
    imported.write_text("words = 'import a'")
    for name, statement in (("a.py", "import b"), ("c.py", "from b import words")):
        file = tmp_path / name
        file.write_text(around.format(statement))
        assert fingerprint.imports(file, tmp_path) == {file, imported}
    assert fingerprint.imports(imported, tmp_path) == {imported}


@given(st.text("0123456789e", min_size=7, max_size=12), st.text("0123456789abcdef", max_size=20))
def test_a_commit_is_never_a_number(first, rest):
    digits = f"{first}{rest}a"
    name = fingerprint.abbreviated(digits, 7)
    assert digits.startswith(name) and len(name) >= 7
    with pytest.raises(ValueError, match="could not convert"):
        float(name)


@pytest.mark.parametrize("digits", ["54355324f", "12e45674f"])
def test_no_table_reads_a_commit_as_a_number(digits):
    """This does not hold for every name: pandas crashes on 1e2147483648a."""
    name = fingerprint.abbreviated(digits, 7)
    assert pd.read_csv(StringIO(f"commit\n{name}\n"))["commit"].tolist() == [name]


@pytest.mark.parametrize(
    "path, changes", [("results/new.csv", ""), ("out/new.svg", ""), ("methods/new.py", "+changes")]
)
def test_only_files_on_which_runs_depend_are_changes(tmp_path, monkeypatch, path, changes):
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run([*git, *command], check=True)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    assert "".join(fingerprint.commit().partition("+")[1:]) == changes


def test_git_ignores_the_report_of_every_configuration():
    of_all = [read(path.stem) for path in (ROOT / "config").glob("*.yaml")]
    reports = {values["output"]["report"] for values in of_all if "report" in values.get("output", {})}
    ignored = subprocess.run(["git", "check-ignore", *reports], cwd=ROOT, capture_output=True, text=True)
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert len(reports) > 3 and set(ignored.stdout.split()) == reports


def test_a_commit_has_as_few_digits_as_git_gives_it():
    assert fingerprint.abbreviated("7efb7d4" + 33 * "0", 7) == "7efb7d4"
    assert fingerprint.abbreviated("", 0) == ""


def test_what_is_known_of_plug_ins_is_for_all_to_read_and_made_again_where_nobody_can(tmp_path, monkeypatch):
    known = plugins.describe("methods", "topk")
    monkeypatch.setattr(plugins, "CACHE", tmp_path)
    monkeypatch.setattr(plugins, "_descriptions", {})
    described = SimpleNamespace(returncode=0, stdout=json.dumps({"methods": {"topk": known}}))  # torch takes seconds
    monkeypatch.setattr(plugins.subprocess, "run", lambda *_, **__: described)
    assert plugins.describe("methods", "topk") == known
    (kept,) = tmp_path.rglob("*.json")
    whole = kept.read_text(encoding="utf-8")
    assert kept.stat().st_mode & 0o777 == 0o644 and json.loads(whole) == known
    for half in ("", whole[:100]):
        kept.write_text(half, encoding="utf-8")
        plugins._descriptions.clear()
        assert plugins.describe("methods", "topk") == known and kept.read_text(encoding="utf-8") == whole


def described_again(edited: Path, monkeypatch) -> set[str]:
    """The plug-ins whose descriptions are not used any more after an edit of a file."""
    every = [(kind, name) for kind in plugins.FOLDERS for name in plugins.names(kind)]
    before, digest = {one: plugins._sources(*one) for one in every}, plugins._digest
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "_digest", lambda path: "" if path == edited else digest(path))
        return {"/".join(one) for one in every if plugins._sources.__wrapped__(*one) != before[one]}


def every(*kinds: str) -> set[str]:
    return {f"{kind}/{name}" for kind in kinds for name in plugins.names(kind)}


@pytest.mark.parametrize(
    "file, expected",
    [
        ("methods/topk.py", {"methods/topk"}),
        ("methods/lags.py", {"methods/lags", "methods/lags_adaptive"}),
        ("models/resnet20.py", {"models/resnet20", "models/resnet20_100", "models/resnet8"}),
        ("dlgs_bench/data/text.py", every("models")),
        ("dlgs_bench/training/build.py", every("models")),
        ("dlgs_bench/comm/collectives/__init__.py", every("collectives")),
        ("dlgs_bench/describe.py", every("methods", "models", "collectives")),
        ("dlgs_bench/stats.py", set()),
    ],
)
def test_an_edit_describes_the_plug_ins_again_that_depend_on_the_file(file, expected, monkeypatch):
    assert described_again(fingerprint.ROOT / file, monkeypatch) == expected


def test_an_edit_of_any_file_of_the_exchange_package_describes_methods_again(monkeypatch):
    files = sorted((plugins.PACKAGE / "exchange").rglob("*.py"))
    assert plugins.PACKAGE / "exchange" / "selection" / "__init__.py" in files
    for edited in files:
        assert described_again(edited, monkeypatch) >= every("methods"), edited


def test_a_file_that_is_not_python_has_a_description_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setitem(plugins.FOLDERS, "models", tmp_path)
    monkeypatch.setattr(plugins, "ROOT", Path("/"))
    digests = set()
    for source in ("def f(:\n", "\0", "def g(:\n"):
        (tmp_path / "broken.py").write_text(source)
        plugins._digest.cache_clear()
        digests.add(plugins._sources.__wrapped__("models", "broken"))
    assert len(digests) == 3


def test_an_error_of_a_plug_in_is_forgotten_when_somebody_starts_again(tmp_path, monkeypatch):
    """The missing library, file of weights or network may be there in the next run."""
    monkeypatch.setattr(plugins, "CACHE", tmp_path)
    known = {("methods", "topk"): {"error": "no weights"}, ("methods", "none"): {"title": "Uncompressed"}}
    monkeypatch.setattr(plugins, "_descriptions", known)
    plugins._write("methods", "topk")
    plugins._write("methods", "none")
    with pytest.raises(ValueError, match=r"^methods/topk\.py cannot be used: no weights$"):
        plugins.describe("methods", "topk")
    plugins.forget_errors()
    (kept,) = tmp_path.rglob("*.json")
    assert kept.name.startswith("methods-none-")


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfx = 1\n", b"# -*- coding: latin-1 -*-\n# caf\xe9\nx = 1\n"])
def test_a_file_has_a_digest_in_every_encoding_that_python_reads(content, tmp_path):
    for name, text in (("plain.py", b"x = 1\n"), ("other.py", content)):
        (tmp_path / name).write_bytes(text)
    assert fingerprint.digest(tmp_path / "other.py") == fingerprint.digest(tmp_path / "plain.py")
