"""The report, one page: what is in it, and how it does in a real browser."""

import json
import re
import shutil
import subprocess
from functools import cache
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from support import PATIENCE_S
from test_claims import accuracy_runs
from test_findings import NAMES, cell

from dlgs_bench import fingerprint
from dlgs_bench.paper import findings
from dlgs_bench.report import page, style, tables

pytestmark = pytest.mark.unit

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A page of three tables (numbers, many columns, text) and two figures, one as SVG and one as PNG."""
    folder = tmp_path_factory.mktemp("page")
    cell().to_csv(folder / "timing.csv", index=False)
    accuracy_runs().to_csv(folder / "accuracy.csv", index=False)
    provenance = {"machine": ["a machine <of> 2 cores"], "versions": [{"torch": "2"}], "runs": 3}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    shown = {
        "table1": pd.DataFrame({"Name": ["b", "a", "c"], "Value": ["10.0", "9.5 [9.0, 10.0]", ""]}),
        "table2": pd.DataFrame({f"Column {i}": ["some words"] * 3 for i in range(20)}),
        "claims": pd.DataFrame({"Statement": ["words & signs"], "Measured": ["a long line " * 20]}),
    }
    for name, table in shown.items():
        paths = SimpleNamespace(**{ext: folder / f"{name}.{ext}" for ext in ("csv", "md", "tex", "html")})
        tables.save_table(table, table, f"{name.capitalize()}: a caption with n = 6.", paths)
    captions = {"figure05": "figure05. Drawn.", "figure11": "Figure 11: parts of an iteration. Drawn."}
    for name, points in (("figure05", 3), ("figure11", 30_000)):
        figure, axes = plt.subplots()
        axes.plot(range(points), [i * 7919 % 1000 for i in range(points)], ".")
        paths = SimpleNamespace(svg=folder / f"{name}.svg", png=folder / f"{name}.png")
        style.save(
            figure, "a note, n = 6", SimpleNamespace(output=paths, params=SimpleNamespace(caption=captions[name]))
        )
        plt.close(figure)
    files = [folder / f"{name}.{kind}" for name in shown for kind in ("csv", "md", "tex")] + [
        folder / "figure05.svg",
        folder / "figure11.svg",
    ]
    bare = (folder / "figure05.svg").read_text().replace("dc:description", "dc:other")
    (folder / "older.svg").write_text(bare)
    shutil.copy(folder / "figure05.png", folder / "older.png")
    files.append(folder / "older.svg")
    found = findings.write(folder, NAMES, [], ["accuracy", "timing"])
    page.write(
        folder / "report.html", folder, [*map(str, files), "not-there.svg"], found, findings.TERMS, findings.ABOUT
    )
    return folder / "report.html"


def test_the_folder_of_the_page_is_made(report, tmp_path):
    page.write(tmp_path / "not" / "there" / "report.html", report.parent, [], [], "")
    assert (tmp_path / "not" / "there" / "report.html").exists()


def test_the_page_opens_on_the_findings_and_needs_nothing_else(report):
    text = report.read_text()
    ids = re.findall(r'<h2 id="(.*?)">', text)
    assert ids == ["findings", "table1", "table2", "claims", "figure05", "figure11", "older", "provenance"]
    assert set(re.findall(r'href="#(.*?)"', text)) == set(ids)
    assert not re.search(r'(src|href)="(?!data:|#)', text) and "http" not in re.sub(r'base64,[^"]*', "", text)
    assert "data:image/svg+xml" in text and "data:image/png" in text  # the smaller of both
    assert "a machine &lt;of&gt; 2 cores" in text and "torch 2" in text and "n\u00a0=\u00a06" in text
    found = (report.parent / "findings.md").read_text()
    assert found.startswith("- ") and all(line.startswith("- ") for line in found.splitlines())


def test_the_page_stands_alone_and_its_headings_have_words(report):
    text = report.read_text()
    assert text.index("Uncompressed: every entry") < text.index('<h2 id="findings">') and "DLGS, the paper" in text
    assert '<h2 id="figure11"><a href="#figure11">Figure 11: parts of an iteration</a></h2>' in text
    assert text.count('scope="col"') == text.count("<th ") and "<th>" not in text
    assert len(re.findall(r"<caption>.+?</caption>", text)) == text.count("<table") == 3
    assert text.count('tabindex="0" role="region" aria-label=') == 3
    assert 'alt="Figure 11: parts of an iteration: Drawn."' in text


def test_the_alternative_text_says_what_a_figure_shows():
    caption = "Figure 12: one iteration of VGG16. Stacked bars of the parts in ms, per variant. Dotted: uncompressed."
    said = "Figure 12: one iteration of VGG16: Stacked bars of the parts in ms, per variant."
    assert page.alternative(caption) == said
    assert page.alternative("Link rates: the time of one iteration. Points: runs.") == (
        "Link rates: the time of one iteration."
    )


def test_captions_of_studies_open_on_names_of_their_own():
    studies = Path(__file__).resolve().parent.parent / "workflow" / "studies"
    drawn = [path for path in studies.glob("*/*.py") if "style.save(" in path.read_text()]
    names = {path: page.heading(fingerprint.docstring(str(path))) for path in drawn if path.parent.name != "fits"}
    assert len(names) > 10 and len(set(names.values())) == len(names)


def browse(report: Path, script: str, width: int):
    """The value of a JavaScript expression once the page has loaded in a frame so wide; fails on a message on the
    console."""
    frame = report.with_name(f"frame{width}.html")
    frame.write_text(
        f'<title></title><iframe src="{report.name}" width="{width}" height="900" style="border: 0"></iframe>'
        "<script>addEventListener('load', () => {"
        "const page = document.querySelector('iframe').contentWindow, {document: inside} = page;"
        f"document.title = JSON.stringify({script}) }})</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync", "--no-first-run", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={report.parent / 'profile'}", "--enable-logging=stderr", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.S).group(1)))


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")


def browser(test):
    """Mark a test that starts a browser, which takes seconds."""
    return pytest.mark.slow(needs_chromium(test))


# All that a browser is asked, in this order: the page is loaded once at each width.
SCRIPT = """({
    pictures: [[...inside.images].map(i => [i.complete, i.naturalWidth, i.width]),
        inside.documentElement.scrollWidth, page.innerWidth],
    pinned: (() => {
        const region = inside.querySelectorAll('.pinned')[1]; region.scrollLeft = 500;
        const edge = one => one.getBoundingClientRect().left;
        const left = cell => Math.round(edge(cell) - edge(region));
        const cells = [...region.querySelector('tbody tr').cells];
        return [cells.slice(0, 3).map(left), cells[0].offsetWidth, region.scrollLeft]; })(),
    sorted: (() => {
        const table = inside.querySelector('table'), [one, two] = table.querySelectorAll('button');
        const cells = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
        const found = [one, one, two].map(b => { b.click(); return cells(); });
        return [...found, [...table.querySelectorAll('th')].map(th => th.ariaSort)]; })(),
})"""


@pytest.fixture(scope="module")
def seen(report):
    """Width of the screen -> what a browser answers to ``SCRIPT``."""
    return cache(lambda width: browse(report, SCRIPT, width))


@browser
def test_the_columns_that_name_a_row_stay_while_a_table_is_moved(seen):
    (first, second, third), width, moved = seen(400)["pinned"]
    assert moved > 300 and first == 0 and abs(second - width) <= 1 and third < 0


@browser
@pytest.mark.parametrize("width", [400, 1400])
def test_every_picture_loads_and_nothing_is_wider_than_the_screen(seen, width):
    pictures, wide, inner = seen(width)["pictures"]
    assert len(pictures) == 3 and inner == width
    # On a phone a figure moves within its frame, since its labels could not be read at the width of the screen.
    least, most = (600, 800) if width == 400 else (100, width)
    assert all(complete and natural > 100 and least < shown <= most for complete, natural, shown in pictures)
    assert wide <= width
    assert len({shown for *_, shown in pictures}) == 1  # whether SVG or PNG


@browser
def test_a_click_on_a_heading_sorts_and_a_second_turns_round(seen):
    names, again, numbers, marks = seen(1400)["sorted"]
    assert (names, again) == (["a", "b", "c"], ["c", "b", "a"])
    assert numbers == ["c", "a", "b"] and marks == [None, "ascending"]  # empty first, then 9.5 before 10


@browser
def test_a_message_on_the_console_would_be_seen(report):
    broken = report.with_name("broken.html")
    broken.write_text(report.read_text().replace('"use strict";', '"use strict"; missing();'))
    with pytest.raises(AssertionError, match="missing is not defined"):
        browse(broken, "1", 1400)
