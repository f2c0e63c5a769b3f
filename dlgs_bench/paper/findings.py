"""What was found, in a few sentences that the tidy tables decide; each says what its number depends on. No torch."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from dlgs_bench.paper import claims
from dlgs_bench.paper.claims import FAILS, HOLDS, UNKNOWN
from dlgs_bench.report import captions
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import SETTING, Repeats, over_all_gather, speedups, summarise
from dlgs_bench.stats import Estimate
from dlgs_bench.topology import TOPOLOGIES

TERMS = (
    "Ratio: the share of the gradient's entries that a method is asked to send. Density: the share that it sent. s: "
    "DLGS computes new thresholds every s iterations (32 is our choice, the paper gives none). Selection: how the "
    "entries are selected, by plain torch operations as in the paper (torch) or in compiled passes (compiled). "
    "Uncompressed and 16 bits are timed with several ways of merging layers into buckets; the fastest counts. Times "
    "are measured in blocks, in which all methods take turns; n counts the blocks. A launch is one start of the "
    "processes. Brackets: the range expected for 95 % of repeats within one session, from the spread of launches, or "
    "of the blocks of a single launch. Fewer than three have no brackets. Between sessions a machine drifts further."
)
ABOUT = (
    "In data-parallel training, workers compute gradients on their own data and exchange them in every iteration. "
    "This page shows what is gained if they send less. It repeats the experiments of Ju Tao, Kang Heting, Liu "
    "Shuai and Huo Jiuyuan: A Dynamic Layer-Wise Gradient Sparsity and Gradient Merging Optimization Method for "
    "Deep Neural Networks, Journal of Xi'an Jiaotong University 58(9), 2024, DOI 10.7652/xjtuxb202409011.",
    "Uncompressed: every entry of every gradient is sent. 16 bits: every entry in half the bits. Top-K: the k "
    "largest entries of the whole gradient, after the backward pass. LAGS: the k largest entries of each layer, "
    "while the backward pass goes on. DLGS, the paper's method: layers are merged into groups, and the entries "
    "above a threshold are sent, which is renewed every s iterations. What is not sent is added to the next "
    "gradient.",
    "This machine computes more slowly than the paper's GPUs. Where a row says so, links are slowed by the same "
    "factor, so that computing and sending keep their proportion: such a rate stands for the links of the paper's "
    "nodes, two of 25 Gb/s, or of the nodes that the configuration names. Times are of this machine; speed-ups "
    "are the result.",
)
TIDY = ("accuracy", "timing", "selections_timing", "rates_timing")  # the tables that findings are taken from
HALF = "cast"  # the second baseline, 16 bits
SETTINGS = {"selection": "selection {}", "workers": "{} workers"}  # which all rows of a finding may share
CEILING = 2.0  # with a server that gives dense weights: a dense push and pull by the pull alone


def write(results: Path, names: Names) -> list[str]:
    """The sentences, also as a list of their own among the results."""
    tables = {name: pd.read_csv(results / f"{name}.csv") for name in TIDY if (results / f"{name}.csv").exists()}
    found = sentences(tables, names)
    (results / "findings.md").write_text("".join(f"- {sentence}\n" for sentence in found), encoding="utf-8")
    return found


def sentences(tables: dict[str, pd.DataFrame], names: Names) -> list[str]:
    """From the tidy tables that there are, by the names of their files: "accuracy" and "timing", and the studies'."""
    found = [finding(tables, names) for finding, needed in FINDINGS.items() if needed in tables]
    return [sentence for sentence in found if sentence]


def compressed(timing: pd.DataFrame) -> pd.DataFrame:
    """A row for each run of a method that was not disturbed; uncompressed stands beside each."""
    table = summarise(timing)
    return table[(table["variant"] != "none") & table["disturbed"].isna()]


def pays(tables, names: Names) -> str:
    """Which models gain over all-gather, each with its most significant gain and the gain of 16 bits; and the most
    significant loss."""
    timing, table = tables["timing"], compressed(tables["timing"])
    repeats = Repeats(timing)
    table = over_all_gather(table)
    table = table[table["variant"] != HALF]
    shared = [column for column in SETTINGS if table[column].nunique() == 1]
    gains, others = {}, []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        best, significant = best_of(rows)
        found, inside = factor(best, names, shared)
        method, model = names.variant(best["variant"]), names.model(model)
        over = against_16_bits(timing, repeats, best)
        half = "" if over is None else f"; its speed-up divided by that of {names.variant(HALF)}: {interval(over)}"
        if significant:
            gains[model] = f"{method} makes an iteration of {model} {found} times as fast ({inside}){half}."
        else:
            others.append(f"On {model} no method is significantly faster; the largest is {found} ({inside}){half}.")
    words = [f"Compression pays on {listed(list(gains))}."] if gains else []
    words += [*gains.values(), *others]
    losses = table[(table["speedup_high"] < 1) & table["enough"]]
    if len(losses):
        worst = losses.loc[losses["speedup_high"].idxmin()]
        found, inside = factor(worst, names, shared)
        words.append(
            f"Compression can also cost time: {names.variant(worst['variant'])} makes an iteration of "
            f"{names.model(worst['model'])} {found} times as fast ({inside})."
        )
    if words:
        everywhere = [SETTINGS[column].format(table[column].dropna().iloc[0]) for column in shared]
        words.append(
            "All are compared with the fastest uncompressed of the same run"
            + (f", with {listed(everywhere)}." if shared else ".")
        )
    return " ".join(words)


