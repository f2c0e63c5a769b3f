"""Gathers what each bucket sent: in the last half of training's steps, and where it was timed, amortised."""

from pathlib import Path

import pandas as pd

from harness.report.log import log_errors
from harness.report.tidy import about_run, amortise
from harness.spec import RunSpec

BUCKET = ["bucket", "start", "stop", "entries"]


def trained(run: Path) -> pd.DataFrame:
    sent = pd.read_csv(run / "sent.csv").set_index("step")
    last = sent[sent.index > sent.index.max() / 2].mean()
    label = about_run(run)["variant"]
    return rows(run, label, about_run(run), last, "trained", f"steps {sent.index.max() // 2 + 1} to {sent.index.max()}")


def timed(run: Path, ratios: set[float]) -> list[pd.DataFrame]:
    """The schemes of a timing run whose density drifts, at the ratios that were trained."""
    found = []
    for label, member in RunSpec.in_folder(run).members.items():
        about = about_run(run, label)
        if pd.notna(about["refresh_every"]) and member.ratio in ratios:
            tables = (pd.read_csv(run / name) for name in ("iterations.csv", "sent.csv"))
            iterations, sent = (table[table["variant"] == label] for table in tables)
            numbers = [column for column in sent.dropna(axis="columns") if column.isdigit()]
            every = sent.merge(iterations[["block", "step", "phase", "share"]], on=["block", "step"])
            means = pd.Series({number: amortise(every, number) for number in numbers})
            found.append(rows(run, label, about, means, "timed", "amortised"))
    return found


def rows(run: Path, label: str, about: dict, sent: pd.Series, how: str, steps: str) -> pd.DataFrame:
    """One row per bucket: its layers, its entries and the share of them that was sent."""
    groups = pd.read_csv(run / "groups.csv")
    table = groups.loc[groups["variant"] == label, BUCKET]
    return table.assign(**about, how=how, steps=steps, density=sent.to_numpy() / table["entries"].to_numpy())


def main() -> None:
    log_errors(snakemake)
    found = [trained(Path(path).parent) for path in snakemake.input.trained]
    ratios = set(pd.concat(found)["ratio"])
    found += [one for path in snakemake.input.timed for one in timed(Path(path).parent, ratios)]
    pd.concat(found).to_csv(snakemake.output[0], index=False)


main()
