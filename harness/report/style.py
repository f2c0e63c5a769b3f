"""How tables and figures look: names, order, colours, captions. No torch.

Colours are Okabe and Ito's, distinguishable to colour-blind readers; every method also has its own
line style and marker, every part its own hatch, so that a black-and-white print reads as well.
"""

import sys
from html import escape
from pathlib import Path

import pandas as pd

METHODS = {"none": "uncompressed", "topk": "Top-K", "lags": "LAGS", "dlgs": "DLGS"}
MODELS = {"resnet20": "ResNet-20", "vgg16": "VGG16", "resnet50": "ResNet-50"}
DATA = {"cifar10": "CIFAR-10", "imagenet100": "ImageNet-100"}

LINKS = ["rate_mbit", "fastest_mbit", "measured_mbit"]  # of a testbed: the slowest, the fastest, the slowest measured

_COLOURS = ["#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"]
_DASHES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]

PARTS = {
    "computation": ("#56B4E9", ""),
    "sparsification": ("#E69F00", "///"),
    "non-overlapped communication": ("#D55E00", "xxx"),
    "optimizer and other": ("#999999", "..."),
}


def in_order(methods) -> list[str]:
    """The paper's methods first, in its order, then the others by name."""
    found = set(methods)
    return [m for m in METHODS if m in found] + sorted(found - METHODS.keys())


def arrange(table: pd.DataFrame) -> pd.DataFrame:
    """Rows by model, method and falling ratio, in the order of all tables and figures."""
    models = [m for m in MODELS if m in set(table["model"])]
    models += sorted(set(table["model"]) - set(models))
    methods = in_order(table["method"])
    order = table.assign(a=table["model"].map(models.index), b=table["method"].map(methods.index), c=-table["ratio"])
    keys = ["a", *(key for key in ("topology", "rate_mbit") if key in table), "b", "c"]
    return table.loc[order.sort_values(keys, na_position="first", kind="stable").index].reset_index(drop=True)


def method_label(method: str) -> str:
    return METHODS.get(method, method)


def line(method: str, methods: list[str]) -> dict:
    """Matplotlib's keywords for a method's line, the same in every figure."""
    order = [*METHODS, *(m for m in methods if m not in METHODS)]
    i = order.index(method) % len(_COLOURS)
    return {
        "color": _COLOURS[i],
        "linestyle": _DASHES[i],
        "marker": _MARKERS[i],
        "markersize": 4,
        "linewidth": 1.5,
        "label": method_label(method),
    }


def data_label(row) -> str:
    """The data of a row of a tidy table; a stand-in is said to be one."""
    name = DATA.get(row["data"], row["data"])
    return f"{name} (stand-in)" if row["stand_in"] else name


def run_columns(row) -> dict[str, str]:
    """The columns that say which run a row of a shown table is about; ``save_table`` may drop the last."""
    return {
        "Model": MODELS.get(row["model"], row["model"]),
        "Data": data_label(row),
        "Method": method_label(row["method"]) + (" (fast)" if row.get("selection") == "fast" else ""),
        "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
        "Topology": row.get("topology", "allgather"),
        "Links (Mb/s)": "" if pd.isna(row.get("rate_mbit")) else f"{row['rate_mbit']:g}",
    }


def setting(table: pd.DataFrame) -> str:
    """Machine, network, engine and workers of the rows, for captions."""
    parts = []
    keys = ["machine", "network", "rate_mbit", "fastest_mbit", "engine", "workers"]
    keys = [key for key in keys if key in table]
    for _, rows in table.groupby(keys, dropna=False, sort=False):
        row = rows.iloc[0]
        parts.append(f"{row['machine']}; {network(rows)}; {row['engine']}, {row['workers']} workers")
    return " / ".join(parts)


def network(rows: pd.DataFrame) -> str:
    """The network of rows that share one; of a testbed its rates and what a TCP stream reached."""
    row = rows.iloc[0]
    words = f"{row['network']} network"
    if row["network"] != "testbed":
        return words
    rate, fastest = row["rate_mbit"], row["fastest_mbit"]
    words += f", {rate:g} Mb/s links" if rate == fastest else f", links of {rate:g} to {fastest:g} Mb/s"
    least, most = rows["measured_mbit"].min(), rows["measured_mbit"].max()
    return f"{words} (measured {least:.0f}" + (f" to {most:.0f})" if least != most else ")")


def spread(row, column: str, scale: float = 1, digits: int = 2) -> str:
    """A value with the smallest and the largest block: ``<column>``, ``<column>_min``, ``<column>_max``."""
    value, least, most = (f"{row[column + end] * scale:.{digits}f}" for end in ("", "_min", "_max"))
    return f"{value} [{least}, {most}]"


def least_to_most(numbers: pd.Series) -> str:
    """As "6 to 9", or "9" where all are the same."""
    return " to ".join(f"{n:.0f}" for n in sorted({numbers.min(), numbers.max()}))


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if pd.isna(value):
        return ""
    digits = max(0, 2 - int(f"{abs(value):e}".split("e")[1])) if value else 0
    return f"{value:.{min(digits, 6)}f}"


def log_errors(snakemake) -> None:
    """Send what a script complains of to its rule's log, which the workflow shows if the rule fails."""
    sys.stderr = Path(snakemake.log[0]).open("w", buffering=1)  # noqa: SIM115 - open until the script ends


def save_table(full: pd.DataFrame, shown: pd.DataFrame, caption: str, paths) -> None:
    """``full`` as CSV; ``shown`` (text, short headings) as Markdown, LaTeX and HTML, with the caption.

    The topology is shown unless it is all-gather everywhere, the links' rate unless all rows share one.
    """
    if "Topology" in shown and (shown["Topology"] == "allgather").all():
        shown = shown.drop(columns="Topology")
    if "Links (Mb/s)" in shown and shown["Links (Mb/s)"].nunique() == 1:
        shown = shown.drop(columns="Links (Mb/s)")
    full.to_csv(paths.csv, index=False, float_format="%.6g")
    Path(paths.md).write_text(f"{shown.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n")
    escaped = caption.replace("%", "\\%").replace("_", "\\_").replace("^", "\\^{}")
    Path(paths.tex).write_text(shown.to_latex(index=False, escape=True, caption=escaped))
    Path(paths.html).write_text(PAGE.format(table=shown.to_html(index=False, border=0), caption=escape(caption)))


PAGE = """<!doctype html><meta charset="utf-8">
<style>
body {{ font: 14px sans-serif; margin: 1em }}
table {{ border-collapse: collapse }}
th, td {{ padding: 3px 10px; text-align: left; border-bottom: 1px solid #ccc }}
p {{ max-width: 60em; color: #333 }}
</style>
{table}
<p>{caption}</p>
"""


def plain_log(axis, subs=(1, 2, 5)) -> None:
    """A logarithmic axis of Matplotlib with plain numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def save_figure(figure, paths) -> None:
    """As SVG and as PNG, without a date, so that the same data give the same file."""
    figure.savefig(paths.svg, metadata={"Date": None})
    figure.savefig(paths.png, dpi=160)
