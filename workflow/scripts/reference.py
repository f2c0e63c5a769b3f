"""Keep the current results as the reference set, write its page, and update the table in the README."""

import gzip
import json
import re
import shutil
import sys
import textwrap
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dlgs_bench import result_set  # noqa: E402
from dlgs_bench.paper import claims, findings  # noqa: E402
from dlgs_bench.report import captions, style  # noqa: E402
from dlgs_bench.report.page import described  # noqa: E402
from dlgs_bench.report.summary import summarise  # noqa: E402
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR  # noqa: E402

KEPT = ROOT / "results" / "reference"
RUNS = ROOT / "results" / "runs" / "reference"
SHOWN = ("answer", "table1", "table2", "baselines", "claims")  # on the page, in this order
TABLES = {"accuracy", "timing", "findings", *SHOWN}
COMMAND = "snakemake --configfile config/quick.yaml config/reference.yaml"
MOST_BYTES = 2_000_000  # of a file in git; a larger table is compressed
PICTURE, PICTURED = "figure12", "vgg16"  # of the README
LEFT_OUT = {"Over sessions", "n"}  # columns that only the page of results shows
NOTES = (
    "Pays: an iteration is significantly faster with at least one of Top-K, LAGS and DLGS over all-gather. Accuracy "
    "does not count here; see the last column. Best method: the significantly faster method whose interval has the "
    "highest lower end. If no method is significantly faster, it is the method with the largest speed-up. Not "
    "significantly slower: other methods that are not significantly slower than the best, with their speed-ups "
    "divided by its speed-up. 16 bits is a baseline, so these two columns leave it out. Speed-ups are with 2 workers "
    "and plain torch selection, against the fastest uncompressed of the same run; the next column is against 16 bits,"
    " block by block. Brackets: the range that we expect for 95 % of repeats in the same session. Gains 10 % below: "
    "the time model predicts a speed-up of at least 1.1 if the links of the paper's nodes are slower than this rate. "
    f"This is the lower end of a range that allows for an error of the prediction by a factor of {SPEEDUP_FACTOR}, "
    "which was checked on CPUs. So it can be lower than the 50 Gb/s of the paper's links even if more than 10 % were "
    "measured there, as for ResNet-20. Training accuracy: the difference to uncompressed, from [long "
    "runs](results/reference-long-training/README.md) of 2026-11-22 to 28. [Terms](docs/measuring.md), and [all "
    "tables, figures and claims](results/reference/README.md)."
)
ABOUT = (
    "Intervals of Table 2 and of most claims and findings can be recomputed from `timing.csv` and `accuracy.csv`. "
    "Claims about merging need `planners_timing.csv` of the [studies](../reference-studies/README.md), claims about "
    "long trainings and numbers over sessions need the tables of other kept sets. Predicted rates can be computed "
    f"again from `calibration/`. To repeat the measurement, run `{COMMAND}` (71 minutes on 2 cores). Then run `make "
    "reference`, which copies `results/` and `figures/` to this folder and updates the table in the README."
)
MARKED = re.compile("(<!-- reference -->\n).*(<!-- /reference -->)", re.S)


def made() -> list[Path]:
    """The existing files of the paper's tables and figures, and of their tidy tables; studies have other names."""
    results = [path for path in sorted((ROOT / "results").iterdir()) if path.suffix in (".csv", ".md", ".tex")]
    figures = [path for path in sorted((ROOT / "figures").glob("figure[0-9]*")) if path.suffix in (".svg", ".png")]
    return [path for path in results if path.stem in TABLES] + figures


