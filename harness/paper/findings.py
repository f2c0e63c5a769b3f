"""What was found, in a few sentences that the tidy tables decide; each says what its number depends on. No torch."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from harness.paper import claims
from harness.paper.claims import FAILS, HOLDS, UNKNOWN
from harness.report import captions
from harness.report.names import Names
from harness.report.summary import speedups, summarise
from harness.statistics import Estimate
from harness.topology import ALL_GATHER, TOPOLOGIES

TERMS = (
    "Ratio: the share of the gradient's entries that a method is to send. Density: the share that it sent. s: DLGS "
    "looks for new thresholds once in s iterations. Selection: how the entries are found, by plain torch operations as "
    "in the paper (torch) or in compiled passes (fast). n: blocks; in each, uncompressed and the method take turns. In "
    "brackets: the 95 % interval of a repeat, from how much launches differ, or the blocks of a run that was launched "
    "once; that a machine drifts over hours is not in it."
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
    """Which models gain over all-gather, each by the variant whose gain is surest; and the surest loss of all."""
    table = compressed(tables["timing"])
    table = table[table["topology"] == ALL_GATHER.name]
    gains, uncertain = [], []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        sure = rows[(rows["speedup_low"] > 1) & rows["enough"]]
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
    losses = table[(table["speedup_high"] < 1) & table["enough"]]
    if len(losses):
        worst = losses.loc[losses["speedup_high"].idxmin()]
        found, inside = factor(worst, names)
        words.append(
            f"Compression can also cost time: {found} times as fast on {names.model(worst['model'])} ({inside})."
        )
    return " ".join(words)


def selection(tables, names: Names) -> str:
    """What DLGS gains over global Top-K with each kind of selection, and where a fast one ends the gain."""
    timing = tables.get("selections_timing", tables["timing"])
    torch, fast = (dlgs_by_topk(timing[timing["selection"] == kind]) for kind in ("torch", "fast"))
    words, gone, uncertain = [], [], False
    for model in names.models_in(set(torch) & set(fast)):
        (slow, blocks, where), (quick, more, _) = torch[model], fast[model]
        n = f"n = {min(blocks, more)} blocks"
        words.append(f"{interval(slow)} and {interval(quick)} on {names.model(model)} ({', '.join([*where, n])})")
        uncertain = uncertain or any(one.low <= 1 <= one.high for one in (slow, quick))
        if slow.low > 1 and quick.low <= 1:
            gone.append(f"on {names.model(model)}")
    if not words:
        return ""
    dlgs, topk = names.variant("dlgs"), names.variant("topk")
    return (
        f"How many times as fast as global {topk} {dlgs} is, first where both select with plain torch operations as in "
        f"the paper, then in compiled passes that choose the same entries: {listed(words)}."
        + (" Where an interval holds 1, no difference is certain." if uncertain else "")
        + (f" So {dlgs}'s gain over {topk} {listed(gone)} comes from {topk}'s slow selection." if gone else "")
    )


def dlgs_by_topk(timing: pd.DataFrame) -> dict[str, tuple[Estimate, int, list[str]]]:
    """For each model, at its smallest ratio over all-gather: the speed-up of DLGS divided by that of Top-K, from how
    many blocks, and what else decides it."""
    timed, found = claims.Timing(timing[timing["topology"] == ALL_GATHER.name]), {}
    for about, runs in timed.cells():  # from the largest ratio to the smallest
        if not claims.unusable(runs, "dlgs", "topk"):
            blocks = min(len(speedups(runs[method])) for method in ("dlgs", "topk"))
            where = [f"ratio {about['ratio']:g}", *links(runs["dlgs"].iloc[0])]
            found[about["model"]] = timed.quotient(runs["dlgs"], runs["topk"], speedups), blocks, where
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
        f"The paper's order from fastest to slowest is {chain}. Of {sum(count.values())} neighbouring pairs in Table 2 "
        f"{count[HOLDS]} agree with it, {count[FAILS]} contradict it, and {count[UNKNOWN]} cannot be told."
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
        f"the pull, so over slow links no speed-up can pass {CEILING:g}: {names.model(best['model'])}, {who}, gains "
        f"{found} ({inside})."
    )


def rates(tables, names: Names) -> str:
    """Up to which rate of the links DLGS gains."""
    if "rates_timing" not in tables:
        return ""
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


FINDINGS: list[Callable] = [selection, pays, order, rates, server, learnt]


def factor(row, names: Names) -> tuple[str, str]:
    """A variant's speed-up against uncompressed with its interval, and all that decides it."""
    inside = [names.variant(row["variant"])]
    inside += [] if pd.isna(row["ratio"]) else [f"ratio {row['ratio']:g}"]
    inside += [] if pd.isna(row["refresh_every"]) else [f"s = {row['refresh_every']:g}"]
    inside += [] if pd.isna(row["selection"]) else [f"selection {row['selection']}"]
    inside += [*links(row), f"{row['workers']} workers", f"n = {row['blocks']} blocks{in_launches(row['launches'])}"]
    return interval(Estimate(row["speedup"], row["speedup_low"], row["speedup_high"])), ", ".join(inside)


def in_launches(launches: int) -> str:
    return f" in {launches} launches" if launches > 1 else ""


def links(row) -> list[str]:
    words = [] if pd.isna(row["rate_mbit"]) else [f"links of {row['rate_mbit']:g} Mb/s"]
    return words + ([f"{row['latency_ms']:g} ms from host to host"] if row.get("latency_ms", 0) > 0 else [])


def interval(found: Estimate) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def listed(words: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