def best_of(rows: pd.DataFrame) -> tuple[pd.Series, bool]:
    """Of the summary's rows of one model, the one whose gain is the most significant, and True; if no gain is
    significant, the one with the largest speed-up, and False."""
    significant = rows[(rows["speedup_low"] > 1) & rows["enough"]]
    if len(significant):
        return significant.loc[significant["speedup_low"].idxmax()], True
    return rows.loc[rows["speedup"].idxmax()], False


def against_16_bits(timing: pd.DataFrame, repeats: Repeats, best: pd.Series) -> Estimate | None:
    """The speed-up of the row ``best`` divided by the speed-up of 16 bits on the same model and topology; None if
    16 bits were not timed there."""
    here = timing[(timing[SETTING] == best[SETTING]).all(axis=1)]
    half = here[(here["variant"] == HALF) & here["disturbed"].isna()]
    return None if half.empty else repeats.quotient(here[here["run"] == best["run"]], half, speedups)


def to_gain(tables, names: Names) -> str:
    """How long uncompressed waits for its communication after backward, which is most of what compression can save."""
    table = summarise(tables["timing"])
    table = over_all_gather(table)
    table = table[(table["variant"] == "none") & table["disturbed"].isna()]
    table = table.assign(waits=table["communication_s"] / (table["forward_s"] + table["backward_s"]))
    table = table[table["waits"].notna()].sort_values("waits", ascending=False)
    words = [f"{row['waits']:.2f} s on {names.model(row['model'])}" for _, row in table.iterrows()]
    if not words:
        return ""
    return (
        f"Most of what compression can save is the time that uncompressed waits for communication after backward. For "
        f"each second of computing, it waits {listed(words)}."
    )


def selection(tables, names: Names) -> str:
    """DLGS against global Top-K with each kind of selection, at every ratio."""
    timing = tables.get("selections_timing", tables["timing"])
    torch, fast = (dlgs_by_topk(timing[timing["selection"] == kind]) for kind in ("torch", "compiled"))
    cells = [cell for cell in torch if cell in fast]
    if not cells:
        return ""
    dlgs, topk = names.variant("dlgs"), names.variant("topk")
    slow, quick = (
        listed([f"{interval(found[cell][0])} on {names.model(cell[0])} at ratio {cell[1]:g}" for cell in cells])
        for found in (torch, fast)
    )
    blocks = min(found[cell][1] for found in (torch, fast) for cell in cells)
    words = [
        f"{dlgs}'s speed-up divided by {topk}'s, if both select with plain torch operations as in the paper: {slow}. "
        f"If compiled passes select the same entries: {quick} (n = {blocks} blocks or more)."
    ]
    faster = [[found[cell][0].low > 1 for cell in cells] for found in (torch, fast)]
    gone = [names.model(model) for model in names.models_in(model for model, _ in cells)
            if all(now for (of, _), now in zip(cells, faster[0], strict=True) if of == model)
            and not any(now for (of, _), now in zip(cells, faster[1], strict=True) if of == model)]  # fmt: skip
    if not any(map(any, faster)):
        words.append(f"No interval lies above 1, so {dlgs} is not significantly faster than {topk}.")
    elif not all(map(all, faster)):
        words.append("If an interval contains 1, the difference is not significant.")
    if gone:
        words.append(
            f"On {listed(gone)}, {dlgs} is significantly faster than {topk} only with the paper's slow selection."
        )
    return " ".join(words)


def dlgs_by_topk(timing: pd.DataFrame) -> dict[tuple[str, float], tuple[Estimate, int]]:
    """(model, ratio) over all-gather -> the speed-up of DLGS divided by that of Top-K, and from how many blocks."""
    timed, found = claims.Timing(over_all_gather(timing)), {}
    for about, runs in timed.cells():
        if not claims.unusable(runs, "dlgs", "topk"):
            blocks = min(len(speedups(runs[method])) for method in ("dlgs", "topk"))
            found[about["model"], about["ratio"]] = timed.quotient(runs["dlgs"], runs["topk"], speedups), blocks
    return found


