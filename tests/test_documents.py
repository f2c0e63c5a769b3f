"""The code blocks of the documents run, and the files and tests that documents name exist.

The methods of docs/tutorial.md and docs/add-a-method.md run in test_newcomer.py, the data set of docs/add-a-data-set.md
in test_add_data.py, the scripts of docs/hooks.md in the tests of hooks, the profile of docs/own-network.md in
test_job_advice.py.
"""

import re
import subprocess
import sys
import textwrap
from types import ModuleType

import lockstep
import pytest
import torch
import yaml
from support import ROOT, read

from dlgs_bench import describe, plugins
from dlgs_bench.config import load as config
from dlgs_bench.config import studies
from dlgs_bench.exchange.selection import Threshold
from dlgs_bench.exchange.selection import implementation as selector

pytestmark = pytest.mark.unit

PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "HARDWARE.md", "config/README.md", "config/faults.md")
]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "README.md"]
FOLDERS = "bench|comm|config|dlgs_bench|docs|examples|methods|models|profiles|setup|tests|training|workflow"
SAVE_AS = re.compile(r"(?:[Ss]ave (?:this|it|this file) as|[Cc]opy `[^`]+` to)\s+`([^`]+)`")
WRITTEN_BY_THE_READER = {name for page in PAGES for name in SAVE_AS.findall(page.read_text(encoding="utf-8"))}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)


