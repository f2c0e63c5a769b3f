"""Planners, drawn: the iteration of every planner divided by the iteration of the planner exact, per model and ratio.

The runs are the same as in the table of planners. Predicted values are divided by the predicted iteration of exact,
measured values by its iteration in the same block. Planners with the same groups share a row. Whiskers: the 95 %
interval of a repeat of this quotient."""

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.topology import TOPOLOGIES

ENDS = ("ratio_to_exact", "ratio_to_exact_low", "ratio_to_exact_high")


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a row per distinct plan, with two points: predicted and measured."""
    exact = rows[rows["planner"] == "exact"].iloc[0]
    names = rows.groupby("timed_as", sort=False)["planner"].agg(", ".join)
    own = rows[rows["planner"] == rows["timed_as"]].set_index("timed_as").loc[names.index]
    y = range(len(own))
    measured, least, most = (own[column] for column in ENDS)
    error = {"elinewidth": 1, "capsize": 2, "linestyle": "", "markersize": 6}
    axes.errorbar(measured, y, xerr=style.whiskers(measured, least, most), color="#0072B2", marker="o",
                  label="measured", **error)  # fmt: skip
    axes.plot(own["predicted_s"] / exact["predicted_s"], y, color="#D55E00", marker="D", linestyle="",
              fillstyle="none", label="predicted")  # fmt: skip
    axes.axvline(1, color="0.4", linestyle="--", linewidth=0.8)
    axes.set_yticks(y, [f"{names[name]} ({own.loc[name, 'groups']})" for name in own.index], fontsize=9)
    axes.set_ylim(len(own) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    runs = [rows for _, rows in table.groupby("run", sort=False)]
    figure, panels = style.panels(len(runs), 5.2, 1.9, most=2)
    for axes, rows in zip(panels, runs, strict=True):
        draw(axes, rows)
        first = rows.iloc[0]
        name = f"{names.model(first['model'])}, {names.variant(first['variant'])}{at_ratio(first['ratio'])}"
        rate = "" if pd.isna(first["rate_mbit"]) else f"{first['rate_mbit']:g} Mb/s, "
        setting = f"{rate}{first['workers']} workers, batch {first['batch']}"
        axes.set_title(f"{name}, {TOPOLOGIES[first['topology']].title}\n{setting}", fontsize=8)
    for axes in panels[-2:]:
        axes.set_xlabel("iteration divided by the exact plan's")
    style.legend_of(figure, panels)
    note = f"{captions.setting(table)}; in brackets: groups; measured: median of "
    note += f"{captions.blocks(table)}, amortised over the phases of a cycle, "
    note += f"whiskers: {captions.repeat(table, 'the plans of a run')}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