def order(tables, names: Names) -> str:
    """How often the paper's order of methods was found."""
    compared = claims.compare(tables["timing"], tables["accuracy"])
    found = compared[compared["statement"].isin(claims.ORDER)]["verdict"].value_counts()
    count = {verdict: int(found.get(verdict, 0)) for verdict in (HOLDS, FAILS, UNKNOWN)}
    if not sum(count.values()):
        return ""
    chain = ", ".join(map(names.variant, ("dlgs", "lags", "topk"))) + f" and last {names.variant('none')}"
    return (
        f"The paper's order from fastest to slowest is {chain}. Of the {sum(count.values())} pairs of neighbours in "
        f"this order in Table 2, {count[HOLDS]} agree with the paper, {count[FAILS]} contradict it, and "
        f"{count[UNKNOWN]} are undecided."
    )


def server(tables, names: Names) -> str:
    """The surest gain with a server that gives dense weights."""
    table = compressed(tables["timing"])
    served = table["topology"].map(lambda name: TOPOLOGIES[name].owner == "server").astype(bool)
    table = table[served & table["enough"]]
    if not len(table):
        return ""
    best = table.loc[table["speedup_low"].idxmax()]
    found, inside = factor(best, names)
    who = "the only model timed so" if table["model"].nunique() == 1 else "the model of the surest gain"
    return (
        f"A parameter server sends the weights back dense, as in the paper. Compression then shrinks the push and not "
        f"the pull, so over slow links no speed-up can pass {CEILING:g}. {names.model(best['model'])}, {who}, is "
        f"{found} times as fast ({inside})."
    )


def rates(tables, names: Names) -> str:
    """Up to which rate of the links DLGS gains."""
    table = compressed(tables["rates_timing"])
    table = table[(table["variant"] == "dlgs") & table["enough"]].sort_values("rate_mbit")
    words = []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        sure = rows[rows["speedup_low"] > 1]
        if len(sure):
            last = sure.iloc[-1]
            found, inside = factor(last, names)
            words.append(f"on {names.model(model)} up to {last['rate_mbit']:g} Mb/s: {found} ({inside})")
        else:
            words.append(f"on {names.model(model)} at no rate from {captions.least_to_most(rows['rate_mbit'])} Mb/s")
    return f"{names.variant('dlgs')} gains over uncompressed {listed(words)}." if words else ""


def learnt(tables, names: Names) -> str:
    """Whether the accuracy runs may rank methods, and if so the ends of uncompressed and DLGS."""
    accuracy = tables["accuracy"]
    last = accuracy[accuracy["step"] == accuracy.groupby("run")["step"].transform("max")]
    words, short = [], []
    for model in names.models_in(last["model"]):
        rows = last[last["model"] == model]
        name = names.model(model)
        if captions.too_short(rows.iloc[0]):
            short.append(f"{name} {claims.trained(rows)}")
            continue
        ends = rows.groupby("variant")["train_accuracy"].mean() * 100
        pairs = [f"{names.variant(v)} {ends[v]:.1f} %" for v in ("none", "dlgs") if v in ends]
        words.append(f"{name} ended at a training accuracy of {listed(pairs)} (n = {rows['seed'].nunique()} seeds)")
    sentences = [f"{listed(words)}."] if words else []
    if short:
        sentences.append(f"The accuracy runs are too short to rank methods: {listed(short)}.")
    return " ".join(sentences)


# finding -> the table that it cannot do without
FINDINGS: dict[Callable, str] = {
    pays: "timing",
    selection: "timing",
    to_gain: "timing",
    order: "timing",
    rates: "rates_timing",
    server: "timing",
    learnt: "accuracy",
}


def factor(row, names: Names, shared=()) -> tuple[str, str]:
    """A variant's speed-up against uncompressed with its interval, and all that decides it, but for the settings that
    it shares with others."""
    inside = [names.variant(row["variant"])]
    inside += [] if pd.isna(row["ratio"]) else [f"ratio {row['ratio']:g}"]
    inside += [f"batch {row['batch']:g}"]
    inside += [] if pd.isna(row["refresh_every"]) else [f"s = {row['refresh_every']:g}"]
    inside += links(row)
    inside += [SETTINGS[key].format(row[key]) for key in SETTINGS if key not in shared and not pd.isna(row[key])]
    inside.append(f"n = {row['blocks']} blocks{in_launches(row['launches'])}")
    return interval(Estimate(row["speedup"], row["speedup_low"], row["speedup_high"])), ", ".join(inside)


def in_launches(launches: int) -> str:
    return f" in {launches} launches" if launches > 1 else ""


def links(row) -> list[str]:
    words = [] if pd.isna(row["rate_mbit"]) else [f"links of {row['rate_mbit']:g} Mb/s"]
    return words + ([f"{row['latency_ms']:g} ms from host to host"] if row.get("latency_ms", 0) > 0 else [])


def interval(found: Estimate) -> str:
    if not found.enough or math.isnan(found.low):
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def listed(words: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
