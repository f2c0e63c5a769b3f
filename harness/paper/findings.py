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
    "looks for new thresholds once in s iterations (32: our choice, the paper gives none). Selection: how the entries "
    "are found, by plain torch operations as in the paper (torch) or in compiled passes (fast). Times are measured in "
    "blocks, in which uncompressed and the method take turns; n counts them. A launch is one start of the processes. "
    "In brackets: where 95 % of repeats should lie, from the spread of launches, or of the blocks of a single launch. "
    "A machine's drift over hours is not in it."
)
TIDY = ("accuracy", "timing", "selections_timing", "rates_timing")  # the tables that findings are taken from
SETTINGS = {"selection": "selection {}", "workers": "{} workers"}  # which all rows of a finding may share
CEILING = 2.0  # with a server that gives dense weights: a dense push and pull by the pull alone


def write(results: Path, names: Names) -> list[str]:
    """The sentences, also as a list of their own among the results."""
    tables = {name: pd.read_csv(results / f"{name}.csv") for name in TIDY if (results / f"{name}.csv").exists()}
    found = sentences(tables, names)
    (results / "findings.md").write_text("".join(f"- {sentence}\n" for sentence in found))
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
    """Which models gain over all-gather, each by the variant whose gain is surest; and the surest loss of all."""
    table = compressed(tables["timing"])
    table = table[table["topology"] == ALL_GATHER.name]
    shared = [column for column in SETTINGS if table[column].nunique() == 1]
    gains, uncertain = {}, []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        sure = rows[(rows["speedup_low"] > 1) & rows["enough"]]
        best = sure.loc[sure["speedup_low"].idxmax()] if len(sure) else rows.loc[rows["speedup"].idxmax()]
        found, inside = factor(best, names, shared)
        if len(sure):
            gains[names.model(model)] = f"{found} times as fast on {names.model(model)} ({inside})"
        else:
            uncertain.append(f"on {names.model(model)}, where the largest is {found} ({inside})")
    words = []
    if gains:
        words.append(f"Compression pays on {listed(list(gains))}.")
        words.append(f"With the method of the highest lower bound, an iteration is {listed(list(gains.values()))}.")
    if uncertain:
        words.append(f"None of these methods surely gains {listed(uncertain)}.")
    losses = table[(table["speedup_high"] < 1) & table["enough"]]
    if len(losses):
        worst = losses.loc[losses["speedup_high"].idxmin()]
        found, inside = factor(worst, names, shared)
        words.append(
            f"Compression can also cost time: {found} times as fast on {names.model(worst['model'])} ({inside})."
        )
    if words:
        everywhere = [SETTINGS[column].format(table[column].dropna().iloc[0]) for column in shared]
        words.append("All are against uncompressed in the same run" + f", with {listed(everywhere)}." * bool(shared))
    return " ".join(words)


def to_gain(tables, names: Names) -> str:
    """How long uncompressed waits for its communication after backward, which is most of what compression can save."""
    table = summarise(tables["timing"])
    table = table[(table["variant"] == "none") & (table["topology"] == ALL_GATHER.name) & table["disturbed"].isna()]
    table = table.assign(waits=table["communication_s"] / (table["forward_s"] + table["backward_s"]))
    table = table[table["waits"].notna()].sort_values("waits", ascending=False)
    words = [f"{row['waits']:.2f} s on {names.model(row['model'])}" for _, row in table.iterrows()]
    bounds = [f"{1 + row['waits']:.2f}" for _, row in table.iterrows()]
    if not words:
        return ""
    return (
        f"Compression saves above all what uncompressed waits for its communication after backward: for each second of "
        f"computing, {listed(words)}. But for what communication takes from backward on shared cores, that bounds the "
        f"speed-up at about {listed(bounds)}."
    )


def selection(tables, names: Names) -> str:
    """What DLGS gains over global Top-K with each kind of selection, and where a fast one ends the gain."""
    timing = tables.get("selections_timing", tables["timing"])
    torch, fast = (dlgs_by_topk(timing[timing["selection"] == kind]) for kind in ("torch", "fast"))
    models = names.models_in(set(torch) & set(fast))
    if not models:
        return ""
    dlgs, topk = names.variant("dlgs"), names.variant("topk")
    slow, quick = (
        listed([f"{interval(found[model][0])} times as fast on {names.model(model)}" for model in models])
        for found in (torch, fast)
    )
    where = "; ".join(
        f"{names.model(model)}: {', '.join(torch[model][2])}, n = {min(torch[model][1], fast[model][1])} blocks"
        for model in models
    )
    uncertain = [one[model][0].low <= 1 <= one[model][0].high for one in (torch, fast) for model in models]
    gone = [f"on {names.model(model)}" for model in models if torch[model][0].low > 1 and fast[model][0].low <= 1]
    words = [
        f"Against global {topk}, {dlgs} is {slow} where both select with plain torch operations, as in the paper. "
        f"Where compiled passes choose the same entries, it is {quick} ({where})."
    ]
    if all(uncertain):
        words.append(f"So it is not certain that {dlgs} is faster: every interval holds 1.")
    elif any(uncertain):
        words.append("Where an interval holds 1, no difference is certain.")
    if gone:
        certain = "is certain, over these links, only where"
        words.append(f"So {dlgs}'s gain over {topk} {listed(gone)} {certain} {topk} selects slowly.")
    return " ".join(words)


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
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def listed(words: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
