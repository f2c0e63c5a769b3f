"""Gathers what each bucket sent: in the last half of training's steps, and where it was timed, amortised."""

from pathlib import Path

import pandas as pd

from harness.report.log import log_errors
from harness.report.summary import amortise
from harness.report.tidy import about_run

BUCKET = ["bucket", "start", "stop", "entries"]


def buckets(run: Path) -> pd.DataFrame:
    """One row per bucket of the run's own variant: its layers and its entries."""
    groups, variant = pd.read_csv(run / "groups.csv"), about_run(run)["variant"]
    return groups.loc[groups["variant"] == variant, BUCKET]


def trained(run: Path) -> pd.DataFrame:
    sent = pd.read_csv(run / "sent.csv").set_index("step")
    last = sent[sent.index > sent.index.max() / 2].mean()
    return rows(run, last, "trained", f"steps {sent.index.max() // 2 + 1} to {sent.index.max()}")


def timed(run: Path) -> pd.DataFrame:
    iterations, sent = pd.read_csv(run / "iterations.csv"), pd.read_csv(run / "sent.csv")
    own = iterations[iterations["variant"] == about_run(run)["variant"]]
    place = [column for column in sent if not column.isdigit()]  # block, step, and the launch where there are several
    every = sent.merge(own[[*place, "phase", "share"]], on=place)
    numbers = sent.columns.drop(place)
    return rows(run, pd.Series({number: amortise(every, number) for number in numbers}), "timed", "amortised")


def rows(run: Path, sent: pd.Series, how: str, steps: str) -> pd.DataFrame:
    table = buckets(run)
    density = sent.to_numpy() / table["entries"].to_numpy()
    return table.assign(**about_run(run), how=how, steps=steps, density=density)


def main() -> None:
    log_errors(snakemake)
    found = [trained(Path(path).parent) for path in snakemake.input.trained]
    found += [timed(Path(path).parent) for path in snakemake.input.timed]
    pd.concat(found).to_csv(snakemake.output[0], index=False)


main()
