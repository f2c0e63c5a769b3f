"""What was found, in a few sentences that the tidy tables decide; each says what its number depends on. No torch."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from harness.paper import claims
from harness.paper.claims import FAILS, HOLDS, LEAST_BLOCKS, UNKNOWN, quotient
from harness.report import captions
from harness.report.names import Names
from harness.report.summary import summarise
from harness.statistics import Estimate
from harness.topology import ALL_GATHER, TOPOLOGIES

TERMS = (
    "Ratio: the part of the gradient's entries that a method is to send; density, in the tables: what it sent. "
    "s: DLGS looks for new thresholds once in s iterations. Selection: how the entries are found, by plain torch "
    "operations as in the paper (torch) or in compiled passes (fast). n: blocks, in each of which uncompressed and the "
    "method took turns. In brackets: where an immediate repeat lies, 19 times in 20 (bootstrap over the blocks)."
)
TIDY = ("accuracy", "timing", "selections_timing", "rates_timing")  # the tables that findings are taken from
CEILING = 2.0  # with a server that gives dense weights: a dense push and pull by the pull alone


def write(results: Path, names: Names) -> list[str]:
    """The sentences, also as a list of their own among the results."""
    tables = {name: pd.read_csv(results / f"{name}.csv") for name in TIDY if (results / f"{name}.csv").exists()}
    found = sentences(tables, names)
    (results / "findings.md").write_text("".join(f"- {sentence}\n" for sentence in found))
    return found


def sentences(tables: dict[str, pd.DataFrame], names: Names) -> list[str]:
    """From the tidy tables that there are, by the names of their files: "accuracy" and "timing", and the studies'."""
    found = [finding(tables, names) for finding in FINDINGS]
    return [sentence for sentence in found if sentence]


def compressed(timing: pd.DataFrame) -> pd.DataFrame:
    """A row for each run of a method that was not disturbed; uncompressed stands beside each."""
    table = summarise(timing)
    return table[(table["variant"] != "none") & table["disturbed"].isna()]


def pays(tables, names: Names) -> str:
    """Which models gain over all-gather, each by the variant whose gain is surest."""
    table = compressed(tables["timing"])
    table = table[table["topology"] == ALL_GATHER.name]
    gains, uncertain = [], []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        sure = rows[(rows["speedup_low"] > 1) & (rows["blocks"] >= LEAST_BLOCKS)]
        best = sure.loc[sure["speedup_low"].idxmax()] if len(sure) else rows.loc[rows["speedup"].idxmax()]
        found, inside = factor(best, names)
        if len(sure):
            gains.append(f"{found} times as fast on {names.model(model)} ({inside})")
        else:
            uncertain.append(f"on {names.model(model)}, at best {found} ({inside})")
    words = []
    if gains:
        words.append(f"Compared with uncompressed, an iteration is {listed(gains)}.")
    if uncertain:
        words.append(f"No gain is certain {listed(uncertain)}.")
    return " ".join(words)


def selection(tables, names: Names) -> str:
    """What DLGS gains over global Top-K with each kind of selection."""
    timing = tables.get("selections_timing", tables["timing"])
    fast, torch = (dlgs_by_topk(timing[timing["selection"] == kind], names) for kind in ("fast", "torch"))
    if not (fast and torch):
        return ""
    both = f"{names.variant('dlgs')} against global {names.variant('topk')}"
    return (
        f"{both}: with plain torch operations, as in the paper, {torch}; with compiled passes that choose the same "
        f"entries, {fast}."
    )


