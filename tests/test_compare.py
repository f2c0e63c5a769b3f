"""Two result sets side by side, as a command."""

import gzip
from dataclasses import replace

import pandas as pd
import pytest
from test_claims import FASTER, timing_run
from test_findings import whole

from dlgs_bench.fingerprint import ROOT
from dlgs_bench.report import compare, compare_figure, sessions
from dlgs_bench.report.names import Names

pytestmark = pytest.mark.unit


def results(folder, rate=100.0, model="vgg16", **seconds):
    """A folder of results: the paper's methods in one cell, except for what is given."""
    runs = pd.concat(timing_run(method, s, model=model) for method, s in (FASTER | seconds).items())
    folder.mkdir()
    metadata = {"collective": "engine", "machine": "a machine", "latency_ms": 0.0, "selection": "torch"}
    whole(runs, rate=rate).assign(**metadata).to_csv(folder / "timing.csv", index=False)
    return folder


def test_rows_that_measured_the_same_are_compared_whatever_the_rate_of_links_in_proportion(tmp_path, capsys):
    one, other = results(tmp_path / "a"), results(tmp_path / "b", rate=200.0, lags=2.2, dlgs=2.0)
    assert compare.main([str(one), str(other)]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 speed-ups differ by less than 15 %" in said
    rows = [line for line in said.splitlines() if line.startswith("| vgg16, batch 32")]
    assert [line.split("|")[2].split(",")[0].strip() for line in rows] == [
        "dlgs",
        "lags",
        "topk",
    ]  # most different first
    assert (
        "| 4.00 [" in rows[0]
        and "| 2.00 [" in rows[0]
        and [cell.strip() for cell in rows[0].split("|")[-3:-1]] == ["0.50", "no"]
    )
    assert "links of 100 Mb/s" in said and "links of 200 Mb/s" in said


def test_a_set_agrees_with_itself_in_every_row(tmp_path):
    table = compare.read(results(tmp_path / "a"))
    both = compare.join_sets(table, table)
    assert len(both) == 3 and both[["close", "inside_a", "inside_b"]].all(axis=None)
    assert compare.sentence(both).startswith("3 of 3 speed-ups differ by less than 15 % (median difference 0 %)")


def test_a_row_without_an_interval_is_neither_inside_nor_outside(tmp_path):
    table = compare.read(results(tmp_path / "a"))
    both = compare.join_sets(table, table.assign(speedup_low=float("nan"), speedup_high=float("nan")))
    assert "3 speed-ups of B lie in A's intervals, 0 of 0 speed-ups of A in B's" in compare.sentence(both)
    assert set(compare.shown(both)["Agree"]) == {"yes"}


def test_a_speed_up_of_a_disturbed_run_is_shown_and_not_counted(tmp_path):
    table = compare.read(results(tmp_path / "a"))
    disturbed = table.assign(
        disturbed=table["disturbed"].astype(object).where(table["variant"] != "dlgs", "other work")
    )
    for one, other in ((table, disturbed), (disturbed, table)):
        both = compare.join_sets(one, other)
        said = compare.sentence(both)
        assert said.startswith("2 of 2 speed-ups") and said.endswith(" 1 speed-ups of disturbed runs are not counted.")
        agree = compare.shown(both).set_index("Method")["Agree"]
        assert [method.split(",")[0] for method in agree.index[agree == "disturbed"]] == ["dlgs"]
    every = compare.join_sets(table.assign(disturbed="other work"), table)
    assert compare.sentence(every) == "3 speed-ups of disturbed runs are not counted."


@pytest.mark.parametrize("changed", [{"batch": 8}, {"data": "cifar10"}, {"optimizer": "adamw"}], ids=str)
def test_another_batch_data_set_or_optimizer_is_another_measurement(tmp_path, changed):
    one, other = compare.read(results(tmp_path / "a")), compare.read(results(tmp_path / "b"))
    alike = {"batch": 32, "data": "images", "optimizer": "sgd"}
    one, other = one.assign(**alike), other.assign(**alike)
    assert len(compare.join_sets(one, other)) == 3
    assert compare.join_sets(one, other.assign(**changed)).empty


def test_a_sweep_of_rates_is_compared_rate_by_rate(tmp_path):
    table = pd.read_csv(results(tmp_path / "a") / "timing.csv")
    faster = table.assign(rate_mbit=300.0, run=table["run"] + "-300")
    pd.concat([table, faster]).to_csv(tmp_path / "rates.csv")
    sweep = compare.read(tmp_path / "rates.csv")
    assert len(compare.join_sets(sweep, sweep)) == 2 * 3
    assert compare.join_sets(sweep, compare.read(tmp_path / "a")).empty


def test_what_is_no_set_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" * 99)[:20])
    table = pd.read_csv(results(tmp_path / "a") / "timing.csv")
    table.assign(iteration_s="fast").to_csv(tmp_path / "words.csv")
    wrong = [(tmp_path / f"{name}.csv", "not a table of timing runs") for name in ("other", "words")]
    wrong += [(tmp_path, "there is no timing.csv"), (tmp_path / "cut.csv.gz", "not a table of timing runs")]
    for path, words in wrong:
        assert compare.main([str(path), str(path)]) == 1
        line = capsys.readouterr().err
        assert words in line and line.count("\n") == 1


def test_the_kept_sets_can_be_compared(capsys):
    kept = ROOT / "results"
    again = map(str, sorted(kept.glob("reference-again/*_timing.csv")))
    assert compare.main([str(kept / "reference"), *again]) == 0
    assert "| reference (A) " in capsys.readouterr().out


def test_of_more_than_two_sets_each_is_compared_with_the_first(tmp_path, capsys):
    """A disturbed run does not count, and a set without a common row has no agreement."""
    one, near, far = (results(tmp_path / name, rate=r, **s) for name, r, s in [
        ("one", 100.0, {}), ("near", 200.0, {"dlgs": 1.05, "lags": 3.0}), ("far", 100.0, {})])  # fmt: skip
    pd.read_csv(far / "timing.csv").assign(batch=8).to_csv(far / "timing.csv")
    table = pd.read_csv(near / "timing.csv")
    own_disturbed = table["disturbed"].astype(object).where(table["variant"] != "topk", "other work")
    table.assign(disturbed=own_disturbed).to_csv(tmp_path / "near_timing.csv")
    assert compare.main([str(one), str(tmp_path / "near_timing.csv"), str(far)]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    both = compare.join_sets(compare.read(one), compare.read(tmp_path / "near_timing.csv"))
    counted = both[~both["disturbed"]]
    assert len(counted) == 2 and counted["close"].sum() == 1
    inside = [str(counted[f"inside_{name}"].sum()) for name in "ab"]
    off = f"{100 * compare.median_difference(counted):.0f} %"
    assert rows[2] == ["one (A)", "a machine", "100", "", "", "", "", ""]
    assert rows[3] == ["near", "a machine", "200", "2", "1", off, *inside]
    assert rows[4] == ["far", "a machine", "100", "0", "", "", "", ""]


def test_the_figure_has_a_panel_per_model_and_a_marker_per_set_that_was_not_disturbed(tmp_path, capsys):
    one, other = results(tmp_path / "a"), results(tmp_path / "b", dlgs=2.0, topk=1.0)
    assert compare.main([str(one), str(other), "--figure", str(tmp_path / "sets.svg")]) == 0
    assert "The figure is in" in capsys.readouterr().out and "vgg16, batch 32" in (tmp_path / "sets.svg").read_text()
    tables = [compare.read(one), compare.read(other)]
    tables[1]["disturbed"] = tables[1]["disturbed"].astype(object).where(tables[1]["variant"] != "topk", "other work")
    sets = list(zip("ab", tables, strict=True))
    (axes,) = (axes for axes in compare_figure.draw(sets).axes if axes.get_visible())
    drawn = {bars.get_label(): bars[0].get_xdata() for bars in axes.containers}
    expected = [table[table["disturbed"].isna() & (table["variant"] != "none")]["speedup"] for table in tables]
    assert {name: sorted(values) for name, values in drawn.items()} == {
        name: sorted(values) for name, values in zip("ab", expected, strict=True)
    }
    assert len(drawn["b"]) == len(drawn["a"]) - 1
    assert compare.main([str(one), str(other), "--figure", str(tmp_path / "sets.png")]) == 1
    assert "does not end in .svg" in capsys.readouterr().err


def test_the_range_over_sessions_stands_next_to_the_interval_of_one_session(tmp_path):
    """Sessions with the same row; another baseline, batch or engine, and a disturbed run do not count."""
    sets = {"own": {}, "same": {}, "slower": {"dlgs": 2.0}, "old": {"dlgs": 0.5}}
    sets |= {"other": {"dlgs": 0.1}, "bad": {"dlgs": 0.2}, "horovod": {"dlgs": 0.3}}
    files = {name: results(tmp_path / name, **seconds) / "timing.csv" for name, seconds in sets.items()}
    tables = {name: pd.read_csv(file).assign(bucketing="planned", engine="torch_dist") for name, file in files.items()}
    tables["old"] = tables["old"].drop(columns="bucketing")
    tables["other"]["batch"] = 8
    tables["horovod"]["engine"] = "horovod"
    tables["bad"]["disturbed"] = "other work"
    for name, file in files.items():
        tables[name].to_csv(file, index=False)
    names = Names({}, {})
    kept = sessions.kept_speedups(files.values(), ["vgg16"], names)
    assert len(kept) == len(sets) - 1 and not sessions.kept_speedups(files.values(), ["resnet20"], names)
    table = sessions.over_sessions(compare.summarise(tables["own"]), kept).set_index("variant")
    assert table.loc["dlgs", sessions.RANGE].tolist() == pytest.approx([2, 4, 2])
    assert sessions.cell(table.loc["dlgs"].to_dict() | {"variant": "dlgs"}) == "2.00 to 4.00 (2)"
    assert sessions.cell(table.loc["topk"].to_dict() | {"variant": "topk"}) == ""  # equal in all sessions
    changed = sessions.kept_speedups(files.values(), ["vgg16"], replace(names, changed=frozenset({"dlgs"})))
    table = sessions.over_sessions(compare.summarise(tables["own"]), changed).set_index("variant")
    assert table.loc["dlgs", "sessions"] == 1
    fixed = sessions.over_sessions(compare.summarise(tables["own"].assign(slowdown=1.0)), kept)
    assert fixed["sessions"].isna().all() and set(map(sessions.cell, fixed.to_dict("records"))) == {""}
