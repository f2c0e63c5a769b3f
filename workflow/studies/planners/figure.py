"""Planners, drawn: every planner's iteration, predicted beside measured, per model, variant and ratio.

The same runs as the table of planners; whiskers: the 95 % interval of a repeat, from the blocks of one run."""

import pandas as pd

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.topology import TOPOLOGIES


def draw(axes, rows: pd.DataFrame) -> None:
    """Two bars for each planner of one run."""
    y = range(len(rows))
    axes.barh([i - 0.2 for i in y], rows["predicted_s"] * 1e3, 0.4, color="#CCCCCC", hatch="...", edgecolor="white",
              label="predicted")  # fmt: skip
    measured, least, most = (rows[column] * 1e3 for column in ("iteration_s", "iteration_s_low", "iteration_s_high"))
    axes.barh([i + 0.2 for i in y], measured, 0.4, xerr=style.whiskers(measured, least, most), color="#0072B2",
              error_kw={"lw": 0.8, "capsize": 2}, label="measured")  # fmt: skip
    labels = [
        f"{row.planner} ({row.groups})" + ("" if row.timed_as == row.planner else f" = {row.timed_as}")
        for row in rows.itertuples()
    ]
    axes.set_yticks(y, labels, fontsize=8)
    axes.invert_yaxis()
    style.open_frame(axes)


def main() -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    runs = [rows for _, rows in table.groupby("run", sort=False)]
    figure, panels = style.panels(len(runs), 4.2, 2.1, most=2)
    for axes, rows in zip(panels, runs, strict=True):
        draw(axes, rows)
        first = rows.iloc[0]
        name = f"{names.model(first['model'])}, {names.variant(first['variant'])}{at_ratio(first['ratio'])}"
        axes.set_title(f"{name}, {TOPOLOGIES[first['topology']].title}", fontsize=8)
    for axes in panels[-2:]:
        axes.set_xlabel("time of one iteration (ms)")
    style.legend(figure, *panels[0].get_legend_handles_labels())
    note = f"{captions.setting(table)}; in brackets: groups; measured: median of "
    note += f"n = {captions.least_to_most(table['n'])} iterations amortised over the phases of a cycle, "
    note += captions.WHISKERS
    style.save(figure, note, snakemake)


main()
