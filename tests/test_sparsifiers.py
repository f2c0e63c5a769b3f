"""What base classes do for every sparsifier in methods/: selections, wire formats, memory, stationary state."""

from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CLASSES, SPARSIFIERS, at, examples, exchange_steps, gradients, make

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket, Estimator
from dlgs_bench.exchange.stationary import stationary_residual, stationary_threshold
from dlgs_bench.exchange.wire import FORMATS, Indices

pytestmark = pytest.mark.unit

WORKERS = 3
WARM_STARTING = ("lags", "dlgs", "sidco")  # each has its own warm start: the others are slow


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_every_selection_and_wire_format_gives_the_same_bits(name):
    def work(comm, selection, wire):
        steps = gradients(comm.rank, 3, (7, 70_000, 300, 1))
        return exchange_steps(comm, make(name, selection=selection), steps, wire=wire)

    expected, *others = [
        run_workers(WORKERS, lambda comm, s=s, w=w: work(comm, s, w))[0] for s in ("torch", "compiled") for w in FORMATS
    ]
    for other in others:
        for step, found in zip(expected, other, strict=True):
            assert all(map(torch.equal, step, found))


@pytest.mark.parametrize("name", SPARSIFIERS)
@given(size=st.integers(1, 200), ratio=st.floats(0.001, 1), seed=st.integers(0, 2**16), feedback=st.booleans())
@examples(0.6)
def test_an_entry_is_sent_whole_or_kept_whole(name, size, ratio, seed, feedback):
    method = make(name, ratio=ratio, error_feedback=feedback)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, 5):
        bucket = Bucket(0, torch.randn(size, generator=generator))
        expected = bucket.gradient + method.residual(bucket)
        assert feedback or torch.equal(expected, bucket.gradient)
        request = next(method.exchange(bucket, at(step)))
        assert request.indices.unique().numel() == request.indices.numel()
        sent = torch.zeros(size).index_put((request.indices,), request.values)
        residual = method.residuals[0]
        assert torch.equal(sent + residual, expected)
        assert not (sent * residual).any()


@pytest.mark.parametrize("name", SPARSIFIERS)
@given(size=st.integers(1, 500), ratio=st.floats(0.001, 1), seed=st.integers(0, 2**16))
@examples(0.4)
def test_both_selections_send_and_keep_the_same_bits(name, size, ratio, seed):
    methods = make(name, ratio=ratio), make(name, ratio=ratio, selection="compiled")
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, 5):
        gradient = torch.randn(size, generator=generator)
        sent = []
        for method in methods:
            request = next(method.exchange(Bucket(0, gradient.clone()), at(step)))
            sent.append(torch.zeros(size).index_put((request.indices.long(),), request.values))
        assert torch.equal(*sent)
        assert torch.equal(*(method.residuals[0] for method in methods))


def test_memory_is_used_again_once_answered_and_never_twice_at_a_time():
    method = make("lags", selection="compiled")
    bucket = Bucket(0, torch.randn(1000))

    def begin():
        segments = method.exchange(bucket, at(1))
        request = next(segments)
        assert Indices.pack(request.values, request.indices, 1000).data_ptr() == request.values.data_ptr()
        return segments, request.values.data_ptr()

    def end(segments):
        with pytest.raises(StopIteration):
            segments.send(bucket.gradient)

    (first, first_place), (second, second_place) = begin(), begin()
    assert first_place != second_place
    end(second)
    third, third_place = begin()
    assert third_place == second_place
    end(first)
    end(third)


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_the_first_step_sends_k_entries_or_as_near_to_k_as_it_says(name, measured):
    torch.manual_seed(0)
    request = next(make(name, ratio=0.1).exchange(Bucket(0, torch.randn(100_000)), at(1)))
    within = CLASSES[name].count_within
    measured(
        name, "entries sent / k, first step", len(request.values) / 10_000, at_least=1 - within, at_most=1 + within
    )
    request = next(make(name, ratio=0.001).exchange(Bucket(0, torch.randn(10)), at(1)))
    assert request.values.numel() == 1


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_every_entry_of_a_constant_gradient_is_sent_at_some_time(name, device):
    """The number of entries, 432, is not a multiple of k = 43."""
    gradient = torch.rand(432, generator=torch.Generator().manual_seed(0)).to(device) + 0.5
    steps = run_workers(1, lambda comm: exchange_steps(comm, make(name, ratio=0.1), [[gradient]] * 100))[0]
    sent = torch.stack([aggregate for (aggregate,) in steps]).any(0)
    never = (~sent).nonzero().flatten().tolist()
    assert not never, f"{name}: entries {never} of 432 were not sent in 100 steps; send each of them at some time"


