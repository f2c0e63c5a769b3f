"""The time model against published measurements. Nothing is measured here.

    python bench/field.py results/reference-field

Reads ``cases.csv`` in the folder, predicts each case with the time model of ``dlgs-bench advise``, and writes
``field.csv``, ``field.md`` and ``field.svg`` next to it, in seconds.
"""

import csv
import math
import statistics
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
from arguments import parser

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench.timemodel import job_advice
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR
from dlgs_bench.timemodel.job_profile import FORMAT, PARTS, VERSION, check
from dlgs_bench.timemodel.links import Network, streamed_bound

# Assumed for every job, because no source has it: gradients arrive evenly in backward, in tensors of equal size.
TENSORS, BACKWARD = 100, 2 / 3  # backward's part of the computing time
INPUTS = ("entries", "workers", "link_mbit", "computing_ms", "own_ms", "ratio", "local_steps")
STEP = ("entries", "workers", "link_mbit", "computing_ms")
# Quantity -> its unit, and the inputs without which it cannot be predicted.
QUANTITIES = {
    "iteration_ms": ("ms per iteration", (*STEP, "own_ms", "ratio")),
    "gain": ("times uncompressed", (*STEP, "own_ms", "ratio")),
    "utilisation": ("% computing", (*STEP, "local_steps")),
    "sum_ms": ("ms per all-reduce", ("entries", "workers", "link_mbit")),
    "sum_gain": ("times an all-reduce", ("workers", "ratio")),
}
# Method -> its scope here, the operation of its exchange, and the bytes of each entry that it sends.
METHODS = {
    "cast": ("size", "sum", 2.0),
    "randomk": ("size", "sum", 4.0),  # workers draw the same indices, so only values travel
    "efsign": ("size", "gather", 1 / 8),
    "topk": ("model", "gather", 8.0),  # a value and an index
    "dgc": ("layer", "gather", 8.0),
}
FIT = "fit:"  # before the name of the case whose measurement fixes an input
FITTED_BETWEEN = (1e-3, 1e9)
ON_GPUS = SPEEDUP_FACTOR**2  # the factor that advise states on GPUs, where nothing was checked
FITTED, OPEN, HOLDS, BROKEN = "input", "cannot be told", "bound holds", "bound broken"
CLOSE, STATED, WRONG, REVERSED = "close", "in the stated interval", "wrong", "wrong direction"
JUDGED = (CLOSE, STATED, WRONG, REVERSED)
COLOURS = {CLOSE: "#009E73", STATED: "#E69F00", HOLDS: "#0072B2"} | dict.fromkeys((WRONG, REVERSED, BROKEN), "#D55E00")


class Field:
    """The published cases and the predictions for them. ``cases``: the rows of cases.csv, by name."""

    def __init__(self, cases: dict[str, dict]):
        self.cases = cases
        self._fits: dict[tuple[str, str], float] = {}

    def number(self, name: str, key: str) -> float:
        """An input of a case; NaN if it was not published."""
        value = self.cases[name][key]
        if value.startswith(FIT):
            return self._fitted(value.removeprefix(FIT), key)
        return float(value) if value else math.nan

    def _fitted(self, name: str, key: str) -> float:
        """The input ``key`` with which the prediction for the case ``name`` equals the measurement."""
        if (name, key) not in self._fits:
            case = self.cases[name]
            others = {other: self.number(name, other) for other in INPUTS if other != key}
            low, high = FITTED_BETWEEN

            def too_much(value: float) -> bool:
                return answer(case, others | {key: value}) > float(case["published"])

            grows = too_much(high)
            while high / low > 1 + 1e-9:
                middle = math.sqrt(low * high)
                low, high = (low, middle) if too_much(middle) == grows else (middle, high)
            self._fits[name, key] = middle
        return self._fits[name, key]

    def row(self, name: str) -> dict:
        """One row of the table."""
        case = self.cases[name]
        predicted = _rounded(answer(case, {key: self.number(name, key) for key in INPUTS}))
        published = _rounded(float(case["published"] or "nan"))
        fixes_input = any(case[key] == FIT + name for key in INPUTS)
        return {
            "case": name,
            "source": case["source"],
            "quantity": case["quantity"],
            "published": published,
            "predicted": predicted,
            "error": _rounded(predicted / published - 1),
            "verdict": FITTED if fixes_input else verdict(case["quantity"], case["kind"], published, predicted),
        }


