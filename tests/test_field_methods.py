"""The field's methods: of each, the property that makes it itself. The laws of all methods are in test_methods.py."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import at, examples, exchange_of, make, one_step
from torch import Tensor

from dlgs_bench.comm.collectives import HEADER_BYTES
from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket, Method, Sum, Threshold, TopK
from dlgs_bench.exchange.transport import Transport

pytestmark = pytest.mark.unit


@dataclass
class Worker:
    """What one worker has after some steps on a bucket."""

    aggregates: list[Tensor]
    method: Method
    transport: Transport  # of the last step

    @property
    def residual(self) -> Tensor:
        return self.method.residuals[0]


def shares(steps: int, workers: int, size: int, seed: int = 0) -> list[list[Tensor]]:
    """Normally distributed gradients, already divided by the number of workers, by step and worker."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(size, generator=generator) / workers for _ in range(workers)] for _ in range(steps)]


def run(name: str, steps: Sequence[Sequence[Tensor]], shapes=(), how=(), **options) -> list[Worker]:
    """Every worker after these steps, on one bucket with layers of ``shapes``; ``how``: options of the answers."""

    def work(comm) -> Worker:
        method = make(name, **options)
        exchange = exchange_of(comm, method, [steps[0][comm.rank]], **dict(how))
        exchange.buckets[0] = replace(exchange.buckets[0], shapes=shapes)
        numbered = enumerate(steps, start=1)
        found = [one_step(comm, exchange, [step[comm.rank]], number)[0] for number, step in numbered]
        return Worker(found, method, exchange.transport)

    return run_workers(len(steps[0]), work)


def mean(step: Sequence[Tensor]) -> Tensor:
    """The mean of the workers' gradients: the sum of their shares, in rank order."""
    return reduce(torch.add, step)


