"""What users' machines and command lines do to the workflow: it runs, or says in one line what is wrong."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ENVIRONMENT, ROOT, clone

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

TINY = ["-n", "--quiet", "progress", "--configfile", "config/tiny.yaml"]
HOMELESS = {key: value for key, value in ENVIRONMENT.items() if key != "XDG_CACHE_HOME"} | {"HOME": "/proc/nobody"}


def said(folder, *arguments, environment=ENVIRONMENT) -> tuple[int, str]:
    """The status of a workflow and its output, without the name of its profile."""
    command = ["snakemake", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    lines = (done.stdout + done.stderr).splitlines()
    return done.returncode, "\n".join(line for line in lines if line and not line.startswith("Using workflow specific"))


def output(**places) -> str:
    given = {"results": "results/tiny", "figures": "figures/tiny", "report": "results/tiny/report.html"} | places
    return "output={" + ", ".join(f"{key}: {place}" for key, place in given.items()) + "}"


REFUSED = {
    "a target after --configfile": (
        ["--configfile", "config/tiny.yaml", "methods"],
        "error: methods: cannot be read: Is a directory; give the target before --configfile",
    ),
    "a target that is no file": (
        ["--configfile", "config/tiny.yaml", "studies"],
        "error: studies: the file does not exist; give the target before --configfile",
    ),
    "a study without runs": (
        ["rates", *TINY],
        "error: config/tiny.yaml: rates: the configuration has no runs for this study; see config/README.md",
    ),
    "advice without timing runs": (
        ["advise", *TINY, "--config", "timing={ratios: []}"],
        ": advise: the configuration has no",
    ),
    "a misspelt target": (
        ["stduies", *TINY],
        "error: stduies: not a target (did you mean 'studies'?); snakemake --list",
    ),
    "no key=value": ([*TINY, "--config", "workers"], "error: --config workers: is not key=value"),
    "a table as report": (
        [*TINY, "--config", output(report="results/tiny/table1.html")],
        "output.report: results/tiny/table1.html is written by table1; give another file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_in_the_command_line_is_one_line(case, tiny_source):
    arguments, expected = REFUSED[case]
    status, text = said(tiny_source, "--nolock", *arguments)
    assert status and expected in text and len(text.splitlines()) == 1


def test_mistakes_are_one_line_from_another_folder_too(tiny_source, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [1\nb: 2", encoding="utf-8")
    for file, expected in {"none.yaml": "the file does not exist", "bad.yaml": "line 2: expected ',' or ']'"}.items():
        status, text = said(tmp_path, "-s", str(tiny_source / "Snakefile"), "-n", "--configfile", file)
        assert status and text.startswith(f"error: {file}") and expected in text and len(text.splitlines()) == 1


def test_a_home_that_nobody_can_write_into_is_no_obstacle(tiny_project):
    status, text = said(tiny_project, *TINY, environment=HOMELESS)
    assert not status, text
    assert (tiny_project / ".cache" / "snakemake").is_dir()


def test_without_conda_the_active_environment_is_used(tiny_project):
    status, text = said(tiny_project, *TINY, "--software-deployment-method", "conda")
    assert not status, text
    assert "conda is not installed; the active environment is used" in text


def test_a_project_in_a_folder_with_braces_is_refused_in_one_line(tiny_source, tmp_path):
    project = clone(tiny_source, tmp_path / "a{b}")
    status, text = said(project, *TINY)
    assert status and text == f"error: {project}: the path has braces; move the project to a folder without braces"


BINARY = ("rb", "wb", "ab", "r+b", "w+b", "rb+", "wb+", "xb")
OTHERS = ("tarfile.open", "Image.open", "os.open")  # of no text
LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
READ_ALL = """
import locale
assert locale.getpreferredencoding(False).lower() != "utf-8"
from dlgs_bench import fingerprint, plugins
from dlgs_bench.config import files, load
assert not [wrong for path in fingerprint.ROOT.glob("config/*.yaml") if (wrong := files.problem(path))]
load.full_schema()
for path in [*fingerprint.PACKAGE.rglob("*.py"), *fingerprint.ROOT.glob("workflow/**/*.py")]:
    fingerprint.digest(path)
"""


def test_a_locale_that_is_not_utf_8_reads_the_same_files(tiny_project):
    """One file has a docstring with characters outside ASCII."""
    (tiny_project / "dlgs_bench" / "report" / "other.py").write_text('"""\u4e2d\u6587"""\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL],
        cwd=tiny_project,
        env=os.environ | LOCALE,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-2000:]


def unencoded(path: Path) -> list[str]:
    """The calls in a file that read or write text in the locale's encoding."""
    found = []
    for call in (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        mode = next((a.value for a in call.args if isinstance(a, ast.Constant) and a.value in BINARY), "")
        text = name.endswith((".read_text", ".write_text", ".open")) or name == "open"
        if text and not mode and name not in OTHERS and not any(word.arg == "encoding" for word in call.keywords):
            found.append(f"{path}:{call.lineno}: {name}")
    return found


def test_every_text_file_is_opened_as_utf_8():
    """Python uses the locale's encoding otherwise."""
    folders = ("dlgs_bench", "methods", "models", "workflow")
    assert not [line for folder in folders for path in (ROOT / folder).rglob("*.py") for line in unencoded(path)]


def test_the_check_of_encodings_finds_what_lacks_one(tmp_path):
    (tmp_path / "a.py").write_text("p.read_text()\nopen(p, 'rb')\nopen(p, encoding='utf-8')\np.open('w')\n")
    assert [line.rpartition(": ")[2] for line in unencoded(tmp_path / "a.py")] == ["p.read_text", "p.open"]
