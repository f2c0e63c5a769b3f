"""Join the runs to two tidy tables, one row per point and one row per iteration, and write their provenance."""

import json
from pathlib import Path

from dlgs_bench.report.load_runs import read_members, read_points
from dlgs_bench.report.log import Script, log_errors


def provenance(paths: list[str]) -> dict:
    """The provenance of all runs: per key the sorted list of their values."""
    values: dict[str, set] = {}
    for path in map(Path, paths):
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        for key, value in run["provenance"].items():
            values.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
    merged = {key: sorted(map(json.loads, texts), key=str) for key, texts in values.items()}
    dates = merged.pop("date")
    return {"first_run": dates[0], "last_run": dates[-1], "runs": len(paths)} | merged


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    inputs, output = snakemake.input, snakemake.output
    read_points(inputs.accuracy).to_csv(output.accuracy, index=False)
    if inputs.timing:
        read_members(inputs.timing).to_csv(output.timing, index=False)
    merged = provenance([*inputs.accuracy, *inputs.timing])
    Path(output.provenance).write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(snakemake)
