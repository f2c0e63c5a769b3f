"""The findings: a few sentences made from the tidy tables, each with the settings of its numbers. No torch."""

from collections.abc import Callable, Container
from pathlib import Path

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.paper import claims
from dlgs_bench.paper.claims import FAILS, HOLDS, UNKNOWN, few
from dlgs_bench.report import captions, kept
from dlgs_bench.report.load_runs import last_points
from dlgs_bench.report.names import Names, Row, data_title
from dlgs_bench.report.summary import SETTING, Repeats, over_all_gather, speedups, summarise
from dlgs_bench.report.tables import links_mbit
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
    "This machine computes more slowly than the paper's GPUs. In marked rows, links are slowed by the same "
    "factor. This keeps the ratio of computing to sending. Such a rate stands for the links of the paper's "
    "nodes, two of 25 Gb/s, or of the nodes that the configuration names. Times are of this machine; speed-ups "
    "are the result.",
)
# The tidy tables that findings are made from -> the runs in them: a kind of run, or a study.
TIDY = {"accuracy": "accuracy", "timing": "timing", "selections_timing": "selections", "rates_timing": "rates"}
HALF = "cast"  # the second baseline, 16 bits
SETTINGS = {"selection": "selection {}", "workers": "{} workers"}  # settings that all rows of a finding can share
CEILING = 2.0  # largest speed-up if the pull stays dense: a dense push and pull divided by a dense pull


def write(results: Path, names: Names, kept_runs: list[str], runs: Container[str]) -> list[str]:
    """The findings, which are also written to ``findings.md``.

    ``kept_runs``: tidy tables of kept accuracy runs. ``runs``: the kinds of runs and the studies whose tables count,
    since ``results`` can contain tables of another configuration.
    """
    wanted = [name for name, source in TIDY.items() if source in runs]
    tables = {name: pd.read_csv(results / f"{name}.csv") for name in wanted if (results / f"{name}.csv").exists()}
    if kept_runs:
        # A run can be in several tables, such as uncompressed in the tables of both ratios.
        tables["kept"] = names.comparable(pd.concat(kept.read(kept_runs))).drop_duplicates(["run", "commit", "step"])
    findings = sentences(tables, names)
    (results / "findings.md").write_text("".join(f"- {sentence}\n" for sentence in findings), encoding="utf-8")
    return findings


def sentences(tables: dict[str, pd.DataFrame], names: Names) -> list[str]:
    """The findings from the tidy tables, name -> table: "accuracy", "timing", "kept", and tables of studies."""
    if "timing" in tables:
        tables = tables | {"summary": summarise(tables["timing"])}
    findings = [finding(tables, names) for finding, needed in FINDINGS.items() if needed in tables]
    return [line for text in findings for line in text.splitlines()]


