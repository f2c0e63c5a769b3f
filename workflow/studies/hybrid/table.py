"""Hybrid parallelism beside data-parallel training: the time of an iteration of the same samples, and its parts.

In hybrids half of the workers hold the head, the fully connected layers at the model's end, each some of its columns;
the others train the backbone, each on twice the samples of a data-parallel worker. On nodes of their own they would
compute twice as long; here, where workers outnumber the cores of the one machine, those that wait leave the others
theirs. Gradients: of the backbone in hybrids, of the whole model else, and of these what is left to wait for after
backward; in hybrids nothing overlaps. Sent: by the process that sends the most bytes. VGG16 with
ImageNet's head takes images of 32 x 32 pixels, so that it fits few cores: its backbone computes 49 times less than on
images of 224 x 224."""

from pathlib import Path

import pandas as pd

from harness import plugins
from harness.report import captions, tables
from harness.report.log import log_errors
from harness.report.names import data_title
from harness.report.tidy import about_run
from harness.statistics import repeatable
from harness.timemodel.predict import spec_in, sum_rounds
from harness.topology import TOPOLOGIES

PARTS = ("computing_s", "features_s", "columns_s", "input_gradients_s", "gradients_s")
SHOWN = ("Computing (ms)", "Features (ms)", "Columns (ms)", "Input gradients (ms)", "Gradients (ms)")
ABOUT = ("model", "data_title", "stand_in", "machine", "network", "engine", "workers", "rate_mbit", "fastest_mbit")
ABOUT += ("measured_mbit", "latency_ms", "disturbed")


def common(path: Path, way: str, rows: pd.DataFrame, samples: int) -> dict:
    """What rows of all ways say; parts are means, in proportion to the median iteration."""
    about, time = about_run(path.parent), repeatable(rows["iteration_s"].tolist())
    parts = rows[list(PARTS)].mean() * time.value / rows["iteration_s"].mean()
    found = {key: about[key] for key in ABOUT} | {"title": plugins.describe("models", about["model"])["title"]}
    found |= {"way": way, "samples": samples, "repeats": len(rows)}
    found |= {"iteration_s": time.value, "iteration_s_low": time.low, "iteration_s_high": time.high}
    return found | parts.to_dict()


def of_hybrid(path: Path) -> dict:
    """The row of a hybrid: its parts, what its busiest worker sent, and the most that a worker sent of each kind."""
    rows, sent, spec = pd.read_csv(path), pd.read_csv(path.with_name("sent.csv")), spec_in(path.parent)
    rows = rows.rename(columns={"backbone_gradients_s": "gradients_s"})
    samples = spec.training.batch * (spec.cluster.workers - spec.scheme.options["heads"])
    found = common(path, "hybrid", rows, samples)
    of_rank = sent.groupby(["rank", "part"])[["messages", "bytes"]].sum()
    (_, part), most = of_rank["bytes"].idxmax(), of_rank.loc[of_rank["bytes"].idxmax()]
    found |= {"sender": part, "messages": int(most["messages"]), "bytes": int(most["bytes"])}
    each = sent.groupby("kind")[["messages", "bytes"]].max()
    return found | {f"{kind}_{what}": int(n) for kind, row in each.iterrows() for what, n in row.items()}


def of_timing(path: Path) -> dict:
    """The row of a data-parallel run: what its workers, or the server, sent."""
    rows, spec, buckets = pd.read_csv(path), spec_in(path.parent), len(pd.read_csv(path.with_name("groups.csv")))
    served, workers = TOPOLOGIES[spec.scheme.topology].servers, spec.cluster.workers
    way = TOPOLOGIES[spec.scheme.topology].title if served else spec.scheme.collective
    rows = rows.assign(**dict.fromkeys(PARTS, 0.0)).assign(gradients_s=rows["communication_s"])
    rows["computing_s"] = rows["iteration_s"] - rows["gradients_s"]  # waiting for slower workers too
    found = common(path, way, rows, spec.training.batch * workers)
    if served:  # one message a worker and bucket, there and back
        sent = int(workers * rows["received_bytes"].iloc[0])
        return found | {"sender": "server", "messages": workers * buckets, "bytes": sent}
    rounds = sum_rounds(spec.scheme.collective)(workers)  # of one message each
    return found | {"sender": "worker", "messages": rounds * buckets, "bytes": int(rows["sent_bytes"].iloc[0])}


def shown(table: pd.DataFrame) -> pd.DataFrame:
    case = ["title", "workers"]
    rings = table[table["way"] == "ring"].set_index(case)["iteration_s"]
    return pd.DataFrame(
        {
            "Model": row["title"],
            "Workers": row["workers"],
            "Way": row["way"],
            "Samples": row["samples"],
            "Iteration (ms)": tables.spread(row, "iteration_s", 1e3, 0),
            "Against ring": f"{rings[row['title'], row['workers']] / row['iteration_s']:.2f}",
            **{name: tables.number(row[part] * 1e3) for name, part in zip(SHOWN, PARTS, strict=True)},
            "Most sent by": row["sender"],
            "Messages": row["messages"],
            "Sent (MB)": tables.number(row["bytes"] / 1e6),
            "n": row["repeats"],
            "Disturbed": "" if pd.isna(row["disturbed"]) else row["disturbed"],
        }
        for row in table.to_dict("records")
    )


def main() -> None:
    log_errors(snakemake)
    rows = [of_hybrid(Path(path)) for path in snakemake.input.hybrid]
    rows += [of_timing(Path(path)) for path in snakemake.input.timing]
    table = pd.DataFrame(rows)
    order = {column: list(dict.fromkeys(table[column])).index for column in ("model", "way")}
    table = table.sort_values(["model", "workers", "way"], key=lambda c: c.map(order.get(c.name, int)))
    data = ", ".join(sorted(set(map(data_title, rows))))
    n = "n counts iterations; brackets: where an immediate repeat lies, 19 times in 20."
    caption = f"{captions.of_script(snakemake)} Data: {data}. {captions.setting(table)}. {n}"
    tables.save_table(table, shown(table), caption, snakemake.output)


main()
