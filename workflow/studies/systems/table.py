"""Claims about OmniReduce, hybrid parallelism and alternating dense steps, and our measurements.

Sources: OmniReduce (Fei et al., SIGCOMM 2021), halving-doubling and hybrid parallelism (a patent of Shanghai Ocean
University), and alternating sparse and dense communication (a patent of Alibaba). Each number is a ratio with its 95 %
interval of a repeat, from the blocks of one run, or from all runs that measured the same. If it compares two runs, the
interval covers a repeat of both.
"Holds": the whole interval is on the statement's side. "Does not hold": it is on the other side. Counts are exact.
Published ratios: 8 workers over 100 Gb/s. Measured ratios: processes that share a machine and use TCP over
shaped links."""

import pandas as pd

from dlgs_bench.paper import systems
from dlgs_bench.report import captions, tables
from dlgs_bench.report.log import Script, log_errors


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    inputs = ("sums", "training", "layers", "points", "hybrids", "learning")
    read = {name: pd.read_csv(getattr(snakemake.input, name)) for name in inputs if hasattr(snakemake.input, name)}
    compared = systems.compare(**read)
    settings = [
        f"{name.replace('_', ' ')}: {captions.setting(table)}" for name, table in read.items() if "machine" in table
    ]
    caption = f"{captions.of_script(snakemake)} {'; '.join(settings)}."
    tables.save_table(compared, systems.shown(compared), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
