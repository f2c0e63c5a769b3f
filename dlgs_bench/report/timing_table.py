"""A table of timing runs: Table 2, and the tables of studies that time the same runs differently. No torch."""

import pandas as pd

from dlgs_bench.report import captions, sessions, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import summarise


def main(snakemake: Script) -> None:
    """Write the table from the tidy table of iterations, with one row per run. The scripts of the tables call it.

    If the rule has kept sessions, the table shows the range of the speed-ups over them.
    """
    log_errors(snakemake)
    names = Names.of(snakemake)
    table = names.arrange(summarise(pd.read_csv(snakemake.input.timing)))
    table = sessions.over_sessions(
        table, sessions.kept_speedups(snakemake.input.get("kept") or [], table["model"].unique(), names)
    )
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}."
    caption += (
        f" In brackets: {captions.repeat(table)}."
        if table["enough"].any()
        else " Too few blocks or launches for intervals."
    )
    caption += f" {captions.counted(table)}."
    tables.save_table(table, _shown(table, names), caption, snakemake.output)


def _shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    """The speed-ups stand next to the methods and ratios, before the settings that most rows share."""
    return pd.DataFrame(
        {
            **dict.fromkeys(("Model", "Method", "Ratio")),
            "Speed-up": "1" if row["variant"] == "none" else tables.spread(row, "speedup"),
            "Over sessions": sessions.cell(row),
            **tables.run_columns(row, names),
            "Iteration (ms)": tables.spread(row, "iteration_s", 1e3, 0),
            "Batch": f"{row['batch']:g}",
            "Buckets": "" if pd.isna(row["num_buckets"]) else f"{row['num_buckets']:.0f}",
            "Of the bound (%)": f"{row['of_bound'] * 100:.0f}",
            "Uncompressed in the same run (ms)": f"{row['dense_s'] * 1e3:.0f}",
            "Epoch (s)": tables.number(row["epoch_s"]),
            "Training (h)": tables.number(row["training_s"] / 3600),
            "Sent (MB)": tables.number(row["sent_bytes"] / 1e6),
            "Density": tables.number(row["density"]),
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )
