"""Generated documents say what the code says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from support import METHODS, ROOT, read

from dlgs_bench import exchange, plugins

sys.path.insert(0, str(ROOT / "setup"))
import reference_pages

pytestmark = pytest.mark.unit

MODELINE = "# yaml-language-server: $schema=schema.json\n"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference_pages.pages()


def keys_of(values: dict, prefix: str = "") -> set[str]:
    """The dotted keys of a configuration, without the names that its author chose."""
    found = set()
    for name, value in values.items():
        chosen = prefix in ("models.", "variants.", "testbed.nodes.computation_ms.")
        key = f"{prefix}{'<name>' if chosen else name}"
        found.add(key)
        if isinstance(value, dict) and not key.startswith(("variants.<name>", "studies.")):
            found |= keys_of(value, f"{key}.")
    return found


def test_the_written_schema_is_the_composed_one():
    assert reference_pages.SCHEMA.read_text() == reference_pages.schema_text(), "run: make schema"


def test_editors_find_the_schema_and_it_takes_the_configurations():
    schema = json.loads(reference_pages.SCHEMA.read_text())
    whole = [path for path in (ROOT / "config").glob("*.yaml") if path.read_text().startswith(MODELINE)]
    assert {path.stem for path in whole} >= {"quick", "paper", "smoke", "advise"}
    for path in whole:
        jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(read("quick") | {"engine": "mpi"})


@pytest.mark.parametrize("name", ["quick", "paper", "advise"])
def test_the_reference_has_every_key_that_a_configuration_uses(pages, name):
    page = pages["docs/reference/configuration.md"]
    assert not {key for key in keys_of(read(name)) if f"| `{key}` |" not in page}


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_has_every_parameter_of_every_method(pages, name):
    sections = pages["docs/reference/methods.md"].split("\n## ")
    (section,) = [text for text in sections if f"(../../methods/{name}.py)" in text]
    assert all(f"| `{field}` |" in section for field in plugins.fields(name))


def test_the_reference_has_every_name_that_a_method_imports(pages):
    page = pages["docs/reference/exchange.md"]
    assert [name for name in exchange.__all__ if f"\n## {name}\n" not in page] == []
    assert exchange.Gather.__doc__.split("\n")[0] in page.replace("`", "``")


# The hook of the site, for a project that has no code: the pages that are generated from code are left out.
HOOK = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "setup")!r})
import reference_pages
reference_pages.ROOT, reference_pages.pages = Path(__file__).resolve().parent.parent, dict
on_files = reference_pages.on_files
"""


@pytest.mark.slow
def test_make_lint_stops_at_broken_links(tmp_path):
    """The command is the Makefile's own, and so are the settings and the hook, for a site of two pages.

    `make lint` itself shows that the documents have no broken link.
    """
    links = ("nowhere.md", "other.md#nowhere", "nowhere.svg")
    good = "[a page](other.md#a-title) [a file](../setup/reference_pages.py)"
    settings = re.sub(r"^nav:\n( .*\n)*", "", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    files = {
        "mkdocs.yml": settings,
        "setup/reference_pages.py": HOOK,
        "docs/one.md": "[gone]({}) [gone]({}) ![gone]({})".format(*links) + f" {good}\n",
        "docs/other.md": "# A title\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^SITE := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode and all(f"link '{link}'" in done.stderr for link in links), done.stderr
    assert "Aborted with 3 warnings" in done.stdout, done.stderr  # the good links are found


def test_every_kept_set_of_results_is_in_the_index():
    index = (ROOT / "results" / "README.md").read_text()
    sets = [path.parent.name for path in (ROOT / "results").glob("reference*/README.md")]
    assert sets and not [name for name in sets if f"({name}/README.md)" not in index]