def answer(case: dict, inputs: dict[str, float]) -> float:
    """The predicted quantity of a case; NaN if an input that it needs was not published."""
    if any(math.isnan(inputs[key]) for key in QUANTITIES[case["quantity"]][1]):
        return math.nan
    workers = int(inputs["workers"])
    if case["quantity"] == "sum_gain":
        union = 1 - (1 - inputs["ratio"]) ** workers
        return streamed_bound(workers, workers, True, inputs["ratio"], union)
    job_models = job_advice.models(profile(case["method"], inputs))
    there, job = Network(workers, inputs["link_mbit"]), job_models[0].job
    if case["quantity"] == "sum_ms":
        return 1e3 * job_advice.exchange_s(job, there)
    if case["quantity"] == "utilisation":
        computing_s = inputs["local_steps"] * job.alone_s
        return 100 * computing_s / (computing_s + job_advice.exchange_s(job, there))
    dense_s, own_s = job_models[0].iteration_s(there), job_models[-1].iteration_s(there)
    return dense_s / own_s if case["quantity"] == "gain" else 1e3 * own_s


def profile(method: str, inputs: dict[str, float]) -> dict:
    """A profile as the probe would have recorded it in one process, from what was published."""
    entries = int(inputs["entries"])
    computing_s = inputs["computing_ms"] / 1e3
    if math.isnan(computing_s):
        computing_s = 1.0  # of an all-reduce alone, which it does not change
    seconds = dict.fromkeys(PARTS, 0.0)
    seconds |= {"forward": (1 - BACKWARD) * computing_s, "backward": BACKWARD * computing_s, "iteration": computing_s}
    made = {
        "format": FORMAT,
        "version": VERSION,
        "job": {"steps": 1, "passes": 1, "kind": "single", "backend": "none", "workers": 1, "device": "cuda",
                "device_name": "not measured", "threads": 1, "versions": {}, "exchanges": 1, "machine": None,
                "ddp": None, "idle_cores": None},
        "parameters": [
            {"shape": [entries // TENSORS + (number < entries % TENSORS)], "dtype": "float32",
             "arrived_s": BACKWARD * computing_s * (number + 1) / TENSORS}
            for number in range(TENSORS)
        ],
        "times": {part: {"median_s": value, "low_s": value, "high_s": value} for part, value in seconds.items()},
        "network": [],
        "selection": [],
        "methods": [] if method == job_advice.UNCOMPRESSED else [_method(method, entries, inputs)],
        "left_out": {},
    }  # fmt: skip
    check(made)
    return made


def _method(name: str, entries: int, inputs: dict[str, float]) -> dict:
    """A method's part of a profile: its work and its bytes grow in proportion to the entries of a bucket."""
    scope, operation, bytes_each = METHODS[name]
    requests, sent = {"sum": ("sums", "summed_bytes"), "gather": ("gathers", "gathered_bytes")}[operation]
    nothing = dict.fromkeys(("sums", "gathers", "messages", "summed_bytes", "gathered_bytes", "message_bytes"), 0.0)
    samples = [
        {"entries": size, "workers": int(inputs["workers"]), "seconds": inputs["own_ms"] / 1e3 * size / entries}
        | nothing
        | {requests: 1.0, sent: bytes_each * inputs["ratio"] * size}
        for size in (1, entries)
    ]
    return {"name": name, "title": name, "scope": scope, "baseline": False, "options": {}, "samples": samples}


def verdict(quantity: str, kind: str, published: float, predicted: float) -> str:
    """Whether a prediction is right. ``kind``: "bound" if it is the largest possible value, otherwise "prediction"."""
    if math.isnan(published) or math.isnan(predicted):
        return OPEN
    if kind == "bound":
        return HOLDS if published <= predicted else BROKEN
    if quantity == "gain" and (published - 1) * (predicted - 1) < 0:
        return REVERSED
    factor = max(published / predicted, predicted / published)
    return CLOSE if factor <= SPEEDUP_FACTOR else STATED if factor <= ON_GPUS else WRONG


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _errors(rows: list[dict]) -> str:
    """The number of predictions, how many are close, and their errors."""
    errors, close = [abs(row["error"]) for row in rows], sum(row["verdict"] == CLOSE for row in rows)
    worst = max(rows, key=lambda row: abs(row["error"]))
    return (
        f"{close} of {len(rows)} within a factor of {SPEEDUP_FACTOR}, median error "
        f"{100 * statistics.median(errors):.0f} %, worst {100 * worst['error']:+.0f} % ({worst['case']})"
    )


def summary(rows: list[dict]) -> str:
    """The results of the table, in sentences."""
    told = [row for row in rows if row["verdict"] in JUDGED]
    overlapped = [row for row in told if row["quantity"] in ("iteration_ms", "gain")]
    ddp = [row for row in overlapped if "-ddp-" in row["case"]]
    counts = Counter(row["verdict"] for row in rows)
    return (
        f"Of {len(rows)} cases, {len(told)} are predictions with a published result. Predictions that use the timeline "
        f"of buckets: {_errors(overlapped)}. Among them, uncompressed DDP: {_errors(ddp)}. Predictions of one sum that "
        "is not overlapped, such as DiLoCo's utilisation, which do not use the timeline: "
        f"{_errors([row for row in told if row not in overlapped])}. "
        f"In all, within a factor of {ON_GPUS:.2f}: {counts[STATED]} more; "
        f"farther off: {counts[WRONG]}; wrong direction: {counts[REVERSED]}. "
        f"Upper bounds that hold: {counts[HOLDS]}; that do not: {counts[BROKEN]}. "
        f"Cases that fix an input: {counts[FITTED]}; that cannot be told: {counts[OPEN]}."
    )


def page(rows: list[dict], cases: dict[str, dict]) -> str:
    """The table for people."""
    shown = [
        {
            "Case": row["case"],
            "Source": f"[{row['source']}]({cases[row['case']]['address']})",
            "Quantity": QUANTITIES[row["quantity"]][0],
            "Published": _shown(row["published"]),
            "Predicted": ("at most " if cases[row["case"]]["kind"] == "bound" else "") + _shown(row["predicted"]),
            "Error": f"{100 * row['error']:+.0f} %" if row["verdict"] in JUDGED else "",
            "Verdict": row["verdict"],
            "Assumed": cases[row["case"]]["assumed"],
            "Not published": cases[row["case"]]["missing"],
        }
        for row in rows
    ]
    return f"{pd.DataFrame(shown).to_markdown(index=False, disable_numparse=True)}\n\n{summary(rows)}\n"


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def draw(rows: list[dict], path: Path) -> None:
    """Predicted divided by published, one line for each case that has both and fixes no input."""
    from dlgs_bench.report import style  # sets what makes figures alike on every machine

    told = [row for row in rows if row["verdict"] in COLOURS]
    figure, axes = style.plt.subplots(figsize=(7.4, 0.6 + 0.19 * len(told)), layout="constrained")
    for factor, shade in ((ON_GPUS, "0.93"), (SPEEDUP_FACTOR, "0.85")):
        axes.axvspan(1 / factor, factor, color=shade, zorder=0)
    axes.axvline(1, color="0.3", linewidth=0.8)
    for place, row in enumerate(told):
        marker = "<" if row["verdict"] in (HOLDS, BROKEN) else "o"
        axes.plot(row["predicted"] / row["published"], place, marker, markersize=5, color=COLOURS[row["verdict"]])
    axes.set_yticks(range(len(told)), [row["case"] for row in told], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    style.plain_log(axes.xaxis)
    axes.set_xlim(0.5, 5)
    note = f"time model / measurement (grey: within {SPEEDUP_FACTOR} and {ON_GPUS:.2f}; triangles: upper bounds)"
    axes.set_xlabel(note, fontsize=8)
    style.open_frame(axes)
    caption = "The time model against measurements of others. Predicted time divided by the published time, per case."
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": caption})


def load(folder: Path) -> dict[str, dict]:
    """The published cases, by name."""
    with (folder / "cases.csv").open(encoding="utf-8") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


def main(folder: Path) -> None:
    cases = load(folder)
    field = Field(cases)
    rows = [field.row(name) for name in cases]
    pd.DataFrame(rows).to_csv(folder / "field.csv", index=False)
    (folder / "field.md").write_text(page(rows, cases), encoding="utf-8")
    draw(rows, folder / "field.svg")
    print(summary(rows))


if __name__ == "__main__":
    main(parser(__doc__).parse_args().folder)
