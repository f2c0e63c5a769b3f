"""Numbers that methods must get right: known answers by hand, and what estimators send in the long run."""

import pytest
import torch
from support import CLASSES, CPU, SPARSIFIERS, at, exchange_steps, make

from dlgs_bench.buckets import num_entries
from dlgs_bench.comm import collectives
from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket, Estimator
from dlgs_bench.exchange.quantisation import compiled_backend, ends, torch_backend
from dlgs_bench.exchange.selection import Threshold, TopK

pytestmark = pytest.mark.unit

ESTIMATORS = [name for name in SPARSIFIERS if issubclass(CLASSES[name], Estimator)]
DRAWS = {
    "normal": lambda size, generator: torch.randn(size, generator=generator),
    "Laplace": lambda size, generator: _signed(torch.empty(size).exponential_(generator=generator), generator),
    "uniform": lambda size, generator: torch.rand(size, generator=generator) * 2 - 1,
    "heavy-tailed": lambda size, generator: _signed(torch.rand(size, generator=generator) ** -0.4, generator),
    "unequal": lambda size, generator: (
        torch.randn(size, generator=generator) * 10 ** -torch.arange(4.0).repeat_interleave(size // 4)
    ),
}


def _signed(magnitudes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return magnitudes * (torch.rand(len(magnitudes), generator=generator) - 0.5).sign()


# By ratio and number of entries: the methods that keep the law in the fast tests, with every distribution or with one.
FAST = {
    (0.01, 2_000): {**dict.fromkeys(ESTIMATORS, tuple(DRAWS)), "dlgs": ("normal",), "micro": ("normal",)},
    (0.001, 20_000): {"gaussiank": ("unequal",)},
}
LONG_RUNS = [
    pytest.param(
        name, ratio, size, draw, marks=[] if draw in FAST.get((ratio, size), {}).get(name, ()) else pytest.mark.slow
    )
    for name in (*ESTIMATORS, "dlgs", "dlgs-rms", "dlgs-checked", "micro", "oktopk", "dgc")
    for ratio, size in ((0.01, 2_000), (0.01, 20_000), (0.001, 20_000))
    for draw in DRAWS
]
# Both reuse a threshold for 32 steps. At a low ratio residuals grow much in that time, so the law fails by design.
SENDS_MORE = [("dlgs", 0.001), ("oktopk", 0.001)]


@pytest.mark.parametrize("name, ratio, size, distribution", LONG_RUNS)
def test_about_k_entries_are_sent_in_the_long_run(name, ratio, size, distribution, measured):
    """The mean of steps 100 to 600 is between k / 2 and 2 k, with error feedback and one worker."""
    generator = torch.Generator().manual_seed(0)
    steps = [[DRAWS[distribution](size, generator)] for _ in range(600)]
    aggregates = run_workers(1, lambda comm: exchange_steps(comm, make(name, ratio=ratio), steps))[0]
    sent = [int(aggregate.count_nonzero()) for (aggregate,) in aggregates[99:]]
    mean = sum(sent) / len(sent) / (ratio * size)
    what = f"entries sent / k, steps 100 to 600, {distribution}, {size} entries, ratio {ratio:g}"
    low, high = (1.9, 10.0) if (name, ratio) in SENDS_MORE else (0.5, 2.0)
    measured(name, what, mean, at_least=low, at_most=high)
    assert max(sent) < 0.2 * size


def test_sidco_sends_the_k_largest_of_magnitudes_whose_threshold_cannot_be_extrapolated():
    method = make("sidco", ratio=0.01)
    method.stages[0] = 1
    rule = method.select(torch.linspace(1, 2, 1000), Bucket(0, torch.zeros(1000), ((1000,),)), at(1))
    assert isinstance(rule, TopK) and rule.k == 10


def test_gaussiank_uses_a_threshold_that_it_has_tested():
    """If a normal distribution does not describe the entries, the last correction would be a guess."""
    corrected = torch.cat([torch.full((9_900,), 1.0), torch.full((100,), 1.6)])
    rule = make("gaussiank", ratio=0.01).select(corrected, Bucket(0, torch.zeros(10_000), ((10_000,),)), at(1))
    chosen = rule.k if isinstance(rule, TopK) else int((corrected.abs() >= rule.h).sum())
    assert isinstance(rule, TopK | Threshold) and 1 <= chosen <= 400 / 3


def test_terngrad_clips_before_it_shares_a_scale():
    """The layer [8, 0] has an rms of 8 / sqrt(2). With a clip of 1 its 8 becomes the rms, whatever the other's
    scale."""
    ours = [[8.0, 0, 0, 0], [8.0, 8, 8, 8]]

    def work(comm):
        return exchange_steps(comm, make("terngrad", clip=1.0), [[torch.tensor(ours[comm.rank])]] * 300)

    draws = [float(aggregate[0]) for (aggregate,) in run_workers(2, work)[0]]
    assert sum(draws) / len(draws) == pytest.approx(8 / 2**0.5 + 8, abs=0.8)  # 16 without the worker's own clip


def test_a_gtopk_root_of_zeros_keeps_no_entry_from_its_worker():
    """The largest entries of two pairs cancel. Entries that no aggregate contains stay in the residuals."""
    ours = [[0.0, 3, 0], [2.0, 0, 0], [0.0, -3, 0], [2.0, 0, 0]]

    def work(comm):
        method = make("gtopk", ratio=0.34)
        (aggregate,) = exchange_steps(comm, method, [[torch.tensor(ours[comm.rank])]])[0]
        return aggregate, method.residuals[0]

    found = run_workers(4, work)
    aggregate, residuals = found[0][0], [residual for _, residual in found]
    assert torch.equal(aggregate, torch.zeros(3))
    assert [residual.tolist() for residual in residuals] == ours


@pytest.mark.parametrize(
    "part, entries, k", [(0.29, 100, 29), (0.57, 100, 57), (0.9999999, 10, 9), (1.0, 7, 7), (0.001, 10, 1)]
)
def test_a_share_of_entries_is_rounded_down_as_if_products_were_exact(part, entries, k):
    assert num_entries(part, entries) == k == make("topk", ratio=part).k(Bucket(0, torch.zeros(entries)))


def test_a_density_cap_is_rounded_as_k_is():
    method = make("dlgs", ratio=0.5, density_cap=0.29)
    rule = method.select(torch.arange(1.0, 101), Bucket(0, torch.zeros(100), ((100,),)), at(1))
    assert isinstance(rule, TopK) and rule.k == 29


@pytest.mark.parametrize("implementation", [compiled_backend, torch_backend])
@pytest.mark.parametrize("scale", [1e-24, 1.0, 3e19])
def test_norms_neither_under_nor_overflow_where_the_norm_itself_does_not(implementation, scale):
    vector = torch.tensor([1.0, 0, 3, 4], device=CPU) * scale
    found = implementation.norms(vector, ends(4, 2), 2)
    assert found.tolist() == pytest.approx([scale, 5 * scale], rel=1e-6)


def test_block_topk_finds_the_largest_of_tiny_blocks_and_qsgd_survives_a_huge_entry():
    def sent(name, gradient, **options):
        return run_workers(1, lambda comm: exchange_steps(comm, make(name, **options), [[torch.tensor(gradient)]]))[0]

    assert sent("block_topk", [1e-24, 2e-23], ratio=0.5, block=1)[0][0].tolist() == pytest.approx([0, 2e-23])
    assert torch.isfinite(sent("qsgd", [3e19, 1.0])[0][0]).all()


@pytest.mark.parametrize("world", [0, -1])
def test_a_collective_among_no_ranks_is_refused(world):
    with pytest.raises(ValueError, match=f"{world} is not a number of ranks"):
        collectives.load("ring", world)
