"""Selection on one core: ours, torch's and the field's estimates, against torch.topk and the floor.

    python bench/selection.py results/bench [--quick]

Each candidate runs once per round, in turns; medians over rounds. The floor is what accumulating and
selecting must move (read gradient and residual, write residual: 12 bytes an entry) at the bandwidth of a
copy measured in the same rounds. DGC samples 1 % to estimate its threshold (Lin et al., 2018), Gaussian-K
reads it off a normal distribution (Shi et al., 2019); both send about, not exactly, k entries.
"""

import sys
import time
from pathlib import Path
from statistics import NormalDist, median

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.results import machine
from harness.select import Threshold, TopK, by_fast, by_torch

SIZES = [270_000, 14_700_000, 23_700_000, 100_000_000]
RATIOS = [0.1, 0.01, 0.001]


def dgc(acc: torch.Tensor, k: int):
    sample = acc[torch.randint(acc.numel(), (max(100, acc.numel() // 100),))]
    share = max(1, round(k * sample.numel() / acc.numel()))
    return by_torch.take(acc, Threshold(by_torch.kth_magnitude(sample, share)))


def gaussian_k(acc: torch.Tensor, k: int):
    h = NormalDist().inv_cdf(1 - k / acc.numel() / 2) * acc.std().item()
    return by_torch.take(acc, Threshold(h))


def candidates(gradient: torch.Tensor, k: int) -> dict:
    """name -> a call that takes the entries out of ``acc``."""
    h = by_fast.kth_magnitude(gradient, k)
    return {
        "torch.topk": lambda acc: torch.topk(acc.abs(), k, sorted=False),
        "kthvalue": lambda acc: acc.abs().kthvalue(acc.numel() - k + 1),
        "top-k, torch": lambda acc: by_torch.take(acc, TopK(k)),
        "top-k, fast": lambda acc: by_fast.take(acc, TopK(k)),
        "threshold, torch": lambda acc: by_torch.take(acc, Threshold(h)),
        "threshold, fast": lambda acc: by_fast.take(acc, Threshold(h)),
        "DGC sampling": lambda acc: dgc(acc, k),
        "Gaussian-K": lambda acc: gaussian_k(acc, k),
    }


def measure(size: int, ratio: float, rounds: int) -> list[dict]:
    gradient, residual = torch.randn(size), torch.randn(size)
    acc, target = torch.empty(size), torch.empty(size)
    k = max(1, int(size * ratio))
    times: dict[str, list[float]] = {}

    def clock(name: str, call) -> None:
        begun = time.perf_counter()
        call()
        times.setdefault(name, []).append(time.perf_counter() - begun)

    chosen = candidates(gradient, k)
    for _ in range(rounds + 1):
        clock("copy", lambda: target.copy_(gradient))
        clock("accumulate", lambda: torch.add(gradient, residual, out=acc))
        for name, call in chosen.items():
            acc.copy_(gradient)
            clock(name, lambda call=call: call(acc))
    medians = {name: median(found[1:]) for name, found in times.items()}
    floor_s = medians["copy"] * 12 / 8
    return [
        {
            "entries": size,
            "ratio": ratio,
            "selection": name,
            "median_s": seconds,
            "times_faster_than_topk": medians["torch.topk"] / seconds,
            "with_accumulate_over_floor": (seconds + medians["accumulate"]) / floor_s,
            "rounds": rounds,
        }
        for name, seconds in medians.items()
    ]


def main(folder: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    rows = []
    for size in SIZES[:2] if quick else SIZES:
        for ratio in RATIOS:
            print(f"{size} entries at {ratio}", file=sys.stderr, flush=True)
            rows += measure(size, ratio, rounds=3 if quick else 7)
    table = pd.DataFrame(rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "selection.csv", index=False, float_format="%.4g")
    text = table.to_markdown(index=False, floatfmt=".4g") + f"\n\nOne core of {machine('cpu')}.\n"
    (folder / "selection.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
