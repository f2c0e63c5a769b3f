"""Hybrid parallelism and data-parallel training: the time of an iteration of the same samples, and its parts.

In hybrids, half of the workers hold the head, the fully connected layers at the model's end, each some of its columns.
The other workers train the backbone, each on twice the samples of a data-parallel worker. On dedicated nodes they would
compute twice as long; here there are more workers than cores, so waiting workers leave their cores to the others.
Gradients: the backbone's in hybrids, otherwise the whole model's; the time is what a worker waits for them after
backward. In hybrids nothing overlaps. Sent: by the process that sends the most bytes. VGG16 with ImageNet's head takes
images of 32 x 32 pixels, because few cores train it: its backbone computes 49 times less than on images of 224 x 224.
Predicted: the computation of the same row, plus the time of the bytes on the busiest link at its rate, which
data-parallel workers send while backward still runs. Rows marked "predicted" are for dedicated nodes: 8 workers, and
ways that would take too long here. Each worker computes as long as with the fewest workers here."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import WHEN, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import data_title
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import repeatable
from dlgs_bench.timemodel import hybrid_time
from dlgs_bench.timemodel.predict import sum_rounds
from dlgs_bench.topology import FLOAT32_BYTES, TOPOLOGIES, Traffic

PREDICTED = 8  # workers
Measured = tuple[dict, Callable[[int], float]]  # a row, and the seconds of an iteration by the number of workers

PARTS = ("computing_s", "features_s", "columns_s", "input_gradients_s", "gradients_s")
SHOWN = ("Computing (ms)", "Features (ms)", "Columns (ms)", "Input gradients (ms)", "Gradients (ms)")
ABOUT = ("model", "data_title", "stand_in", "machine", "network", "engine", "workers", "rate_mbit", "fastest_mbit")
ABOUT += ("measured_mbit", "latency_ms", "disturbed", *WHEN)


def common(path: Path, way: str, rows: pd.DataFrame, samples: int) -> dict:
    """The columns that all ways have. The parts are means, scaled to add up to the median iteration."""
    metadata, time = run_metadata(path.parent), repeatable(rows["iteration_s"].tolist())
    parts = rows[list(PARTS)].mean() * time.value / rows["iteration_s"].mean()
    row = {key: metadata[key] for key in ABOUT} | {"title": plugins.describe("models", metadata["model"])["title"]}
    row |= {"way": way, "samples": samples, "repeats": len(rows)}
    row |= {"iteration_s": time.value, "iteration_s_low": time.low, "iteration_s_high": time.high}
    return row | parts.to_dict()


def of_hybrid(path: Path) -> Measured:
    """The row of a hybrid: its parts, the messages and bytes of its busiest worker, and the most of each kind."""
    rows, sent, spec = pd.read_csv(path), pd.read_csv(path.with_name("sent.csv")), RunSpec.in_folder(path.parent)
    rows = rows.rename(columns={"backbone_gradients_s": "gradients_s"})
    workers, heads = spec.cluster.workers, spec.scheme.options["heads"]
    row = common(path, "hybrid", rows, spec.training.batch * (workers - heads))
    metadata = plugins.describe("models", spec.training.model)
    features, backbone = hybrid_time.around_head(metadata["layers"], metadata["head"])

    def predict(more: int) -> float:
        halves = more * heads // workers
        if min(metadata["head"]) < halves:  # a layer cannot have more slices than columns
            return float("nan")
        sent = hybrid_time.link_bytes(more, halves, spec.training.batch, features, metadata["head"], backbone)
        return row["computing_s"] + on_link(spec, sent)

    of_rank = sent.groupby(["rank", "part"])[["messages", "bytes"]].sum()
    (_, part), most = of_rank["bytes"].idxmax(), of_rank.loc[of_rank["bytes"].idxmax()]
    row |= {"sender": part, "messages": int(most["messages"]), "bytes": int(most["bytes"])}
    each = sent.groupby("kind")[["messages", "bytes"]].max()
    row |= {f"{kind}_{what}": int(n) for kind, counts in each.iterrows() for what, n in counts.items()}
    return row, predict


def on_link(spec: RunSpec, sent_bytes: float) -> float:
    """The seconds of these bytes on the slowest link."""
    return sent_bytes * 8e-6 / min(spec.cluster.rates_mbit)


def of_timing(path: Path) -> Iterator[Measured]:
    """The rows of the ways in a data-parallel run."""
    spec, groups = RunSpec.in_folder(path.parent), pd.read_csv(path.with_name("groups.csv"))
    for variant, rows in pd.read_csv(path).groupby("variant", sort=False):
        entries = groups.loc[groups["variant"] == variant, "entries"]
        yield data_parallel(path, replace(spec, scheme=spec.scheme.alone(variant)), rows, entries)


def data_parallel(path: Path, spec: RunSpec, rows: pd.DataFrame, entries: pd.Series) -> Measured:
    """The row of one way, with the messages and bytes of a worker or of the server."""
    served, workers = TOPOLOGIES[spec.scheme.topology].servers, spec.cluster.workers
    way = TOPOLOGIES[spec.scheme.topology].title if served else spec.scheme.collective
    rows = rows.assign(**dict.fromkeys(PARTS, 0.0)).assign(gradients_s=rows["communication_s"])
    rows["computing_s"] = rows["iteration_s"] - rows["gradients_s"]  # waiting for slower workers too
    row = common(path, way, rows, spec.training.batch * workers)
    buckets, forward_s = len(entries), rows["forward_s"].median()

    def predict(more: int) -> float:
        each = [on_link(spec, spec.topology.link_bytes(Traffic(FLOAT32_BYTES * n), n, more)) for n in entries]
        return hybrid_time.data_parallel_s(forward_s, row["computing_s"], each)

    if served:  # one message a worker and bucket, there and back
        sent = int(workers * rows["received_bytes"].iloc[0])
        return row | {"sender": "server", "messages": workers * buckets, "bytes": sent}, predict
    rounds = sum_rounds(spec.scheme.collective)(workers)  # of one message each
    sent = int(rows["sent_bytes"].iloc[0])
    return row | {"sender": "worker", "messages": rounds * buckets, "bytes": sent}, predict


def predicted_rows(measured: list[Measured]) -> Iterator[dict]:
    """Rows predicted for dedicated nodes, for each model and way: of ``PREDICTED`` workers, and of each number of
    workers that was measured, but not with this way.

    The prediction is from the row with the fewest workers. It is left out for this number of workers itself.
    """
    seen = {(row["model"], row["way"], row["workers"]) for row, _ in measured}
    numbers = {PREDICTED} | {workers for _, _, workers in seen}
    most_first = sorted(measured, key=lambda one: -one[0]["workers"])
    fewest = {(row["model"], row["way"]): (row, predict) for row, predict in most_first}
    for (model, way), (row, predict) in fewest.items():
        metadata = {key: row[key] for key in (*ABOUT, "title", "way")}
        for workers in numbers - {row["workers"]}:
            if workers == PREDICTED or (model, way, workers) not in seen:
                samples = row["samples"] // row["workers"] * workers
                yield metadata | {"workers": workers, "samples": samples, "repeats": 0, "predicted_s": predict(workers)}


def iteration(row: dict) -> str:
    """The measured iteration, with its interval if there are several; empty for a predicted row."""
    if row["repeats"] > 1:
        return tables.spread(row, "iteration_s", 1e3, 0)
    return f"{row['iteration_s'] * 1e3:.0f}" if row["repeats"] else ""


def shown(table: pd.DataFrame) -> pd.DataFrame:
    times = table["iteration_s"].fillna(table["predicted_s"])
    # A measured row is compared with a measured ring, a predicted row with a predicted ring.
    cases = list(zip(table["title"], table["workers"], table["repeats"] > 0, strict=True))
    rings = {case: time_s for case, way, time_s in zip(cases, table["way"], times, strict=True) if way == "ring"}
    own_rings = [rings.get(case) for case in cases]
    return pd.DataFrame(
        {
            "Model": row["title"],
            "Workers": row["workers"] if row["repeats"] else f"{row['workers']}, predicted",
            "Way": row["way"],
            "Samples": row["samples"],
            "Iteration (ms)": iteration(row),
            "Predicted (ms)": tables.number(row["predicted_s"] * 1e3),
            "Against ring": f"{ring_s / time_s:.2f}" if ring_s else "",
            **{name: tables.number(row[part] * 1e3) for name, part in zip(SHOWN, PARTS, strict=True)},
            "Most sent by": row["sender"] if row["repeats"] else "",
            "Messages": f"{row['messages']:.0f}" if row["repeats"] else "",
            "Sent (MB)": tables.number(row["bytes"] / 1e6),
            "n": row["repeats"],
        }
        for row, time_s, ring_s in zip(table.to_dict("records"), times, own_rings, strict=True)
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    measured = [of_hybrid(Path(path)) for path in snakemake.input.hybrid]
    measured += [one for path in snakemake.input.timing for one in of_timing(Path(path))]
    rows = [row | {"predicted_s": predict(row["workers"])} for row, predict in measured]
    table = pd.DataFrame([*rows, *predicted_rows(measured)])
    order = {column: list(dict.fromkeys(table[column])).index for column in ("model", "way")}
    order["repeats"] = lambda repeats: repeats == 0
    table = table.sort_values(["model", "workers", "repeats", "way"], key=lambda c: c.map(order.get(c.name, int)))
    data = ", ".join(sorted(set(map(data_title, rows))))
    n = "n counts iterations; brackets: the 95 % interval of a repeat."
    caption = f"{captions.of_script(snakemake)} Data: {data}. {captions.setting(table[table['repeats'] > 0])}. {n}"
    counts = [column for column in table if column.endswith(("messages", "bytes"))]
    exact = table.astype(dict.fromkeys(counts, "Int64"))  # though predicted rows have none
    tables.save_table(exact, shown(table), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
