"""Block-sparse sums: OmniReduce, a ring and an all-gather of the same blocks, timed in turns.

Times are of the slowest rank, medians over repeats. Aggregators have shared hosts (each next to a worker) or dedicated
hosts. With dedicated hosts, the engine's gather is left out, because it includes every process. Block: entries of a
block. Fused: the largest number of blocks in a message. Streams: the number of streams of all aggregators together,
which is small for a small tensor. Positions: where the blocks that are not zero are on different workers. Bound: the
speed-up over a ring that the bytes on the busiest full-duplex link alone allow. With N workers and at least N dedicated
aggregators it is 2 (N - 1) / N divided by the part of the blocks that are not zero on at least one worker (Fei et al.,
SIGCOMM 2021). If there are fewer aggregators, each sends more. An aggregator on a worker's host shares its link, but
exchanges blocks with this worker without the link. The values are small integers, so all ways give the same bits; every
repeat checks this. Most settings of the streams were timed in a few cases only."""

from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import WHEN, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import repeatable
from dlgs_bench.timemodel.links import streamed_bound

ABOUT = ("machine", "network", "engine", "workers", "rate_mbit", "fastest_mbit", "measured_mbit")
ABOUT += ("latency_ms", "round_trip_ms", "disturbed", *WHEN)
SHAPE = ["dedicated", "aggregators", "block", "fused", "in_flight"]
UNION = {  # the density of blocks on at least one of n ranks, by the density on each rank
    "random": lambda n, d: 1 - (1 - d) ** n,
    "overlapping": lambda n, d: d,
    "disjoint": lambda n, d: n * d,
}


def of_run(path: Path) -> pd.DataFrame:
    """A row for each way, density and placement of blocks (``positions``) of one run."""
    rows, spec = pd.read_csv(path), RunSpec.in_folder(path.parent)
    metadata = run_metadata(path.parent)
    summary = []
    for (positions, density), case in rows.groupby(["positions", "density"], sort=False):
        ring = case[case["way"] == "ring"].set_index("repeat")["seconds"]
        n, streams = spec.cluster.workers, {"dedicated": False} | spec.scheme.streams
        bound = streamed_bound(n, streams["aggregators"], streams["dedicated"], density, UNION[positions](n, density))
        for way, own in case.groupby("way", sort=False):
            seconds = own.set_index("repeat")["seconds"]
            gain = repeatable((ring / seconds).tolist())
            summary.append(
                {key: metadata[key] for key in ABOUT} | streams
                | {"entries": spec.measurement.largest_entries, "positions": positions, "density": density, "way": way}
                | {"seconds": seconds.median()} | {key: own[key].max() for key in ("streams", "messages", "bytes")}
                | {"speedup": gain.value, "speedup_low": gain.low, "speedup_high": gain.high, "bound": bound}
                | {"repeats": len(seconds)}
            )  # fmt: skip
    return pd.DataFrame(summary)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of OmniReduce, with columns for the times of the other sums."""
    case = ["workers", "latency_ms", *SHAPE, "positions", "density"]
    times = table.pivot_table(index=case, columns="way", values="seconds").reindex(columns=["ring", "all-gather"])
    return pd.DataFrame(
        {
            "Workers": row["workers"],
            "Links (Mb/s)": f"{row['rate_mbit']:g}",
            "Latency (ms)": f"{row['latency_ms']:g}" if row["latency_ms"] else "",
            "Aggregators": f"{row['aggregators']} {'dedicated' if row['dedicated'] else 'shared'}",
            "Block": row["block"],
            "Fused": row["fused"],
            "Streams": int(row["streams"]),
            "Positions": row["positions"],
            "Density": f"{row['density']:g}",
            **{
                f"{way.capitalize()} (ms)": tables.number(seconds * 1e3)
                for way, seconds in times.loc[tuple(row[key] for key in case)].items()
            },
            "OmniReduce (ms)": tables.number(row["seconds"] * 1e3),
            "Against ring": tables.spread(row, "speedup"),
            "Bound": tables.number(row["bound"]),
            "Sent (MB)": tables.number(row["bytes"] / 1e6),
            "n": row["repeats"],
            "Disturbed": "" if pd.isna(row["disturbed"]) else row["disturbed"],
        }
        for row in table[table["way"] == "omnireduce"].to_dict("records")
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table = pd.concat([of_run(Path(path)) for path in snakemake.input], ignore_index=True)
    sizes = " or ".join(f"{entries * 4e-6:g}" for entries in sorted(table["entries"].unique()))
    size = f"Tensors of {sizes} MB. {captions.setting(table)}."
    tables.save_table(table, shown(table), f"{captions.of_script(snakemake)} {size}", snakemake.output)


if __name__ == "__main__":
    main(snakemake)
