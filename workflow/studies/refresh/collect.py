"""Gathers the study of the refresh interval: curves, and the realised density of every step."""

from pathlib import Path

from harness.report import style
from harness.report.tidy import read

style.log_errors(snakemake)
points = [Path(path) for path in snakemake.input.points]
read(points, options=("refresh_every",)).to_csv(snakemake.output.accuracy, index=False)
steps = read([path.with_name("iterations.csv") for path in points], options=("refresh_every",))
steps = steps[["model", "method", "ratio", "refresh_every", "seed", "step", "phase", "density", "sent_bytes"]]
steps.to_csv(snakemake.output.density, index=False)
