"""How tables and figures look: variants distinguished, names in order, columns that say something."""

import os
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.lines import Line2D

from dlgs_bench import looks
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.report import captions, style, tables
from dlgs_bench.report.names import Names

pytestmark = pytest.mark.unit


def test_no_two_of_280_variants_look_the_same():
    looks_of = [looks.line(i, "") for i in range(280)]
    assert len({(look["color"], look["linestyle"], look["marker"]) for look in looks_of}) == 280
    assert [i for i, look in enumerate(looks_of) if look["color"] == looks.BLACK] == [0]  # uncompressed


def test_areas_differ_in_a_grey_print():
    """Hues alone are not enough: DLGS, LAGS and 16 bits have almost the same grey."""
    names = Names(dict.fromkeys([*looks.COMMON, *(f"v{i}" for i in range(9))], ""), {})
    for variants in (["lags", "dlgs", "cast"], looks.COMMON, list(names.variants)):
        greys = [style.grey(colour) for colour in style.areas(variants, names).values()]
        steps = [one - other for one, other in pairwise(greys)]
        assert min(steps) == pytest.approx(0.47 / (len(variants) - 1)) and 0.4 < greys[-1] < greys[0] < 0.95
    assert style.grey("black") == 0 and style.grey("white") == pytest.approx(1)


def test_a_configurations_order_is_kept_and_strangers_come_last():
    names = Names({"b": "B", "a": "A"}, {})
    assert names.variants_in(["z", "a", "b", "c"]) == ["b", "a", "c", "z"]
    assert names.variant("z") == "z"


def test_no_colour_is_used_twice_before_all_are_used():
    names = ["none", "b", "topk", "a", "dlgs", "c", "d", "e"]
    numbers = {name: looks.number(name, names) for name in [*names, "stranger"]}
    assert len({looks.colour(number) for number in numbers.values()}) == len(names) == len(looks.COLOURS) + 1
    assert len(set(numbers.values())) == len(numbers) and [numbers[name] for name in ("none", "topk")] == [0, 1]


def test_common_methods_look_alike_in_every_configuration():
    every = [Names({name: name for name in order}, {}) for order in (["dlgs", "x", "none"], ["none", "cast", "dlgs"])]
    for method in ("none", "dlgs", "cast"):
        one, other = (style.of_variant(method, names) | {"label": ""} for names in every)
        assert one == other
    assert all((ROOT / "methods" / f"{name}.py").exists() for name in looks.COMMON)


@pytest.mark.parametrize("column, usual, other", [
    ("topology", "allgather", "ps-weights"), ("collective", "engine", "ring"), ("rate_mbit", 500.0, 100.0),
    ("workers", 2, 3), ("refresh_every", float("nan"), 32.0),
])  # fmt: skip
def test_tables_show_columns_only_where_they_say_something(column, usual, other, tmp_path):
    row = {
        "model": "m",
        "data_title": "d",
        "stand_in": False,
        "variant": "v",
        "ratio": 0.1,
        "refresh_every": float("nan"),
    }
    row |= {"topology": "allgather", "collective": "engine", "rate_mbit": 500.0, "workers": 2}
    headings = {"topology": "Topology", "collective": "Collective", "rate_mbit": "Links (Mb/s)", "workers": "Workers"}
    headings["refresh_every"] = "Refresh every"
    heading = headings[column]
    paths = SimpleNamespace(**{ext: tmp_path / f"t.{ext}" for ext in ("csv", "md", "tex", "html")})
    for values, said in (((usual, usual), False), ((usual, other), True)):
        shown = pd.DataFrame(tables.run_columns(row | {column: value}, Names({}, {})) for value in values)
        tables.save_table(shown, shown, "caption", paths)
        assert (heading in paths.md.read_text()) == said


DRAW = """
import sys
from itertools import pairwise
from types import SimpleNamespace
from dlgs_bench.report import captions, style
captions.of_script = lambda script: "a caption"
figure, axes = style.plt.subplots()
axes.plot([0, 1, 2], [1, 3, 2], label="a line")
axes.fill_between([0, 1, 2], [1, 3, 2], hatch="///")
axes.legend()
output = SimpleNamespace(svg=sys.argv[1] + ".svg", png=sys.argv[1] + ".png")
style.save(figure, "a note", SimpleNamespace(output=output))
"""
SETTINGS = "text.usetex: True\nfont.size: 23\nlines.linewidth: 9\naxes.facecolor: red\nsvg.fonttype: none\n"


@pytest.mark.slow
def test_equal_data_give_equal_bytes_whatever_a_users_matplotlibrc_says(tmp_path, monkeypatch):
    """This process and a process of a user with other settings draw the same figure."""
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "here")])
    monkeypatch.setattr(captions, "of_script", captions.of_script)  # ``DRAW`` replaces it
    exec(DRAW, {})
    style.plt.close()
    (tmp_path / "matplotlibrc").write_text(SETTINGS, encoding="utf-8")
    command = [sys.executable, "-c", DRAW, str(tmp_path / "there")]
    environment = os.environ | {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    for kind in ("svg", "png"):
        assert (tmp_path / f"here.{kind}").read_bytes() == (tmp_path / f"there.{kind}").read_bytes()


def test_a_legend_of_panels_has_each_label_once():
    figure, panels = style.panels(2, 4, 3.0)
    for axes, labels in zip(panels, ("ab", "bc"), strict=True):
        for label in labels:
            axes.plot([0], [0], label=label)
    style.legend_of(figure, panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    style.legend_of(figure, panels, only={"c", "a"})
    assert [text.get_text() for text in figure.legends[1].get_texts()] == ["a", "c"]
    plt.close(figure)


@given(labels=st.lists(st.integers(1, 60), min_size=1, max_size=14), width=st.sampled_from([5.2, 7.2, 10.8]))
@example(labels=[1, 1, 1, 1, 1, 63, 63, 1, 1], width=9.6)  # three columns of three labels are wider than four columns
def test_a_legend_is_as_wide_as_its_figure_at_most(labels, width):
    words = "as many as workers, 8 x 256, " * 3
    figure, _ = style.panels(1, width, 3.0)
    style.legend(figure, [Line2D([], []) for _ in labels], [words[:length] for length in labels])
    drawn = figure.legends[0].get_window_extent(figure.canvas.get_renderer()).width / figure.dpi
    plt.close(figure)
    assert drawn <= width