def dlgs_by_topk(timing: pd.DataFrame, names: Names) -> str:
    """The speed-up of DLGS by that of Top-K for each model, at its smallest ratio over all-gather."""
    sure, uncertain = [], []
    timed = claims.Timing(timing[timing["topology"] == ALL_GATHER.name])
    smallest = {about["model"]: (about, runs) for about, runs in timed.cells()}
    for model in names.models_in(smallest):
        about, runs = smallest[model]
        if claims.unusable(runs, "dlgs", "topk"):
            continue
        dlgs, topk = (claims.speedups(runs[method]) for method in ("dlgs", "topk"))
        estimate = quotient(dlgs, topk)
        over = links(runs["dlgs"].iloc[0])
        inside = ", ".join([f"ratio {about['ratio']:g}", *over, f"n = {min(len(dlgs), len(topk))}"])
        if estimate.low <= 1 <= estimate.high:
            uncertain.append(f"on {names.model(model)}, {interval(estimate)} ({inside})")
        else:
            sure.append(f"{interval(estimate)} times as fast on {names.model(model)} ({inside})")
    parts = ([listed(sure)] if sure else []) + ([f"no certain difference {listed(uncertain)}"] if uncertain else [])
    return listed(parts)


def order(tables, names: Names) -> str:
    """How often the paper's order of methods was found."""
    compared = claims.compare(tables["timing"], tables["accuracy"])
    found = compared[compared["statement"].isin(claims.ORDER)]["verdict"].value_counts()
    count = {verdict: int(found.get(verdict, 0)) for verdict in (HOLDS, FAILS, UNKNOWN)}
    if not sum(count.values()):
        return ""
    chain = ", ".join(map(names.variant, ("dlgs", "lags", "topk"))) + f" and last {names.variant('none')}"
    return (
        f"The paper's order from fastest to slowest is {chain}. Of {sum(count.values())} pairs that are next to each "
        f"other in it, over all models, ratios and topologies, {count[HOLDS]} agree with it, {count[FAILS]} contradict "
        f"it, and {count[UNKNOWN]} cannot be told."
    )


def server(tables, names: Names) -> str:
    """The surest gain with a server that gives dense weights."""
    table = compressed(tables["timing"])
    served = table["topology"].map(lambda name: TOPOLOGIES[name].owner == "server").astype(bool)
    table = table[served & (table["blocks"] >= LEAST_BLOCKS)]
    if not len(table):
        return ""
    best = table.loc[table["speedup_low"].idxmax()]
    found, inside = factor(best, names)
    return (
        f"With a parameter server that sends the weights back dense, as in the paper, compression shrinks what is "
        f"pushed and never what is pulled: over slow links no speed-up can pass {CEILING:g}. The surest gain is that "
        f"of {names.model(best['model'])}: {found} ({inside})."
    )


def rates(tables, names: Names) -> str:
    """Up to which rate of the links DLGS gains."""
    if "rates_timing" not in tables:
        return ""
    table = compressed(tables["rates_timing"])
    table = table[(table["variant"] == "dlgs") & (table["blocks"] >= LEAST_BLOCKS)].sort_values("rate_mbit")
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


FINDINGS: list[Callable] = [selection, pays, order, rates, server, learnt]


def factor(row, names: Names) -> tuple[str, str]:
    """A variant's speed-up against uncompressed with its interval, and all that decides it."""
    inside = [names.variant(row["variant"])]
    inside += [] if pd.isna(row["ratio"]) else [f"ratio {row['ratio']:g}"]
    inside += [] if pd.isna(row["refresh_every"]) else [f"s = {row['refresh_every']:g}"]
    inside += [] if pd.isna(row["selection"]) else [f"selection {row['selection']}"]
    inside += [*links(row), f"{row['workers']} workers", f"n = {row['blocks']} blocks"]
    return interval(Estimate(row["speedup"], row["speedup_low"], row["speedup_high"])), ", ".join(inside)


def links(row) -> list[str]:
    words = [] if pd.isna(row["rate_mbit"]) else [f"links of {row['rate_mbit']:g} Mb/s"]
    return words + ([f"{row['latency_ms']:g} ms from host to host"] if row.get("latency_ms", 0) > 0 else [])


def interval(found: Estimate) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def listed(words: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
