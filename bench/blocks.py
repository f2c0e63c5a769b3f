"""Zero blocks: the time to find them on one core, compared with torch and with a lower bound.

    python bench/blocks.py results/bench [--quick]

The lower bound is the time to read all entries (4 bytes each) at the bandwidth of a copy, which reads and writes 8
bytes per entry, measured in the same rounds. Most of a block that is not zero need not be read. Both ways take turns.
Times are medians over rounds, and ratios of medians. The interval is the middle half of the rounds' own ratios.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import QUICK, parser
from saving import save

from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.training.results import machine

SIZES = [2**18, 2**24]  # 1 and 64 MiB
DENSITIES = [1.0, 0.1, 0.01, 0.0]  # of the blocks
BLOCK = 256
FLOOR_BYTES, COPY_BYTES = 4, 8  # an entry


def torch_backend(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32).view(-1, BLOCK).any(1)


def measure(size: int, density: float, rounds: int) -> list[dict]:
    kept = (torch.rand(size // BLOCK) < density).repeat_interleave(BLOCK)
    tensor = torch.randn(size) * kept
    target = torch.empty_like(tensor)
    ways: dict[str, Callable] = {
        "copy": lambda: target.copy_(tensor),
        "torch": lambda: torch_backend(tensor),
        "one pass": lambda: nonzero_blocks(tensor, BLOCK),
    }
    assert torch.equal(ways["torch"](), ways["one pass"]())
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    seconds = {name: np.array(result[1:]) for name, result in times.items()}  # the first round warms up
    floor = seconds.pop("copy") * FLOOR_BYTES / COPY_BYTES
    return [
        {
            "entries": size,
            "density": density,
            "way": name,
            "median_ms": 1e3 * np.median(result),
            "over_floor": np.median(result) / np.median(floor),
            "over_floor_low": np.quantile(result / floor, 0.25),
            "over_floor_high": np.quantile(result / floor, 0.75),
            "rounds": rounds - 1,
        }
        for name, result in seconds.items()
    ]


def main(folder: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    rounds = 6 if quick else 51
    rows = [row for size in SIZES for density in DENSITIES for row in measure(size, density, rounds)]
    save(rows, folder, "blocks", f"Blocks of {BLOCK} entries. One core of {machine('cpu')}.")


if __name__ == "__main__":
    asked = parser(__doc__, QUICK).parse_args()
    main(asked.folder, asked.quick)
