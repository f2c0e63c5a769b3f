"""Write how many epochs the accuracy runs of a model train: as many as fit into their budget on this machine."""

import json
from pathlib import Path

from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel import length


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    spec = RunSpec.from_json(snakemake.params.spec)
    speed = length.speed(Path(snakemake.input.iterations).parent)
    content = length.length_info(spec) | {"train_epochs": speed.epochs(spec)}
    Path(snakemake.output[0]).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(snakemake)
