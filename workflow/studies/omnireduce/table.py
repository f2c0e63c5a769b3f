"""Training over OmniReduce, a ring, the engine's all-reduce and an all-gather, in turns in the same processes.

Communication: the wait after backward, without the wait for slower workers. Against ring: the ring's iteration divided
by the row's, medians over blocks. Communication against ring: the same for communication; it is left out below 5 ms. d:
the part of its blocks that a worker sent. Bound: the speed-up over a ring on full-duplex links that the bytes of N
workers alone allow if the positions of the blocks are random. With an aggregator on each worker's host it is 2 / (d + 1
- (1 - d)^N). Messages and bytes count one worker. For the engine's all-reduce and for gathers, only the bytes that are
handed to the engine are known."""

from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import amortise, by_block, read_members
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import summarise
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import repeatable
from dlgs_bench.timemodel.links import streamed_bound

LEAST_S = 0.005  # of communication: a quotient of less is noise
STREAMED, RING = "omnireduce", "ring"
WAYS = {"engine": "engine's all-reduce", RING: "ring", "all-gather": "all-gather", STREAMED: "OmniReduce"}


def of_run(path: str) -> pd.DataFrame:
    """A row for each way in one run: a summary of its iterations, and its speed-up against the ring."""
    iterations = pd.read_csv(path)
    rows = dict(list(iterations.groupby("variant", sort=False)))
    table = summarise(read_members([path]))
    density, workers = amortise(rows[STREAMED], "density"), table["workers"].iloc[0]
    aggregators = RunSpec.in_folder(Path(path).parent).members[STREAMED].scheme.streams.get("aggregators", workers)
    table = table.assign(
        method=table.loc[table["variant"] == STREAMED, "method"].iloc[0],
        ratio=table["ratio"].max(),
        uncompressed=table["method"] == "none",
        way=table["variant"].replace("none", "engine"),
        messages=[amortise(rows[variant], "sent_messages") for variant in table["variant"]],
        density=density,
        bound=streamed_bound(workers, aggregators, False, density, 1 - (1 - density) ** workers),
    )
    for column, name in (("iteration_s", "gain"), ("communication_s", "communication_gain")):
        ring = by_block(rows[RING], column)
        gains = [repeatable(ring / by_block(rows[variant], column)) for variant in table["variant"]]
        table[name], table[f"{name}_low"], table[f"{name}_high"] = zip(
            *((gain.value, gain.low, gain.high) for gain in gains), strict=True
        )
    return table


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": names.model(row["model"]),
            "Sends": "everything" if row["uncompressed"] else f"{row['ratio']:g} of the blocks",
            "Workers": row["workers"],
            "Sum": WAYS[row["way"]],
            "Iteration (ms)": tables.spread(row, "iteration_s", 1e3, 0),
            "Communication (ms)": tables.number(row["communication_s"] * 1e3),
            "Against ring": tables.spread(row, "gain"),
            "Communication against ring": ring_by(row),
            "d": tables.number(row["density"]) if row["way"] == STREAMED else "",
            "Bound": tables.number(row["bound"]) if row["way"] == STREAMED else "",
            "Messages": f"{row['messages']:.0f}" if row["way"] in (RING, STREAMED) else "",
            "Sent (MB)": tables.number(row["sent_bytes"] / 1e6),
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )


def ring_by(row: dict) -> str:
    """The ring's communication divided by the row's; empty if the row hardly communicates."""
    return tables.spread(row, "communication_gain") if row["communication_s"] >= LEAST_S else ""


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    table = pd.concat([of_run(path) for path in map(str, snakemake.input)], ignore_index=True)
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}. n counts blocks."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
