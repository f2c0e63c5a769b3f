"""Draws one quantity against epochs, a line per method: Figures 5 to 10."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style


def draw(snakemake, model: str, value: str, label: str, scale: float = 1) -> None:
    style.log_errors(snakemake)
    points = pd.read_csv(snakemake.input.tidy)
    points = points[points["model"] == model]
    methods = style.in_order(points["method"])
    figure, axes = plt.subplots(figsize=(5.2, 3.9), layout="constrained")
    for method in methods:
        seeds = points[points["method"] == method].groupby("step")
        epochs, mean = seeds["epoch"].mean(), seeds[value].mean() * scale
        axes.plot(epochs, mean, **style.line(method, methods))
        if points["seed"].nunique() > 1:
            sd = seeds[value].std() * scale
            colour = style.line(method, methods)["color"]
            axes.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)
    first = points.iloc[0]
    ratios = points["ratio"].dropna().unique()
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.set_title(f"{style.MODELS[model]}, {style.data_label(first)}, ratio {', '.join(f'{r:g}' for r in ratios)}")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    note = f"{style.setting(points)}; n = {points['seed'].nunique()} seed(s)"
    note += ", band: standard deviation" if points["seed"].nunique() > 1 else ""
    if first["train_epochs"] < 20:
        note += f"; {first['train_epochs']:g} of the recipe's {first['epochs']:g} epochs: too short to rank methods"
    figure.supxlabel(textwrap.fill(note, 95), fontsize=6.5, color="0.3", x=0.02, ha="left")
    style.save_figure(figure, snakemake.output)
