"""Selection: the selections of this project, of torch and of other methods, compared with torch.topk and a lower bound.

    python bench/selection.py results/bench [--quick]

It runs on one core, or on the GPU if there is one. Every candidate adds the gradient to the residual and takes entries
out of the sum, except torch.topk and kthvalue, which get the sum and only choose. The candidates take turns in every
round. Times are medians over rounds, and ratios of medians; the interval is the middle half of the rounds' own ratios.
The lower bound is the time to read gradient and residual and to write the residual (12 bytes per entry) at the
bandwidth of a copy, which reads and writes 8 bytes per entry, measured in the same rounds. DGC samples 1 % to estimate
its threshold (Lin et al., 2018). Gaussian-K reads the threshold off a normal distribution (Shi et al., 2019). Both send
about k entries.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import QUICK, parser
from saving import save

from dlgs_bench.exchange.selection import Threshold, TopK, compiled_backend, torch_backend
from dlgs_bench.training.results import machine

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = [270_000, 14_700_000, 23_700_000, 100_000_000]
RATIOS = [0.1, 0.01, 0.001]
FLOOR_BYTES, COPY_BYTES = 12, 8  # an entry
MOST = 2e8  # entries that all rounds of one size and ratio may see: an idle core needs under five minutes for all


def dgc(corrected: torch.Tensor, k: int, gradient: torch.Tensor):
    corrected.add_(gradient)
    sample = corrected[torch.randint(corrected.numel(), (max(100, corrected.numel() // 100),), device=corrected.device)]
    sample_k = max(1, round(k * sample.numel() / corrected.numel()))
    return torch_backend.take(corrected, Threshold(torch_backend.kth_magnitude(sample, sample_k)))


def gaussian_k(corrected: torch.Tensor, k: int, gradient: torch.Tensor):
    corrected.add_(gradient)
    h = NormalDist().inv_cdf(1 - k / corrected.numel() / 2) * corrected.std().item()
    return torch_backend.take(corrected, Threshold(h))


def candidates(residual: torch.Tensor, gradient: torch.Tensor, k: int) -> dict:
    """name -> a call that is given a copy of ``residual``."""
    total = residual + gradient
    h, workspace = compiled_backend.kth_magnitude(total, k), compiled_backend.workspace(residual)
    return {
        "torch.topk": lambda corrected: torch.topk(total.abs(), k, sorted=False),
        "kthvalue": lambda corrected: total.abs().kthvalue(total.numel() - k + 1),
        "top-k, torch": lambda corrected: torch_backend.take(corrected, TopK(k), gradient),
        "top-k, compiled": lambda corrected: compiled_backend.take(corrected, TopK(k), gradient, workspace),
        "threshold, torch": lambda corrected: torch_backend.take(corrected, Threshold(h), gradient),
        "threshold, compiled": lambda corrected: compiled_backend.take(corrected, Threshold(h), gradient, workspace),
        "DGC sampling": lambda corrected: dgc(corrected, k, gradient),
        "Gaussian-K": lambda corrected: gaussian_k(corrected, k, gradient),
    }


def measure(size: int, ratio: float, rounds: int, candidates_of: Callable = candidates) -> list[dict]:
    """One row for each of the candidates, which take turns. ``candidates_of``: see ``candidates``."""
    gradient, residual = torch.randn(2, size, device=DEVICE)
    corrected = torch.empty_like(residual)
    times: dict[str, list[float]] = {}

    def clock(name: str, call) -> None:
        begun = time.perf_counter()
        call()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        times.setdefault(name, []).append(time.perf_counter() - begun)

    chosen = candidates_of(residual, gradient, max(1, int(size * ratio)))
    for _ in range(rounds + 1):
        for name, call in chosen.items():
            clock("copy", lambda: corrected.copy_(residual))
            clock(name, lambda call=call: call(corrected))
    seconds = {name: np.array(result) for name, result in times.items()}
    # A copy runs before every candidate. The time of a round's copies is their median.
    seconds["copy"] = np.median(seconds["copy"].reshape(rounds + 1, -1), axis=1)
    seconds["floor"] = seconds["copy"] * FLOOR_BYTES / COPY_BYTES
    seconds = {name: result[1:] for name, result in seconds.items()}  # the first round warms up
    return [
        {
            "entries": size,
            "ratio": ratio,
            "selection": name,
            "median_ms": 1e3 * np.median(result),
            "times_faster_than_topk": np.median(seconds["torch.topk"]) / np.median(result),
            "over_floor": np.median(result) / np.median(seconds["floor"]),
            "over_floor_low": np.quantile(result / seconds["floor"], 0.25),
            "over_floor_high": np.quantile(result / seconds["floor"], 0.75),
            "rounds": rounds,
        }
        for name, result in seconds.items()
    ]


def main(folder: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    rows = []
    for size in SIZES[:2] if quick else SIZES:
        for ratio in RATIOS:
            print(f"{size} entries at {ratio}", file=sys.stderr, flush=True)
            rows += measure(size, ratio, rounds=3 if quick else min(15, max(3, int(MOST / size))))
    where = "One core of" if DEVICE.type == "cpu" else "On the GPU of"
    save(rows, folder, "selection", f"{where} {machine(DEVICE.type)}.")


if __name__ == "__main__":
    asked = parser(__doc__, QUICK).parse_args()
    main(asked.folder, asked.quick)