def random(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


# 16 bits


@pytest.mark.parametrize("dtype, unit", [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_cast_errs_by_one_rounding_for_each_worker(measured, dtype, unit):
    for workers in (1, 3):
        step = shares(1, workers, 1000)[0]
        found = run("cast", [step], dtype=dtype)[0].aggregates[0]
        # One rounding of each share, and one of each addition.
        bound = (
            workers * unit * mean([share.abs() for share in step]) * 1.01 + workers * 2**-25
        )  # which is what float16 loses
        error = ((found - mean(step)).abs() / bound).max()
        measured("cast", f"error / one {dtype} rounding a worker and addition, largest", error, at_most=1)


@pytest.mark.parametrize("collective", ["engine", "ring"])
def test_cast_sends_half_the_bytes(measured, collective):
    step, how = shares(1, 3, 999)[0], {"collective": collective}
    half, whole = (run(name, [step], how=how)[0].transport.sent_bytes for name in ("cast", "none"))
    measured("cast", "bytes / uncompressed", half / whole, at_least=0.5, at_most=0.5)


# Random-k


def test_random_k_is_a_dense_sum_of_k_values_at_places_that_all_know():
    steps = shares(3, 3, 1000)
    requests = [
        next(make("randomk").exchange(Bucket(0, share.clone()), at(1, rank))) for rank, share in enumerate(steps[0])
    ]
    assert all(isinstance(r, Sum) and r.indices is None and r.values.shape == (100,) for r in requests)
    workers = run("randomk", steps, error_feedback=False)
    for found, step in zip(workers[0].aggregates, steps, strict=True):
        sent = found != 0
        assert sent.sum() == 100 and torch.equal(found[sent], mean(step)[sent])
    assert workers[0].transport.sent_bytes == 4 * 100


def test_random_k_chooses_every_entry_at_the_rate_k_over_n(measured):
    draws, method, chosen = 4000, make("randomk", ratio=0.2, error_feedback=False), torch.zeros(50)
    for step in range(1, draws + 1):
        segments = method.exchange(Bucket(0, torch.ones(50)), at(step))
        try:
            segments.send(next(segments).values)
        except StopIteration as end:
            chosen += end.value
    errors = (chosen / draws - 0.2).abs() / (0.2 * 0.8 / draws) ** 0.5
    measured("randomk", "largest error of the rate of an entry, k/n, in standard errors", errors.max(), at_most=5)


def test_random_k_leaves_drop_out_and_augmentation_their_random_numbers():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for name in ("randomk", "qsgd", "terngrad", "powersgd"):
        run(name, shares(2, 2, 60), shapes=((6, 10),))
    assert torch.equal(torch.get_rng_state(), before)


# Signs


def test_ef_sign_sends_a_bit_an_entry_and_a_mean_magnitude_a_layer(measured):
    shapes, size = ((3, 5), (7,), (1,)), 23
    (worker,) = run("efsign", [[random(size)]], shapes)
    for sent, layer in zip(worker.aggregates[0].split((15, 7, 1)), random(size).split((15, 7, 1)), strict=True):
        error = (sent - layer.sign() * layer.abs().mean()).abs().max()
        measured("efsign", "largest difference from sign x mean magnitude of the layer", error, at_most=1e-6)
    torch.testing.assert_close(worker.aggregates[0] + worker.residual, random(size))
    assert worker.transport.sent_bytes == 3 * 4 + 3 + HEADER_BYTES


# Quantisation


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_has_at_most_its_papers_variance_in_packed_bits(measured, bits):
    size, block, s = 600, 64, 2 ** (bits - 1) - 1
    gradient = random(size)
    (worker,) = run("qsgd", [[gradient]] * 200, bits=bits, block=block)
    error = torch.stack([(found - gradient).square() for found in worker.aggregates]).mean(0)
    for part, of in zip(error.split(block), gradient.split(block), strict=True):
        d = len(part)
        variance = part.sum() / of.square().sum() / min(d / s**2, d**0.5 / s)
        what = f"variance / min(d/s^2, sqrt(d)/s) of the squared norm, {bits} bits"
        measured("qsgd", what, variance, at_most=1.1)  # 1.1: a mean over 200 draws
    assert worker.transport.sent_bytes == 4 * 10 + size * bits // 8 + HEADER_BYTES


def test_qsgd_gives_the_norm_of_its_block_where_one_entry_is_all_of_it():
    gradient = torch.zeros(100)
    gradient[3], gradient[70] = -2.5, 1e-3
    (worker,) = run("qsgd", [[gradient]], block=64)
    assert torch.equal(worker.aggregates[0], gradient)


def test_workers_round_independently():
    """Otherwise the errors of workers with equal gradients would add up instead of averaging out."""
    gradient, workers = random(2000), 4
    one = run("qsgd", [[gradient]])[0].aggregates[0] - gradient
    many = run("qsgd", [[gradient / workers] * workers])[0].aggregates[0] - gradient
    assert many.square().sum() < 0.5 * one.square().sum()


def test_terngrad_sends_minus_s_zero_or_s_for_the_largest_s_of_all_workers(measured):
    shapes, sizes = ((10, 20), (40,)), (200, 40)
    step = shares(1, 3, 240)[0]
    step[1][7] = 50.0  # clipped
    workers = run("terngrad", [step], shapes)
    for start, size in zip((0, 200), sizes, strict=True):
        layers = [share[start : start + size] for share in step]
        bounds = [2.5 * layer.square().mean().sqrt() for layer in layers]
        s = max(layer.clamp(-b, b).abs().max() for layer, b in zip(layers, bounds, strict=True))
        levels = workers[0].aggregates[0][start : start + size] / s
        off = (levels - levels.round()).abs().max()
        measured("terngrad", "distance of an aggregate from a multiple of s, in s, largest", off, at_most=1e-5)
        assert set(levels.round().int().tolist()) <= set(range(-3, 4))
    assert workers[0].transport.sent_bytes == 2 * 4 + 240 * 2 // 8 + HEADER_BYTES


@pytest.mark.slow
def test_terngrad_is_unbiased_for_the_clipped_gradient(measured):
    gradient, draws = random(60), 3000
    gradient[0] = 30.0
    (worker,) = run("terngrad", [[gradient]] * draws)
    found = torch.stack(worker.aggregates)
    bound = 2.5 * gradient.square().mean().sqrt()
    clipped = gradient.clamp(-bound, bound)
    errors = ((found.mean(0) - clipped).abs() - 1e-6).clamp(min=0) / (found.std(0) / draws**0.5).clamp(min=1e-9)
    what = f"largest error of the mean of {draws} draws of clipped gradients, in standard errors"
    measured("terngrad", what, errors.max(), at_most=5)
    assert clipped[0] < 30


@pytest.mark.parametrize(
    ("name", "bits"), [("quantised", 4), ("quantised", 5), ("quantised", 8), ("loco", 4), ("loco", 8)]
)
@given(size=st.integers(1, 700), workers=st.integers(1, 4), seed=st.integers(0, 2**16))
@examples(0.2)
def test_two_steps_of_quantisation_err_by_two_roundings(measured, name, bits, size, workers, seed):
    """This holds for every size, also one that N does not divide, before there are old errors to add."""
    step, levels = shares(1, workers, size, seed)[0], 2 ** (bits - 1) - 1
    found = run(name, [step], bits=bits)
    first = sum(share.abs().max() / levels / 2 for share in step)
    second = (mean(step).abs().max() + first) / levels / 2
    error = (found[0].aggregates[0] - mean(step)).abs().max() / (first + second)
    measured(name, f"error / two roundings, {bits} bits, largest", error, at_most=1.001)


def test_two_steps_of_quantisation_send_each_entry_packed_once_to_be_summed_and_once_to_all():
    size, workers, block = 4096, 4, 256
    for bits in (4, 5, 8):
        for worker in run("quantised", shares(1, workers, size), bits=bits, block=block):
            part = size // workers * bits // 8 + 4 * size // workers // block
            assert worker.transport.sent_bytes == (workers - 1) * part + part + HEADER_BYTES


def test_loco_adds_an_average_of_old_errors_and_forgets_them_in_time():
    steps, error = [[random(300, step)] for step in range(1, 8)], torch.zeros(300)
    (worker,) = run("loco", steps, average=0.8, reset_every=4)
    for number, ((gradient,), found) in enumerate(zip(steps, worker.aggregates, strict=True), start=1):
        error = torch.zeros(300) if number == 5 else error
        wanted = gradient + error
        rounded = run("quantised", [[wanted]], bits=4)[0].aggregates[0]
        torch.testing.assert_close(found, rounded)
        error = 0.8 * error + 0.2 * (wanted - rounded)
    torch.testing.assert_close(worker.method.errors[0], error)


def test_loco_without_an_average_loses_nothing_in_either_rounding():
    steps = shares(5, 3, 500)
    workers = run("loco", steps, average=0.0)
    kept = sum(w.method.errors[0] for w in workers) + torch.cat([w.method.sum_errors[0] for w in workers])
    torch.testing.assert_close(sum(workers[0].aggregates) + kept, sum(map(mean, steps)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["cast", "efsign", "qsgd", "terngrad", "powersgd", "quantised", "loco"])
def test_nan_on_one_worker_reaches_all(name):
    step = shares(1, 3, 60)[0]
    step[2][7] = float("nan")
    for worker in run(name, [step], shapes=((6, 10),)):
        assert worker.aggregates[0].isnan().any()


# PowerSGD


@pytest.mark.parametrize("shape", [(12, 5), (4, 30), (6, 2, 2, 3), (1, 9)])
def test_power_sgd_of_full_rank_is_the_exact_mean(measured, shape):
    size = torch.Size(shape).numel()
    steps = shares(3, 3, size + 4)
    worker = run("powersgd", steps, (shape, (4,)), rank=min(shape[0], size // shape[0]))[0]
    for found, step in zip(worker.aggregates, steps, strict=True):
        error = (found - mean(step)).abs().max()
        # float32, through a basis whose condition is chance: below 1e-5 on AMD's processors, 1.6e-5 on Intel's
        measured("powersgd", "largest difference from the dense mean, full rank", error, at_most=3e-5)


def test_power_sgd_recovers_a_fixed_gradient_of_low_rank_and_does_not_without_its_last_factors(measured):
    """The rank is 2 of 3. A warm start finds the two largest factors; there is no residual that could find them."""
    left, right = random(40 * 3, 1).view(40, 3), random(3 * 30, 2).view(3, 30)
    gradient = left @ torch.diag(torch.tensor([1.0, 0.9, 0.3])) @ right
    best = torch.linalg.svdvals(gradient)[2].item()

    def error(worker: Worker, step: int) -> float:
        return (worker.aggregates[step].view(40, 30) - gradient).norm().item()

    (warm,) = run("powersgd", [[gradient.view(-1)]] * 15, ((40, 30),), rank=2, error_feedback=False)
    assert error(warm, 0) > 1.05 * best
    what = "error after 15 steps / error of the best approximation, rank 2 of 3"
    measured("powersgd", what, error(warm, 14) / best, at_least=0.999, at_most=1.01)
    (enough,) = run("powersgd", [[gradient.view(-1)]] * 3, ((40, 30),), rank=3, error_feedback=False)
    what = "norm of the error / norm of the gradient after 3 steps, rank 3 of 3"
    measured("powersgd", what, error(enough, 2) / gradient.norm(), at_most=1e-4)


def test_power_sgd_asks_for_two_dense_sums_and_starts_alike_everywhere():
    shapes, rank = ((8, 6), (5,), (3, 2, 2)), 2
    steps = shares(2, 2, 65)
    workers = run("powersgd", steps, shapes, rank=rank)
    assert workers[0].transport.sent_bytes == 4 * (rank * (8 + 6 + 3 + 4) + 5)
    assert all(map(torch.equal, workers[0].method.factors[0], workers[1].method.factors[0]))
    first = [next(make("powersgd").exchange(Bucket(0, steps[0][0].clone(), shapes), at(1, rank))) for rank in (0, 1)]
    assert torch.equal(first[0].values, first[1].values)


def test_power_sgd_loses_nothing_between_workers():
    steps = shares(4, 3, 48)
    workers = run("powersgd", steps, ((8, 6),), rank=1)
    kept, sent = sum(w.residual for w in workers), sum(workers[0].aggregates)
    torch.testing.assert_close(kept + sent, sum(map(mean, steps)), atol=1e-5, rtol=1e-4)


# Momentum


def test_dgc_that_sends_all_is_sgd_with_momentum_and_masked_plain_sgd(measured):
    steps = shares(5, 2, 50)
    plain, masked = (run("dgc", steps, ratio=1.0, masking=m)[0].aggregates for m in (False, True))
    velocity = torch.zeros(50)
    for step, with_momentum, without in zip(steps, plain, masked, strict=True):
        velocity = 0.9 * velocity + mean(step)
        error = (with_momentum - velocity).abs().max()
        measured("dgc", "largest difference from SGD with momentum, k = all", error, at_most=1e-5)
        torch.testing.assert_close(without, mean(step))


@pytest.mark.parametrize("selection", ["torch", "compiled"])
def test_dgc_forgets_velocity_and_residual_where_it_sent(selection):
    method, size = make("dgc", ratio=0.02, selection=selection), 20_000
    u, v = torch.zeros(size), torch.zeros(size)
    for step in range(1, 6):
        gradient = random(size, step)
        u = 0.9 * u + gradient
        v = v + u
        request = next(method.exchange(Bucket(0, gradient.clone()), at(step)))
        sent = torch.zeros(size, dtype=torch.bool).index_fill(0, request.indices.long(), True)
        assert torch.equal(request.values, v[request.indices.long()])
        assert 0.8 * 400 <= sent.sum() <= 1.3 * 400
        assert v[sent].abs().min() >= v[~sent].abs().max()  # the largest
        u, v = u.masked_fill(sent, 0), v.masked_fill(sent, 0)
        assert torch.equal(method.velocities[0], u) and torch.equal(method.residuals[0], v)


def test_dgc_warms_up_in_quarters_and_clips_a_workers_share(measured):
    method = make("dgc", ratio=0.01, warmup=2)
    sent = [len(next(method.exchange(Bucket(0, random(1000, step)), at(step))).values) for step in range(1, 10)]
    assert sent == [250, 250, 62, 62, 15, 15, 10, 10, 10]
    step = shares(1, 4, 400)[0]
    clipped = run("dgc", [step], ratio=1.0, clip=1.0)[0].aggregates[0]
    torch.testing.assert_close(clipped, mean([share / share.norm() / 2 for share in step]))
    measured("dgc", "norm of the mean / clip, 4 independent workers", clipped.norm(), at_least=0.8, at_most=1.2)
    equal = run("dgc", [[step[0]] * 4], ratio=1.0, clip=1.0)[0].aggregates[0]
    measured("dgc", "norm of the mean / clip, 4 equal workers", equal.norm(), at_least=1.99, at_most=2.01)
    small = run("dgc", [step], ratio=1.0, clip=1e9)[0].aggregates[0]
    torch.testing.assert_close(small, mean(step))


def test_dgc_is_timed_after_its_warm_up(measured):
    size, k = 20_000, 200
    method, gradient = make("dgc", ratio=0.01, warmup=100), random(size)
    method.warm_start(Bucket(0, gradient.clone()), 1)
    sent = [len(next(method.exchange(Bucket(0, random(size, step)), at(step))).values) for step in (1, 2)]
    measured("dgc", "entries sent / k, step 2 after a warm start, warm-up of 100 steps", sent[1] / k, at_most=1.3)


# Thresholds


@pytest.mark.parametrize("selection", ["torch", "compiled"])
def test_strom_sends_tau_and_nothing_else(measured, selection):
    tau, kept = 0.5, torch.zeros(300)
    steps = [[random(300, step)] for step in range(6)]
    (worker,) = run("strom", steps, selection=selection)
    for (gradient,), found in zip(steps, worker.aggregates, strict=True):
        kept = kept + gradient
        error = (found - torch.where(kept.abs() >= tau, kept.sign() * tau, 0.0)).abs().max()
        measured("strom", "largest difference from tau with the sign, where reached", error, at_most=0)
        kept = kept - found
    torch.testing.assert_close(worker.residual, kept)
    assert worker.transport.sent_bytes == 4 * (worker.aggregates[-1] != 0).sum() + HEADER_BYTES


def test_stroms_tau_is_in_units_of_a_workers_gradient():
    steps = [[torch.full((3,), gradient / 2)] * 2 for gradient in (0.4, 0.4, 0.4)]
    found = [aggregate.tolist() for aggregate in run("strom", steps)[0].aggregates]
    assert found == [[0.0] * 3, [0.5] * 3, [0.5] * 3]  # 0.4, 0.8 - 0.5, 0.3 + 0.4 - 0.5


def test_adacomp_as_worked_by_hand(measured):
    """The bins have three entries, and the residual of the first step is added in the second step."""
    first = torch.tensor([1.0, -2.0, 0.5, 0.25, 0.0, -0.75])
    # Largest: 2 and 0.75, mean 1.375. Twice the gradient reaches them at 1 (2 >= 2), -2 and -0.75.
    sent = [1.375, -1.375, 0.0, 0.0, 0.0, -1.375]
    # Kept: -0.375, -0.625, 0.5, 0.25, 0, 0.625.
    second = torch.tensor([0.0, 0.5, 0.25, 0.0, 0.5, -0.5])
    # G: -0.375, -0.125, 0.75; 0.25, 0.5, 0.125. Largest: 0.75 and 0.5, mean 0.625.
    # G + g: -0.375, 0.375, 1.0; 0.25, 1.0, -0.375. They are reached in the third and fifth place.
    (worker,) = run("adacomp", [[first], [second]], ((6,),), bin=3)
    by_hand = torch.tensor([sent, [0.0, 0.0, 0.625, 0.0, 0.625, 0.0]])
    error = (torch.stack(worker.aggregates) - by_hand).abs().max()
    measured("adacomp", "largest difference from an example worked by hand", error, at_most=0)
    assert worker.residual.tolist() == [-0.375, -0.125, 0.125, 0.25, -0.125, 0.125]
    (linear,) = run("adacomp", [[first]], ((2, 3),), bin=3, bin_linear=6)
    assert linear.aggregates[0].tolist() == [2.0, -2.0, 0.0, 0.0, 0.0, 0.0]  # one bin


@pytest.mark.parametrize("size", [2_000, 50_000])  # 50,000 entries are more than a warm start simulates
@pytest.mark.parametrize(
    ("name", "options"), [("adacomp", {}), ("strom", {"threshold": 0.1}), ("hard_threshold", {"threshold": 0.1})]
)
def test_a_warm_start_gives_methods_without_a_ratio_their_density_after_many_steps(name, options, size, measured):
    """A threshold that is ten times the rms is reached for the first time after dozens of steps."""

    def work(comm) -> list[float]:
        generator = torch.Generator().manual_seed(comm.rank)

        def draw() -> Tensor:
            return torch.randn(size, generator=generator) * 0.01 / comm.world_size

        exchange = exchange_of(comm, make(name, **options), [draw()])
        exchange.buckets[0] = replace(exchange.buckets[0], shapes=((size,),))
        exchange.warm_start()
        sent = []
        for number in range(1, 121):
            one_step(comm, exchange, [draw()], number)
            sent.append(int(exchange.transport.sent_entries) / size)
        return sent

    sent = torch.tensor(run_workers(2, work)).mean(0)
    what = f"density of steps 1 to 5 after a warm start / density of steps 91 to 120, {size} entries"
    measured(name, what, sent[:5].mean() / sent[-30:].mean(), at_least=0.75, at_most=1.25)


def laplace(size: int, seed: int) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.empty(size).exponential_(1.0, generator=numbers) * random(size, seed + 1).sign()


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_sidco_sends_about_k_of_laplace_and_once_adapted_of_normal_gradients(measured, ratio):
    size = 200_000
    k = ratio * size
    for of, draw, steps in (("Laplace", laplace, 1), ("normal", random, 30)):
        method = make("sidco", ratio=ratio, error_feedback=False)
        counts = [len(next(method.exchange(Bucket(0, draw(size, s)), at(s))).values) for s in range(1, steps + 1)]
        least, most = (0.8, 1.2) if draw is laplace else (2 / 3, 4 / 3)
        what = f"entries sent / k, step {steps}, {of} entries"
        measured("sidco", what, counts[-1] / k, at_least=least, at_most=most)


def test_sidco_adapts_the_stages_of_each_bucket_by_itself():
    method = make("sidco", ratio=0.01, error_feedback=False)
    for step in range(1, 21):
        for index, gradient in enumerate((laplace(50_000, step), random(50_000, step))):
            next(method.exchange(Bucket(index, gradient), at(step)))
    assert method.stages[0] == 2 and method.stages[1] > 2


@pytest.mark.parametrize(("ratio", "most"), [(0.1, 3), (0.01, 6)])
def test_sidcos_stages_are_bounded_where_more_of_them_cannot_reach_k(ratio, most, measured):
    """Cubes of normal entries have heavier tails than an exponential distribution; 200 steps with error feedback."""
    method = make("sidco", ratio=ratio)
    for step in range(1, 201):
        request = next(method.exchange(Bucket(0, random(20_000, step) ** 3), at(step)))
    assert 1 <= method.stages[0] <= most
    what = f"entries sent / k, step 200, cubes of normal entries, ratio {ratio:g}"
    measured("sidco", what, len(request.values) / (ratio * 20_000), at_least=0.5, at_most=4 / 3)


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_gaussian_k_sends_two_to_four_thirds_of_k_of_normal_gradients(measured, ratio):
    k = ratio * 100_000
    request = next(make("gaussiank", ratio=ratio).exchange(Bucket(0, random(100_000)), at(1)))
    what = "entries sent / k, normal entries"
    measured("gaussiank", what, len(request.values) / k, at_least=2 / 3, at_most=4 / 3)


@pytest.mark.parametrize("name", ["sidco", "gaussiank"])
def test_estimates_of_a_threshold_sort_nothing(name, monkeypatch):
    def sorts(*args, **kwargs):
        raise AssertionError("sorted")

    for call in ("topk", "sort", "kthvalue"):
        monkeypatch.setattr(torch, call, sorts)
        monkeypatch.setattr(Tensor, call, sorts)
    rule = make(name).select(random(100_000), Bucket(0, torch.empty(100_000)), at(1))
    assert isinstance(rule, Threshold)
    with pytest.raises(AssertionError):
        make(name).selector.take(random(100), TopK(3))


# Trees and regions


@pytest.mark.parametrize("workers", range(1, 8))
@pytest.mark.parametrize("selection", ["torch", "compiled"])
def test_gtopk_has_k_entries_that_a_tree_of_pairs_finds(measured, workers, selection):
    size, k = 200, 20
    step = shares(1, workers, size)[0]

    def largest(vector: Tensor) -> Tensor:
        kept = torch.zeros_like(vector)
        places = vector.abs().topk(k).indices
        return kept.index_copy_(0, places, vector[places])

    tops = [largest(share) for share in step]
    while len(tops) > 1:
        pairs = [tops[i : i + 2] for i in range(0, len(tops), 2)]
        tops = [largest(pair[0] + pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    found = run("gtopk", [step], selection=selection)
    for worker, share in zip(found, step, strict=True):
        measured("gtopk", "entries of the aggregate / k", (worker.aggregates[0] != 0).sum() / k, at_most=1)
        error = (worker.aggregates[0] - tops[0]).abs().max()
        measured("gtopk", "largest difference from a tree of pairs", error, at_most=0)
        sent = (largest(share) != 0) & (tops[0] != 0)
        assert torch.equal(worker.residual, share.masked_fill(sent, 0))


def test_gtopk_may_lose_but_never_invent():
    steps = [[share.abs() for share in step] for step in shares(4, 4, 100)]
    workers = run("gtopk", steps, ratio=0.2)
    found = sum(workers[0].aggregates) + sum(w.residual for w in workers)
    whole = sum(map(mean, steps))
    assert (found <= whole * (1 + 1e-5)).all() and (found < whole * 0.99).any()


@pytest.mark.slow
def test_gtopk_names_places_beyond_what_a_float32_counts():
    size = 2**24 + 4
    gradient = torch.zeros(size)
    gradient[size - 1] = 1.0
    (worker,) = run("gtopk", [[gradient]], ratio=1e-9, selection="compiled")
    assert worker.aggregates[0].nonzero().tolist() == [[size - 1]]


@pytest.mark.parametrize("selection", ["torch", "compiled"])
def test_ok_topk_gives_the_largest_sums_of_what_all_chose(measured, selection):
    workers, size, k = 4, 1000, 100
    step = shares(1, workers, size)[0]
    chosen = [share.masked_fill(share.abs() < share.abs().topk(k).values[-1], 0) for share in step]
    total = mean(chosen)
    expected = total.masked_fill(total.abs() < total.abs().topk(k).values[-1], 0)
    for worker, share, own in zip(run("oktopk", [step], selection=selection), step, chosen, strict=True):
        error = (worker.aggregates[0] - expected).abs().max()
        measured("oktopk", "largest difference from the largest sums of what all chose", error, at_most=0)
        assert torch.equal(worker.residual, share.masked_fill((own != 0) & (expected != 0), 0))


def test_ok_topk_loses_nothing_between_workers():
    steps = shares(12, 3, 400)
    workers = run("oktopk", steps, refresh_every=4, rebalance_every=8)
    found = sum(workers[0].aggregates) + sum(w.residual for w in workers)
    torch.testing.assert_close(found, sum(map(mean, steps)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_ok_topk_sends_and_receives_less_than_6k_words_and_headers(measured, workers):
    """This holds between refreshes, when gradients have one distribution and the thresholds fit."""
    size, ratio = 20_000, 0.05
    for worker in run("oktopk", shares(2, workers, size), ratio=ratio, error_feedback=False):
        for way, words in words_over_6k(worker, workers, ratio * size).items():
            measured("oktopk", f"words {way} / 6 k, without headers", words, at_most=1)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_ok_topk_receives_more_than_6k_words_from_many_workers_in_a_refresh_step(measured, workers):
    """Up to k entries are summed in a region, and a worker gathers the sums of all regions."""
    size, ratio = 40_000, 0.01
    for worker in run("oktopk", shares(1, workers, size), ratio=ratio):
        words = words_over_6k(worker, workers, ratio * size)
        what = f"words {{}} / 6 k, without headers, in a refresh step of {workers} workers"
        measured("oktopk", what.format("sent"), words["sent"], at_most=1)
        most = 2 / 3 + workers / 6  # 2 k to be summed, N k sums and 2 k selected sums
        measured("oktopk", what.format("received"), words["received"], at_least=workers / 8, at_most=most)


def words_over_6k(worker: Worker, workers: int, k: float) -> dict[str, float]:
    """The words that a worker sent and received in the last step / 6 k, without headers."""
    headers = 4 * HEADER_BYTES * workers + 4 * workers**2
    ways = ("sent", "received")
    return {way: (getattr(worker.transport, f"{way}_bytes") - headers) / (24 * k) for way in ways}


@pytest.mark.parametrize("step, low, high", [(33, 0, 1), (40, 1.5, 6)])
def test_ok_topk_moves_more_than_6k_words_between_refreshes_with_error_feedback(step, low, high, measured):
    """Step 33 is a refresh. An entry whose sum is not selected stays in the residual and is sent again in the next
    step, and residuals grow towards a threshold that was computed from smaller residuals."""
    found = words_over_6k(run("oktopk", shares(step, 4, 20_000), ratio=0.01)[0], 4, 200)
    for way, words in found.items():
        what = f"words {way} / 6 k, with error feedback, step {step}, 4 workers"
        measured("oktopk", what, words, at_least=low, at_most=high)


def test_ok_topk_cuts_regions_where_each_has_as_much():
    """All large entries are in the first tenth. Equal regions would give all of them to the first worker."""
    steps = shares(1, 4, 1000)
    for share in steps[0]:
        share[100:] *= 1e-3
    cuts = run("oktopk", steps)[0].method.cuts[0]
    assert len(cuts) == 3 and cuts == sorted(cuts) and cuts[-1] < 100


# Momentum in waves


def test_demo_with_all_components_and_no_decay_is_the_sign_of_the_mean(measured):
    steps = shares(3, 3, 128 * 9)
    (first, *_) = run("demo", steps, ((128, 9),), top=4096, decay=0.0)
    for found, step in zip(first.aggregates, steps, strict=True):
        clear = mean(step).abs() > 1e-4  # what the transform's rounding cannot turn round
        same = (found[clear] == mean(step).sign()[clear]).float().mean()
        measured("demo", "part of entries with the sign of the mean, all components, no decay", same, at_least=1)
        assert set(found.tolist()) <= {-1.0, 0.0, 1.0}


def test_demo_takes_out_of_delta_what_it_sends():
    gradient, lr = random(96 * 10), at(1).lr
    (worker,) = run("demo", [[gradient]], ((96, 10),), top=5, sign=False)
    torch.testing.assert_close(worker.aggregates[0] * lr + worker.method.momenta[0], gradient * lr)
    chunks = 2 * 1  # of 48 x 10
    assert worker.transport.sent_bytes == chunks * 5 * (4 + 2) + HEADER_BYTES


def test_demo_sends_a_wave_as_one_component_and_averages_over_those_who_send_it():
    places = torch.arange(64) + 0.5
    waves = [torch.outer(torch.cos(torch.pi / 64 * 3 * places), torch.cos(torch.pi / 64 * n * places)) for n in (0, 5)]
    workers = run("demo", [[wave.view(-1) / 2 for wave in waves]], ((64, 64),), top=1, sign=False)
    torch.testing.assert_close(workers[0].aggregates[0], (waves[0] + waves[1]).view(-1), atol=1e-4, rtol=1e-4)
