"""Result sets with checksums: every fault is one line, and so is the report of a set without faults."""

import gzip
import json
import re

import pytest

from dlgs_bench import cli, result_set
from dlgs_bench.fingerprint import ROOT

pytestmark = pytest.mark.unit

FACTS = {"machine": "a machine, 2 cores", "date": "2026-11-25", "commit": "8bfe735"}
ROW = dict.fromkeys(result_set.COLUMNS["timing"], "1")


@pytest.fixture
def kept(tmp_path):
    """A set of a page, a tidy table, and a figure in a folder below."""
    folder = tmp_path / "mine"
    (folder / "figures").mkdir(parents=True)
    (folder / "README.md").write_text("# How to repeat it\n")
    (folder / "timing.csv").write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n")
    (folder / "figures" / "one.svg").write_text("<svg/>")
    (folder / ".timing.csv.crc32").write_text("1\n")
    assert check(folder, "--write", *(part for key, value in FACTS.items() for part in (f"--{key}", value))) == 0
    return folder


def check(folder, *options: str) -> int:
    return cli.main(["check-set", str(folder), *options])


def edit(folder, **changed) -> None:
    path = folder / "set.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_a_set_without_faults_is_one_line(kept, capsys):
    assert check(kept) == 0
    said = capsys.readouterr()
    assert said.out.endswith("mine: 2 files, schema 1; a machine, 2 cores; 2026-11-25; 8bfe735\n") and not said.err


FAULTS = {
    "set.json: missing; write it with": lambda folder: (folder / "set.json").unlink(),
    "set.json: Expecting": lambda folder: (folder / "set.json").write_text("{"),
    "set.json: maximum recursion depth": lambda folder: (folder / "set.json").write_text("[" * 10**5),
    "set.json: schema: 2 is not 1; write it again with --write": lambda folder: edit(folder, schema=2),
    "set.json: schema: None is not": lambda folder: (folder / "set.json").write_text("[]"),
    "set.json: machine: '' is not the processor": lambda folder: edit(folder, machine=""),
    "set.json: date: 'November' is not a day as": lambda folder: edit(folder, date="November"),
    "set.json: commit: 'unknown' is not one or more commits": lambda folder: edit(folder, commit="unknown"),
    "set.json: files: None is not a table of checksums": lambda folder: edit(folder, files=None),
    "one.svg: missing, but in set.json": lambda folder: (folder / "figures" / "one.svg").unlink(),
    "one.svg: does not match its checksum": lambda folder: (folder / "figures" / "one.svg").write_text("<svg></svg>"),
    "new.csv: not in set.json": lambda folder: (folder / "new.csv").write_text("a\n"),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_one_line(kept, capsys, words):
    FAULTS[words](kept)
    capsys.readouterr()
    assert check(kept) == 1
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert words in line and "; " in line and str(kept) in line and not said.out


def test_the_words_of_the_page_may_change(kept):
    (kept / "README.md").write_text("# How to repeat it, in other words\n")
    assert check(kept) == 0
    record = json.loads((kept / "set.json").read_text())
    edit(kept, files=record["files"] | {"README.md": 1})  # written by an older version
    assert check(kept) == 0


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("reference*")), ids=lambda folder: folder.name)
def test_the_kept_sets_match_their_checksums(folder):
    assert result_set.faults(folder) == []


def test_a_set_needs_a_page(kept, capsys):
    (kept / "README.md").unlink()
    assert check(kept, "--write") == 1
    assert "README.md: missing; write how to repeat the results" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["timing.csv", "more_timing.csv.gz", "figures/day-1_accuracy.csv"])
def test_a_tidy_table_needs_the_columns_that_others_read(kept, capsys, name):
    text = "run,model\n1,2\n"
    (kept / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert check(kept, "--write") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{kept / name}: variant: the column is missing; add it, schema 1 requires it"


def test_writing_again_keeps_the_facts_and_takes_new_ones(kept):
    assert check(kept, "--write", "--date", "2026-11-25 to 2026-11-26") == 0
    record = json.loads((kept / "set.json").read_text())
    assert {key: record[key] for key in FACTS} == FACTS | {"date": "2026-11-25 to 2026-11-26"}


def test_the_old_name_of_the_option_works_with_a_warning(kept, capsys):
    assert check(kept, "--seal", "--date", "2026-11-26") == 0
    assert capsys.readouterr().err == "dlgs-bench check-set: --seal is now called --write; rename it\n"
    assert json.loads((kept / "set.json").read_text())["date"] == "2026-11-26"


@pytest.mark.parametrize("written", [False, True])
def test_the_facts_of_a_run_of_the_workflow_need_not_be_given(kept, written):
    """They also replace the facts of an earlier measurement."""
    if not written:
        (kept / "set.json").unlink()
    provenance = {"machine": ["m1", "m2"], "commit": ["8bfe735", "abcdef0+changes"]}
    provenance |= {"first_run": "2026-11-25T18:21:02+00:00", "last_run": "2026-11-25T19:19:47+00:00"}
    (kept / "provenance.json").write_text(json.dumps(provenance))
    assert check(kept, "--write") == 0
    record = json.loads((kept / "set.json").read_text())
    assert (record["machine"], record["date"], record["commit"]) == ("m1; m2", "2026-11-25", "8bfe735, abcdef0+changes")
    assert check(kept, "--write", "--machine", "m1 with AVX-512") == check(kept, "--write") == 0  # the same runs
    assert json.loads((kept / "set.json").read_text())["machine"] == "m1 with AVX-512"


def test_a_place_that_cannot_be_written_is_one_line_and_keeps_what_it_holds(kept, capsys):
    (kept / "set.json").unlink()
    (kept / "set.json").mkdir()
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        check(kept, "--write")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and f"--write: {kept}: Is a directory" in line


def test_a_wrong_call_is_refused(tmp_path, capsys):
    for options, words in (((), "is not a folder"), (("--date", "2026-11-25"), "give --write too")):
        with pytest.raises(SystemExit) as end:
            check(tmp_path / "nowhere" if not options else tmp_path, *options)
        assert end.value.code == 2 and re.search(words, capsys.readouterr().err)