def module_of(code: str, name: str, monkeypatch) -> ModuleType:
    """A module with this code, which an import of ``name`` finds."""
    module = ModuleType(name)
    exec(compile(code, name, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.mark.parametrize(
    ("page", "number"), [pytest.param("docs/add-a-model.md", 0, marks=pytest.mark.slow), ("docs/own-network.md", 1)]
)
def test_the_model_of_a_page_can_be_built_and_trained(page, number, monkeypatch):
    module_of(blocks(page, "python")[number], "models.documented", monkeypatch)
    described = describe.model("documented")
    assert (described["title"], described["data"]) == ("MobileNetV2", "cifar10")
    assert "cifar10" in described["takes"] and described["parameters"] > 2_000_000


SAVED = re.compile(SAVE_AS.pattern + r".*?^```python\n(.*?)^```", re.S | re.M)
FILES = {path: code for page in PAGES for path, code in SAVED.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith(".py")])
def test_a_file_in_the_style_of_a_page_passes_the_linter(path):
    for command in ("check", "format --check"):
        called = [sys.executable, "-m", "ruff", *command.split(), "--stdin-filename", path, "-"]
        done = subprocess.run(called, input=FILES[path], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
YAML = [(name, block) for name in NAMES for block in blocks(name, "yaml")]


@pytest.mark.parametrize(("page", "block"), YAML)
def test_the_configuration_of_a_page_is_valid(page, block):
    """A partial block completes the smoke configuration. ResNet-20 stands for a model that a reader adds."""
    values = yaml.safe_load(block)
    if "models" in values:
        values["models"] = {"resnet20": [*values["models"].values()][-1]}
    whole = values if "name" in values else read("smoke") | values
    assert config.load(whole, page).runs


def test_pages_have_configurations():
    assert {page for page, _ in YAML} >= {"config/README.md", "docs/add-a-model.md", "docs/run-on-a-cluster.md"}


@pytest.mark.parametrize("world", [1, 2, 5])
def test_the_documented_collective_sums_and_costs_what_it_says(world, monkeypatch):
    (code,) = blocks("docs/add-a-collective.md", "python")
    direct = module_of(code, "documented_collective", monkeypatch)
    for entries in (0, 7):
        tensors = [torch.arange(entries) * float(rank + 1) for rank in range(world)]
        total = torch.stack(tensors).sum(0)
        outcome = lockstep.run([direct.all_reduce(rank, world, tensor) for rank, tensor in enumerate(tensors)])
        assert direct.refuses(world) is None and outcome.rounds == direct.rounds(world)
        assert all(torch.equal(result, total) for result in outcome.results)
        costs = [direct.cost(rank, world, entries) for rank in range(world)]
        assert list(zip(outcome.messages, outcome.bytes, strict=True)) == costs


FIXED_POINT = "tests/newcomer/fixedpoint.py"
QUOTED = ["methods/none.py", FIXED_POINT, "methods/randomk.py", FIXED_POINT]  # by the code blocks of the page


@pytest.mark.parametrize(("number", "file"), enumerate(QUOTED))
def test_the_method_contract_quotes_its_examples(number, file):
    quoted = blocks("docs/method-contract.md", "python")[number]
    assert textwrap.indent(quoted.strip(), "    ") in (ROOT / file).read_text(encoding="utf-8")


def test_the_life_of_a_gradient_in_numbers():
    """The code that the page describes computes the rows of its table."""
    text = (ROOT / "docs" / "life-of-a-gradient.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    table = {row[0]: [list(map(int, cell.split(", "))) for cell in row[1:]] for row in cells if "," in row[-1]}
    aggregate = torch.zeros(6)
    for worker in range(2):
        gradient, residual = (torch.tensor(table[key][worker]).float() for key in ("gradient / 2", "old residual"))
        corrected = gradient + residual
        assert corrected.tolist() == table["corrected = gradient + residual"][worker]
        values, indices = selector("torch").take(corrected, Threshold(3.0))
        assert (values.tolist(), indices.tolist()) == (table["sent: values"][worker], table["sent: indices"][worker])
        assert corrected.tolist() == table["new residual"][worker]
        aggregate[indices] += values
    assert [aggregate.tolist()] * 2 == table["aggregate, on both workers"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w/-]+\.(?:py|smk|yaml|json|md)\b", text))
    roots = (ROOT, ROOT / "dlgs_bench", page.parent)
    assert not [name for name in named - WRITTEN_BY_THE_READER if not any((root / name).exists() for root in roots)]


# Other files that tell commands: configurations and rules in comments, and the pages of results.
COMMENTED = [path for glob in ("config/*.yaml", "profiles/*/*.yaml", "workflow/**/*.smk") for path in ROOT.glob(glob)]
COMMENTED += [*ROOT.glob("results/**/README.md"), ROOT / "Snakefile", ROOT / "Makefile"]
RULE = re.compile(r"^\s*(?:rule (\w+):|use rule \w+ as (\w+) with:)", re.M)
COMMAND = re.compile(r"(?<!from )\bsnakemake((?: [a-z]\w*)+)(?=[`.:]| -|$)", re.M)


def test_commands_name_targets_and_configurations_that_exist():
    rules = [path.read_text(encoding="utf-8") for path in [*ROOT.glob("workflow/**/*.smk"), ROOT / "Snakefile"]]
    known = {name for text in rules for names in RULE.findall(text) for name in names} | {*studies.names()}
    named = {}
    for page in [*PAGES, *COMMENTED]:
        text = page.read_text(encoding="utf-8")
        files = re.findall(r"(?<![\w/.-])config/\w+\.yaml\b", text)
        assert not [name for name in {*files} - WRITTEN_BY_THE_READER if not (ROOT / name).exists()], page
        named |= {target: page for words in COMMAND.findall(text) for target in words.split()}
    assert {"studies", "servers", "accuracy_time", "so_far"} <= named.keys()
    assert not {target: page for target, page in named.items() if target not in known}


@pytest.mark.parametrize("page", ["config/faults.md", "HARDWARE.md"])
def test_tests_that_a_page_names_exist(page):
    named = set(re.findall(r"`(test_\w+?)(?:\.py)?`", (ROOT / page).read_text(encoding="utf-8")))
    files = list((ROOT / "tests").glob("test_*.py"))
    defined = {path.stem for path in files}
    for path in files:
        defined |= set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M))
    assert named and not named - defined


def test_files_that_a_reader_writes_are_no_files_of_the_project():
    expected = {"methods/roundrobin.py", "methods/strided.py", "models/mobilenet.py", "config/mine.yaml"}
    assert expected <= WRITTEN_BY_THE_READER
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not WRITTEN_BY_THE_READER & {*listed.split()}


def test_the_readme_counts_the_methods():
    """The paper has four of them."""
    text, others = (ROOT / "README.md").read_text(), len(plugins.names("methods")) - 4
    counts = list(map(int, re.findall(r"more than (\d+) other", text)))
    assert len(counts) == 2 and max(counts) < others


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_table_of_a_page_has_a_head(page):
    """A blank line within a table would leave the rows after it without a head."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    tables = re.findall(r"(?:^ *\|.*\|$\n?)+", text, re.M)
    assert all(re.match(r"[^\n]*\n *\|[-:| ]+\|", table) for table in tables)