def keep() -> None:
    """Copy the results and the calibrations to the reference set, with checksums. Large tables are compressed.

    It ends in one line, and leaves the reference set as it is, if there are no results of a whole workflow, or if they
    are of another configuration.
    """
    needed = [ROOT / "results" / name for name in ("provenance.json", "timing.csv", "answer.md", "findings.md")]
    if missing := [str(path.relative_to(ROOT)) for path in needed if not path.exists()]:
        sys.exit(f"error: {missing[0]} is missing; run {COMMAND}")
    of_results, records = json.loads(needed[0].read_text(encoding="utf-8")), RUNS.glob("*/*/run.json")
    dates = {json.loads(path.read_text(encoding="utf-8"))["provenance"]["date"] for path in records}
    if not {of_results["first_run"], of_results["last_run"]} <= dates:
        sys.exit(f"error: results/ has runs that are not in {RUNS.relative_to(ROOT)}; run {COMMAND}")
    new = KEPT.with_name("reference.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for path in [*made(), needed[0]]:
        if path.suffix == ".csv" and path.stat().st_size > MOST_BYTES:
            (new / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        else:
            shutil.copy(path, new)
    calibration = RUNS / "calibration"
    if calibration.exists():  # the answer's predicted rates follow from it
        shutil.copytree(calibration, new / "calibration")
    shutil.rmtree(KEPT, ignore_errors=True)
    new.rename(KEPT)
    result_set.write_record(KEPT, {})


def show() -> None:
    """Write the page of results, and replace the lines between the README's markers with the answers and a figure."""
    provenance = json.loads((KEPT / "provenance.json").read_text(encoding="utf-8"))
    facts = result_set.facts_of_runs(KEPT)
    source = f"Measured on {facts['machine']}; {provenance['runs']} runs, {facts['date']}, commit {facts['commit']}."
    sentences = (KEPT / "findings.md").read_text(encoding="utf-8")
    (KEPT / "README.md").write_text(page(source, sentences), encoding="utf-8")
    answers = without_columns((KEPT / "answer.md").read_text(encoding="utf-8").partition("\n\n")[0])
    notes = textwrap.fill(f"{NOTES} {source}", 120, break_long_words=False, break_on_hyphens=False)
    text = f"{answers}\n\n{notes}\n{picture()}"
    readme = ROOT / "README.md"
    readme.write_text(
        MARKED.sub(lambda marked: marked[1] + text + marked[2], readme.read_text(encoding="utf-8")), encoding="utf-8"
    )


def without_columns(table: str) -> str:
    """A Markdown table without the columns ``LEFT_OUT``."""
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    kept = [place for place, name in enumerate(rows[0]) if name.strip() not in LEFT_OUT]
    return "\n".join(f"|{'|'.join(row[place] for place in kept)}|" for row in rows)


def picture() -> str:
    """The README's breakdown figure with its caption; nothing if it was not drawn."""
    if not (KEPT / f"{PICTURE}.svg").exists():
        return ""
    timing = pd.read_csv(next(KEPT.glob("timing.csv*")))
    shown = summarise(timing[timing["model"] == PICTURED])
    return (
        f"\n![An iteration of VGG16 in parts, per method](results/reference/{PICTURE}.svg)\n\n"
        f"*Parts of one iteration of VGG16: measured, not modelled. "
        f"{captions.setting(shown)}; {captions.counted(shown)}. Whiskers: {captions.repeat(shown)}. "
        f"Dotted: the fastest uncompressed in the same run. {style.TIMES}: the speed-up against it.*\n"
    )


def page(source: str, sentences: str) -> str:
    """The results as GitHub shows them: findings, verdicts, the paper's tables and claims, figures with captions, the
    rest."""
    parts = [f"# Results\n\n{source} {ABOUT}\n\n{sentences}"]
    parts.append(f"{findings.TERMS}\n")
    verdicts = claims.in_short(pd.read_csv(KEPT / "claims.csv"))
    rows = "\n".join(f"| {statement} | {verdict} |" for statement, verdict in verdicts.items())
    parts.append(f"## The paper's statements in short\n\n| The paper states | Here |\n|:--|:--|\n{rows}\n")
    for name in SHOWN:
        text = (KEPT / f"{name}.md").read_text(encoding="utf-8")
        parts.append(f"## {name.replace('table', 'Table ').capitalize()}\n\n{text}")
    shown = [(svg, *described(svg)[0].partition(". ")[::2]) for svg in sorted(KEPT.glob("*.svg"))]
    for text, figures in groupby(shown, key=itemgetter(2)):  # figures of one kind share everything but the title
        titles = []
        for svg, title, _ in figures:
            parts.append(f"![{title}]({svg.name})\n\n{title}.\n")
            titles.append(title.partition(":")[0])
        parts.append(f"{' to '.join(dict.fromkeys((titles[0], titles[-1])))}. {text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    keep()
    show()