@pytest.mark.parametrize("name", ["topk", "lags", "dlgs"])
def test_top_k_captures_the_energy_that_the_largest_tenth_of_a_normal_distribution_has(name, measured):
    """A tenth of the entries exceeds z in magnitude. It has 2 (z density(z)) + 0.1 of the energy."""
    normal, gradient = NormalDist(), torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    z = normal.inv_cdf(0.95)
    expected = 2 * z * normal.pdf(z) + 0.1
    request = next(make(name, ratio=0.1).exchange(Bucket(0, gradient.clone()), at(1)))
    captured = request.values.double().square().sum() / gradient.double().square().sum()
    what = "energy captured by a tenth of normally distributed entries"
    measured(name, what, captured, at_least=0.995 * expected, at_most=1.005 * expected)


def test_no_entry_of_a_stationary_residual_is_large_enough_to_be_sent():
    """Walks overshoot the threshold h, so some draws reach it. Entries that reach it have been sent, and are 0."""
    sizes = (20_000, 4_000, 1_000)
    scales = torch.tensor([1.0, 4.0, 0.1]).repeat_interleave(torch.tensor(sizes))
    gradient = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0)) * scales
    h = stationary_threshold([float(layer.square().mean().sqrt()) for layer in gradient.split(sizes)], sizes, 0.02)
    residual = stationary_residual(gradient, sizes, 0.02)
    assert 0.9 * h < residual.abs().max() < h


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in WARM_STARTING else pytest.mark.slow) for name in SPARSIFIERS]
)
def test_a_warm_start_gives_the_density_of_long_training(name):
    """The gradients are Gaussian, in unlike layers. After the warm start, density is within 10 % of the density after
    640 real steps (25 % for an estimator, which warms up on a sample), or within three standard deviations of two
    counts if few entries are sent."""

    def density(method, bucket_of, first, steps):
        sent = 0
        for step in range(first, first + steps):
            sent += next(method.exchange(bucket_of(), at(step))).values.numel()
        return sent / steps / sum(layers)

    layers, ratio = (20_000, 4_000, 1_000), 0.02
    scales = torch.tensor([1.0, 4.0, 0.1]).repeat_interleave(torch.tensor(layers))
    generator = torch.Generator().manual_seed(0)

    def fresh():
        return Bucket(0, torch.randn(sum(layers), generator=generator) * scales, tuple((n,) for n in layers))

    torch.manual_seed(0)
    within = 0.25 if issubclass(CLASSES[name], Estimator) else 0.1
    long, started = make(name, ratio=ratio), make(name, ratio=ratio)
    density(long, fresh, 1, 640)
    started.warm_start(fresh(), 1)
    for first, steps in ((1, 3), (4, 20)):  # the first three are those that timing runs take
        expected = density(long, fresh, 640 + first, steps)
        chance = 3 * (2 / (expected * steps * sum(layers))) ** 0.5
        assert density(started, fresh, first, steps) == pytest.approx(expected, rel=max(within, chance))


@pytest.mark.parametrize(
    ("name", "options", "merged"), [("dlgs_model", {}, False), ("dlgs", {"within": "layer"}, True), ("dlgs", {}, False)]
)
def test_a_warm_start_is_drawn_for_the_scope_of_the_threshold(name, options, merged):
    """Layers of unlike gradients, in a bucket each or merged: the density begins as it is after 640 real steps."""
    layers, scales, ratio = (20_000, 4_000, 8_000), (1.0, 4.0, 0.1), 0.02
    generator = torch.Generator().manual_seed(0)

    def fresh() -> list[Bucket]:
        gradients = [torch.randn(n, generator=generator) * s for n, s in zip(layers, scales, strict=True)]
        if merged:
            return [Bucket(0, torch.cat(gradients), tuple((n,) for n in layers))]
        return [Bucket(i, gradient, (gradient.shape,)) for i, gradient in enumerate(gradients)]

    def density(method, first, steps):
        sent = [next(method.exchange(one, at(first + i))).values.numel() for i in range(steps) for one in fresh()]
        return sum(sent) / steps / sum(layers)

    torch.manual_seed(0)
    long, started = make(name, ratio=ratio, **options), make(name, ratio=ratio, **options)
    density(long, 1, 640)
    for one in fresh():
        started.warm_start(one, 1)
    assert density(started, 1, 32) == pytest.approx(density(long, 641, 32), rel=0.1)