def with_papers_batch(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of models at the batch of the paper, or of which the paper has no batch."""
    return table.loc[[not claims.other_batch(row.model, row.batch) for row in table.itertuples()]]


def compressed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary of timing runs, without uncompressed and without disturbed runs."""
    return table[(table["variant"] != "none") & table["disturbed"].isna()]


def pays(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """The models that gain over all-gather, with their most significant gain, and the most significant loss.

    A line for each model. Each gain is also compared with the gain of 16 bits.
    """
    timing, table = tables["timing"], compressed(over_all_gather(tables["summary"]))
    repeats = Repeats(timing)
    table = table[table["variant"] != HALF]
    shared = [column for column in SETTINGS if table[column].nunique() == 1]
    gains, others = {}, []
    for model in names.models_in(table["model"]):
        best, significant = best_of(table[table["model"] == model])
        over = against_16_bits(timing, repeats, best)
        half = "" if over is None else f" Its speed-up divided by the speed-up of {names.variant(HALF)}: {over.text()}."
        title = names.model(model)
        papers = claims.other_batch(model, best["batch"])
        if significant and not papers:
            gains[title] = f"{makes_faster(best, names, shared)}.{half}"
        else:
            speedup, settings = factor(best, names, shared)
            method = names.variant(best["variant"])
            undecided = f"the paper's batch is {papers}" if papers else "" if best["enough"] else few(best["blocks"])
            why = (
                f"nothing is decided, because {undecided}"
                if undecided
                else "no method is significantly faster over all-gather"
            )
            others.append(f"On {title} {why}. The largest speed-up is {speedup} ({method}, {settings}).{half}")
    words = [f"Compression pays on {listed(list(gains))}."] if gains else []
    words += [*gains.values(), *others]
    losses = with_papers_batch(table[(table["speedup_high"] < 1) & table["enough"]])
    if len(losses):
        worst = losses.loc[losses["speedup_high"].idxmin()]
        words.append(f"Compression can also cost time: {makes_faster(worst, names, shared)}.")
    if words:
        everywhere = [SETTINGS[column].format(table[column].dropna().iloc[0]) for column in shared]
        words.append(
            "These speed-ups are against the fastest uncompressed of the same run"
            + (f", with {listed(everywhere)}." if shared else ".")
        )
    return "\n".join(words)


def best_of(rows: pd.DataFrame) -> tuple[pd.Series, bool]:
    """The row of one model with the most significant gain, and True.

    If no gain is significant, the row with the largest speed-up, and False. ``rows``: of a summary.
    """
    significant = rows[(rows["speedup_low"] > 1) & rows["enough"]]
    if len(significant):
        return significant.loc[significant["speedup_low"].idxmax()], True
    return rows.loc[rows["speedup"].idxmax()], False


def against_16_bits(timing: pd.DataFrame, repeats: Repeats, best: pd.Series) -> Estimate | None:
    """The speed-up of the row ``best`` divided by the speed-up of 16 bits on the same model and topology.

    None if 16 bits were not timed there.
    """
    here = timing[(timing[SETTING] == best[SETTING]).all(axis=1)]
    half = here[(here["variant"] == HALF) & here["disturbed"].isna()]
    return None if half.empty else repeats.quotient(here[here["run"] == best["run"]], half, speedups)


def to_gain(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """How long uncompressed waits for communication after backward, and the largest gain that computing allows.

    The wait is the number of the claim ``communicating``.
    """
    timing = over_all_gather(tables["timing"])
    timed = claims.Timing(timing)
    waits = {
        metadata["model"]: timed.estimate(run, claims.least_communication).value
        for metadata, run in timed.uncompressed()
        if not claims.unusable({"none": run}, "none")
    }
    if not waits:
        return ""
    models = sorted(waits, key=waits.__getitem__, reverse=True)
    table = over_all_gather(tables["summary"])
    dense = table[table["variant"] == "none"].set_index("model")
    faster = dense["iteration_s"] / dense["bound_s"]
    waited = listed([f"{waits[model]:.2f} s on {names.model(model)}" for model in models])
    bounds = listed([f"{faster[model]:.2f} times as fast on {names.model(model)}" for model in models])
    return (
        "For each second of computing, uncompressed waits for communication after backward, in the median block: "
        f"{waited}. Communication also slows the computing that it overlaps with. If an iteration took only as long as "
        f"the shortest forward and backward pass of any method, it would be {bounds}. This is a bound, without an "
        "interval."
    )


def selection(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """DLGS compared with Top-K, with each kind of selection, at every ratio."""
    timing = with_papers_batch(tables.get("selections_timing", tables["timing"]))
    torch, compiled = (dlgs_by_topk(timing[timing["selection"] == kind]) for kind in ("torch", "compiled"))
    cells = [cell for cell in torch if cell in compiled]
    if not cells:
        return ""
    dlgs, topk = names.variant("dlgs"), names.variant("topk")
    with_torch, with_compiled = (
        listed([f"{gains[cell][0].text()} on {names.model(cell[0])} at ratio {cell[1]:g}" for cell in cells])
        for gains in (torch, compiled)
    )
    blocks = min(gains[cell][1] for gains in (torch, compiled) for cell in cells)
    words = [
        f"{dlgs}'s speed-up divided by {topk}'s, if both select with plain torch operations as in the paper: "
        f"{with_torch}. If compiled passes select the same entries: {with_compiled} (n = {blocks} blocks or more)."
    ]
    faster = [{cell: gains[cell][0].low > 1 for cell in cells} for gains in (torch, compiled)]
    gone = []  # models on which DLGS is significantly faster with the paper's selection only
    for model in names.models_in(model for model, _ in cells):
        own = [cell for cell in cells if cell[0] == model]
        if all(faster[0][cell] for cell in own) and not any(faster[1][cell] for cell in own):
            gone.append(names.model(model))
    significant = [value for cells_faster in faster for value in cells_faster.values()]
    if not any(significant):
        words.append(f"No interval lies above 1, so {dlgs} is not significantly faster than {topk}.")
    elif not all(significant):
        words.append("If an interval contains 1, the difference is not significant.")
    if gone:
        words.append(
            f"On {listed(gone)}, {dlgs} is significantly faster than {topk} only with the paper's slow selection."
        )
    return " ".join(words)


def dlgs_by_topk(timing: pd.DataFrame) -> dict[tuple[str, float], tuple[Estimate, int]]:
    """(model, ratio) over all-gather -> DLGS's speed-up divided by Top-K's, and the number of blocks."""
    timed, gains = claims.Timing(over_all_gather(timing)), {}
    for metadata, runs in timed.cells:
        if not claims.unusable(runs, "dlgs", "topk"):
            blocks = min(len(timed.values(runs[method], speedups)) for method in ("dlgs", "topk"))
            gains[metadata["model"], metadata["ratio"]] = timed.quotient(runs["dlgs"], runs["topk"], speedups), blocks
    return gains


def order(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """How often the measured order of the methods agrees with the paper's order."""
    pairs = {statement: claims.TIMED[statement] for statement in claims.ORDER}
    compared = claims.compare_statements(pairs, claims.Timing(tables["timing"]))
    verdicts = [row["verdict"] for row in compared if not row["why"].startswith(claims.NO_RUN)]
    count = {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNKNOWN)}
    if not sum(count.values()):
        return ""
    # A configuration need not have all of the paper's methods.
    title = {n: names.variants.get(n) or plugins.describe("methods", n)["title"] for n in claims.PAPERS}
    chain = f"{title['dlgs']}, {title['lags']}, {title['topk']} and last {title['none']}"
    return (
        f"The paper's order from fastest to slowest is {chain}. Of the {sum(count.values())} pairs of neighbours in "
        f"this order in Table 2, {count[HOLDS]} agree with the paper, {count[FAILS]} contradict it, and "
        f"{count[UNKNOWN]} are undecided."
    )


def server(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """The most significant gain with a parameter server that returns dense weights."""
    table = tables["summary"]
    table = table[table["topology"].map(lambda name: TOPOLOGIES[name].owner == "server").astype(bool)]
    judged = with_papers_batch(compressed(table[table["enough"]]))
    if not len(judged):
        return ""
    best, significant = best_of(judged)
    speedup, settings = factor(best, names)
    gain = "the most significant gain" if significant else "the largest speed-up, which is not significant"
    which = "the only model timed so" if table["model"].nunique() == 1 else f"the model with {gain}"
    return (
        f"A parameter server sends the weights back dense, as in the paper. Compression then shrinks the push and not "
        f"the pull, so over slow links no speed-up can pass {CEILING:g}. {names.model(best['model'])}, {which}, is "
        f"{speedup} times as fast ({names.variant(best['variant'])}, {settings})."
    )


def rates(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """The highest link rate at which DLGS gains, for each model, with plain selection where it was timed."""
    table = with_papers_batch(compressed(summarise(tables["rates_timing"])))
    table = table[(table["variant"] == "dlgs") & table["enough"]].sort_values("rate_mbit")
    words = []
    for model in names.models_in(table["model"]):
        rows = table[table["model"] == model]
        plain = rows[rows["selection"] == "torch"]
        rows = plain if len(plain) else rows
        significant = rows[rows["speedup_low"] > 1]
        if len(significant):
            last = significant.iloc[-1]
            speedup, settings = factor(last, names)
            fastest = ", the fastest that was timed" if last["rate_mbit"] == rows["rate_mbit"].max() else ""
            at = f"up to {last['rate_mbit']:g} Mb/s{fastest}"
            if len(significant) < (rows["rate_mbit"] <= last["rate_mbit"]).sum():  # no gain over some slower links
                at = f"over links of {listed([f'{rate:g}' for rate in significant['rate_mbit']])} Mb/s"
            words.append(f"on {names.model(model)} {at}: {speedup} ({settings})")
        else:
            words.append(f"on {names.model(model)} at no rate from {captions.least_to_most(rows['rate_mbit'])} Mb/s")
    return f"{names.variant('dlgs')} gains over uncompressed {listed(words)}." if words else ""


def sends_little(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """The models on which DLGS sends far fewer entries than it is asked for, and how well the methods learn there."""
    points = tables["kept"]
    last = last_points(points)
    least: dict[tuple[str, float | None], float] = {}
    for one in claims.steady_density(points):
        if one.model in names.models and one.verdict == FAILS and one.value < 1:
            least[one.model, one.ratio] = min(one.value, least.get((one.model, one.ratio), one.value))
    words = []
    for (model, ratio), quotient in least.items():
        rows = last[(last["model"] == model) & (last["ratio"].isna() | (last["ratio"] == ratio))]
        rows = rows[rows["precision"].isin(rows.loc[rows["variant"] == "dlgs", "precision"])]
        ends = rows.groupby("variant")["test_accuracy"].mean() * 100
        pairs = [f"{names.variant(v)} {ends[v]:.1f} %" for v in claims.PAPERS if v in ends]
        words.append(
            f"On {trained_model(rows.iloc[0], names)} at ratio {ratio:g}, {names.variant('dlgs')} sends little: in the "
            f"epoch with the lowest density it sent {quotient:.2f} times the requested number of entries. Test "
            f"accuracy at the end of kept runs ({claims.epochs_text(rows)}, means over seeds): {listed(pairs)}. "
            "What it learns, and why: results/reference-long-training/README.md."
        )
    return " ".join(words)


def trained_model(row: Row, names: Names) -> str:
    """The title of a trained model, with its data if they are a stand-in."""
    return f"{names.model(row['model'])}, {data_title(row)}" if row["stand_in"] else names.model(row["model"])


def learnt(tables: dict[str, pd.DataFrame], names: Names) -> str:
    """The final training accuracies of uncompressed and DLGS, and the models that trained too few epochs."""
    last = last_points(tables["accuracy"])
    words, short = [], []
    for model in names.models_in(last["model"]):
        rows = last[last["model"] == model]
        name = trained_model(rows.iloc[0], names)
        if captions.too_short(rows.iloc[0]):
            short.append(f"{name} {claims.epochs_text(rows)}")
            continue
        own = rows[rows["variant"].isin(["none", "dlgs"])]
        every = own.groupby("seed")["variant"].transform("nunique")
        own = own[every == own["variant"].nunique()]  # the seeds that both have
        if own.empty:
            continue
        ends, ratios = own.groupby(["variant", "ratio"], dropna=False), rows["ratio"].nunique()
        pairs = [
            f"{names.variant(variant)} {accuracy:.1f} %" + (f" at ratio {ratio:g}" if ratio > 0 and ratios > 1 else "")
            for (variant, ratio), accuracy in (100 * ends["train_accuracy"].mean())[::-1].items()
        ]
        words.append(f"{name} ended at a training accuracy of {listed(pairs)} (n = {own['seed'].nunique()} seeds)")
    sentences = [f"{listed(words)}."] if words else []
    if short:
        sentences.append(f"The accuracy runs are too short to rank methods: {listed(short)}.")
    return " ".join(sentences)


# finding -> the table that it needs
FINDINGS: dict[Callable, str] = {
    pays: "timing",
    sends_little: "kept",
    selection: "timing",
    to_gain: "timing",
    order: "timing",
    rates: "rates_timing",
    server: "timing",
    learnt: "accuracy",
}


def makes_faster(row: Row, names: Names, shared: Container[str] = ()) -> str:
    """A clause such as "DLGS makes an iteration of VGG16 1.5 [1.4, 1.6] times as fast (ratio 0.01, ...)"."""
    speedup, settings = factor(row, names, shared)
    method, model = names.variant(row["variant"]), names.model(row["model"])
    return f"{method} makes an iteration of {model} {speedup} times as fast ({settings})"


def factor(row: Row, names: Names, shared: Container[str] = ()) -> tuple[str, str]:
    """A variant's speed-up with its interval, and the settings that decide it, without the settings in ``shared``."""
    settings = [] if pd.isna(row["ratio"]) else [f"ratio {row['ratio']:g}"]
    settings += [f"batch {row['batch']:g}"]
    settings += [] if pd.isna(row["refresh_every"]) else [f"s = {row['refresh_every']:g}"]
    settings += links(row)
    settings += [SETTINGS[key].format(row[key]) for key in SETTINGS if key not in shared and not pd.isna(row[key])]
    blocks = "block" if row["blocks"] == 1 else "blocks"
    settings.append(f"n = {row['blocks']} {blocks}{in_launches(row['launches'])}")
    return Estimate(row["speedup"], row["speedup_low"], row["speedup_high"]).text(), ", ".join(settings)


def in_launches(launches: int) -> str:
    """The end of a number of blocks, such as " in 3 launches"; empty for one launch."""
    return f" in {launches} launches" if launches > 1 else ""


def links(row: Row) -> list[str]:
    """The rate and the latency of the links in words, as far as they are known."""
    words = [f"links of {rate} Mb/s"] if (rate := links_mbit(row)) else []
    return words + ([f"{row['latency_ms']:g} ms from host to host"] if row.get("latency_ms", 0) > 0 else [])


def listed(words: list[str]) -> str:
    """The words as a list in a sentence, such as "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
