"""The page of all kept results: it is the generated one, it needs no other file than those it links, and it works."""

import json
import re
import sys
from functools import cache
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from support import ROOT
from test_page import browse, browser

sys.path.insert(0, str(ROOT / "setup"))
import results_page
import trained

pytestmark = pytest.mark.unit

FOLDER = ROOT / "results"
INDEX = (FOLDER / "README.md").read_text() if FOLDER.exists() else ""  # a copy of the project has no results


@pytest.fixture(scope="module")
def text() -> str:
    return (FOLDER / "index.html").read_text()


@pytest.fixture(scope="module")
def page(text, tmp_path_factory) -> Path:
    """The page next to the sets, where frames may be written."""
    folder = tmp_path_factory.mktemp("results")
    for one in FOLDER.glob("reference*"):
        (folder / one.name).symlink_to(one)
    (folder / "index.html").write_text(text)
    return folder / "index.html"


def test_the_kept_page_is_the_generated_one(text):
    assert text == results_page.page(), "run: make results-page"


def test_the_accuracies_that_advise_shows_are_those_of_the_kept_sets():
    assert trained.TABLE.read_text() == trained.text(), "run: make results-page"


def test_every_set_is_there_with_what_the_index_says(text):
    folders = {path.parent.name for path in FOLDER.glob("reference*/README.md")}
    assert set(re.findall(r'<h2 id="(reference[^"]*)">', text)) == folders
    sections = {part.split('"')[0]: unescape(part) for part in text.split('<h2 id="')[1:]}
    for row in results_page.SET.finditer((FOLDER / "README.md").read_text()):
        assert all(row[key] in sections[row["folder"]] for key in ("date", "machine", "commits"))
        assert row["headline"][1:] in sections[row["folder"]]


@pytest.mark.parametrize("row", list(results_page.SET.finditer(INDEX)), ids=lambda row: row[1])
def test_a_row_has_the_dates_the_machine_and_the_commits_of_its_set(row):
    """A row ends its dates with the day alone, such as "2026-11-22 to 28"."""
    facts = json.loads((FOLDER / row["folder"] / "set.json").read_text())
    first, _, last = row["date"].partition(" to ")
    dates = {first, f"{first[: -len(last)]}{last}"} if last else {first}
    assert dates == set(facts["date"].split(" to "))
    commits = re.compile(r"\b[0-9a-f]{7,8}\b(?:\+changes)?")
    assert row["machine"] == facts["machine"]
    assert row["commits"] == "see the page" or set(commits.findall(row["commits"])) == set(facts["commit"].split(", "))


def test_whatever_the_page_links_is_in_the_repository(text):
    links = re.findall(r'(?:src|href)="([^"#]+)"', text)
    files = [link.partition("#")[0] for link in links if not link.startswith(("data:", "https:", "http:"))]
    assert len(files) > 40 and not [link for link in files if not (FOLDER / link).exists()]
    places = set(re.findall(r'id="([^"]+)"', text))
    assert not [place for place in re.findall(r'href="#([^"]+)"', text) if place not in places]
    pictures = re.findall(r"<img [^>]*>", text)
    assert len(pictures) > 20 and all('loading="lazy"' in one and re.search('alt="[^"]{10}', one) for one in pictures)


def test_the_table_has_every_method_with_its_numbers(text):
    table = pd.read_csv(results_page.METHODS)
    columns, rows = results_page.methods(table)
    headings = [column.heading for column in columns]
    assert len(rows) == len(table) and all(len(row) == len(headings) for row in rows)
    assert [row[headings.index("VGG16: speed-up")].value for row in rows] == table["vgg16_speedup"].tolist()
    assert [row[headings.index("ResNet-20: score")].value for row in rows] == table["score"].tolist()
    # The target of the kept times is the middle of the two others that scores are given for.
    low, high = (int(column.removeprefix("score_at_")) for column in table if column.startswith("score_at_"))
    times = [row[headings.index(f"ResNet-20 to {(low + high) / 2:g} % at 30 Mb/s (s)")] for row in rows]
    names = [row[headings.index("Method")].text for row in rows]
    assert "Distributed Lion" in names and "majority-lion" not in names
    assert [cell.value or float("inf") for cell in times] == table["to_target_s_30"].tolist()
    assert {cell.text for cell in times if not cell.value} == {"never"}
    inside = text[text.index('<table id="methods">') :]
    assert "<th scope" in inside and inside.count("<tr>") == len(table) + 1


def test_every_statement_has_its_verdict(text):
    claims = pd.read_csv(FOLDER / "reference" / "claims.csv")
    inside = unescape(text[text.index('id="statements"') : text.index('id="every-method"')])
    assert inside.count("<tr>") == claims["statement"].nunique() + 1
    for statement, rows in claims.groupby("statement"):
        [cell] = re.findall(rf"<td>{re.escape(statement)}[^<]*</td><td>([^<]+)</td>", inside)
        assert all(verdict in cell for verdict in rows["verdict"])


# All that a browser is asked, in this order: a page is loaded once at each width.
SCRIPT = """({
    sorted: (() => {
        const table = inside.getElementById('methods'), buttons = [...table.querySelectorAll('button')];
        const column = i => [...table.tBodies[0].rows].map(row => row.cells[i].textContent);
        const ratio = buttons.findIndex(b => b.textContent === 'Ratio');
        const found = [0, ratio, ratio].map(i => { buttons[i].click(); return column(i); });
        return [...found, [...table.querySelectorAll('th')].map(th => th.ariaSort).filter(Boolean)]; })(),
    filtered: (() => {
        const field = inside.querySelector('input'), rows = [...inside.querySelector('#methods tbody').rows];
        const look = words => { field.value = words; field.dispatchEvent(new Event('input'));
            return rows.filter(row => !row.hidden).map(row => row.cells[0].textContent); };
        return [look('dlgs'), look('')]; })(),
    opened: (() => {
        inside.querySelectorAll('details').forEach(one => { one.open = true; });
        const protocols = new Set([...inside.images].map(i => new URL(i.src).protocol));
        return [inside.documentElement.scrollWidth, [...protocols]]; })(),
})"""


@pytest.fixture(scope="module")
def seen(page):
    """Width of the screen -> what a browser answers to ``SCRIPT``."""
    return cache(lambda width: browse(page, SCRIPT, width))


@browser
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_screen(seen, width):
    wide, protocols = seen(width)["opened"]
    assert wide <= width and protocols == ["file:"]


@browser
def test_a_click_sorts_by_numbers_with_empty_cells_last_and_a_second_click_reverses(seen):
    names, numbers, falling, marks = seen(1400)["sorted"]
    assert names[0] != names[-1] and names == sorted(names, key=str.casefold)
    for column in (numbers, falling):
        assert column == [one for one in column if one] + [""] * column.count("") and "" in column
    assert marks == ["descending"]


@browser
def test_the_filter_shows_the_rows_that_contain_its_words(seen):
    shown, all_of_them = seen(1400)["filtered"]
    assert shown == ["DLGS", "DLGS, one threshold"] and len(all_of_them) > 20
