"""Local steps: workers train alone, then exchange how far their weights went. Whole sessions, and slow oracles."""

import copy
from functools import cache

import pandas as pd
import pytest
import torch
from equal_worker import Noise, go_on
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, at, examples, exchange_steps, make
from torch import Tensor

from dlgs_bench import plugins
from dlgs_bench.buckets import split_evenly
from dlgs_bench.comm.collectives import HEADER_BYTES
from dlgs_bench.comm.local import run_workers, single
from dlgs_bench.exchange import Bucket
from dlgs_bench.exchange.driver import LocalExchange
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.exchange.packing import blocks
from dlgs_bench.exchange.transport import transport
from dlgs_bench.hooks import local_steps
from dlgs_bench.hooks.hook import Hook
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.timemodel.costs import traffic_per_entry
from dlgs_bench.topology import ALL_GATHER
from dlgs_bench.training.calibrate import exchanges
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.session import Session
from dlgs_bench.training.timed import phase_share, timed_steps

pytestmark = pytest.mark.unit

WHOLE = {"outer_lr": 1.0, "outer_momentum": 0.0}  # DiLoCo that takes the mean of the weights
LOCAL = ["diloco", "sparseloco"]


PLAIN, MOMENTUM = Training("small", momentum=0.0), Training("small", momentum=0.9)


def trained(name: str, steps: int, workers: int = 2, training: Training = PLAIN, **options) -> list[Session]:
    """Every worker's session after these steps, of the small model unless given."""

    def work(comm) -> Session:
        spec = RunSpec("accuracy", training, cluster=Cluster(workers=workers))
        session = Session(spec, comm, Noise(), CPU)
        session.prepare(name, make(name, **options))
        return go_on(session, steps)

    return run_workers(workers, work)


@cache
def initial() -> Tensor:
    return trained("none", 0)[0].flat.parameters


def moved(session: Session) -> Tensor:
    """How far the weights went since the start; as a step of SGD is short, it shows what weights hide."""
    return session.flat.parameters - initial()


@pytest.mark.parametrize("workers", [2, 3])
def test_diloco_of_one_step_without_outer_momentum_is_data_parallel_sgd(measured, workers):
    local = trained("diloco", 3, workers, local_steps=1, **WHOLE)[0]
    dense = trained("none", 3, workers)[0]
    error = (moved(local) - moved(dense)).abs().max() / moved(dense).abs().max()
    measured("diloco", "largest difference from data-parallel SGD / its largest move, H = 1", error, at_most=1e-3)
    assert moved(dense).abs().max() > 1e-2


def test_diloco_sends_the_dense_bytes_once_in_so_many_steps(measured):
    local, dense = trained("diloco", 6, local_steps=3)[0], trained("none", 6)[0]
    assert dense.sent_bytes == 6 * 4 * len(initial())
    measured("diloco", "bytes x H / uncompressed", 3 * local.sent_bytes / dense.sent_bytes, at_least=1, at_most=1)


def test_workers_are_apart_between_exchanges_and_together_after_each():
    for name in LOCAL:
        first, second = trained(name, 2, training=MOMENTUM, local_steps=3)
        assert not torch.equal(first.flat.parameters, second.flat.parameters)
        assert all(session.exchanges[name].weights_differ for session in (first, second))
        first, second = trained(name, 3, training=MOMENTUM, local_steps=3)
        assert torch.equal(first.flat.parameters, second.flat.parameters)
        assert not torch.equal(first.optimizer.velocity, second.optimizer.velocity)  # the inner one is each worker's
        assert not first.exchanges[name].weights_differ


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_any_inner_optimizer_takes_local_steps(optimizer):
    """An exchange gives the mean of the weights of workers that never exchanged."""
    training = Training("perceptron", optimizer=optimizer, lr=0.01)
    alone = [session.flat.parameters for session in trained("diloco", 3, training=training, local_steps=9)]
    together = trained("diloco", 3, training=training, local_steps=3, **WHOLE)[0].flat.parameters
    assert not torch.equal(*alone)
    torch.testing.assert_close(together, sum(alone) / 2, rtol=1e-5, atol=1e-6)


@given(
    every=st.integers(1, 4), workers=st.integers(1, 3), fragments=st.integers(1, 3), delay=st.integers(0, 3),
    mixing=st.sampled_from([0.0, 0.25]), seed=st.integers(0, 2**16),
)  # fmt: skip
@examples(0.5)
def test_weights_go_where_a_loop_over_the_workers_takes_them(every, workers, fragments, delay, mixing, seed):
    """A plain loop of the algorithm gives the same weights. Inner steps are plain SGD on random gradients, in 3
    buckets."""
    sizes, steps, inner_lr, lr, m, delay = (5, 12, 3), 9, 0.1, 0.7, 0.9, delay % every
    options = {"local_steps": every, "fragments": fragments, "delay": delay, "mixing": mixing}
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(steps, workers, sum(sizes), generator=generator)
    start = torch.randn(sum(sizes), generator=generator)

    def work(comm) -> Tensor:
        flat, weights = torch.zeros_like(start), start.clone()
        buckets = [Bucket(i, part) for i, part in enumerate(flat.split(sizes))]
        method, clock = make("diloco", outer_lr=lr, outer_momentum=m, **options), Clock(CPU)
        groups = [(i, i + 1) for i in range(len(sizes))]
        exchange = LocalExchange(method, groups, buckets, transport(ALL_GATHER, comm), clock, weights)
        clock.start()
        for number, gradient in enumerate(gradients[:, comm.rank], start=1):
            exchange.begin(at(number, comm.rank, workers))
            flat.copy_(gradient / workers)
            for layer in range(len(sizes)):
                exchange.ready(layer)
            exchange.finish()
            weights -= inner_lr * flat
            exchange.updated()
        return weights

    own, exchanged = start.repeat(workers, 1), {}
    velocities = torch.zeros_like(start).split(sizes)
    parts = list(zip(start.clone().split(sizes), velocities, own.split(sizes, 1), strict=True))
    for number, gradient in enumerate(gradients, start=1):
        own -= inner_lr * gradient
        for index, (shared, velocity, weights) in enumerate(parts):
            first = every * (1 + index * fragments // len(sizes)) // fragments
            if (number - first) % every == 0:
                delta = (shared - weights).mean(0)
                velocity.mul_(m).add_(delta)
                shared -= lr * (delta + m * velocity)
                exchanged[index] = number
            if number == exchanged.get(index, steps) + delay:
                weights.copy_(mixing * weights + (1 - mixing) * shared)
    for rank, weights in enumerate(run_workers(workers, work)):
        torch.testing.assert_close(weights, own[rank], atol=1e-5, rtol=1e-4)


STREAMING = {"local_steps": 4, "fragments": 2, "delay": 1, "mixing": 0.5}


def test_a_run_resumed_between_an_exchange_and_its_effect_has_the_same_bits():
    """The first half of the model is exchanged at step 2, and the workers' weights change by it at step 3."""

    def work(comm) -> tuple[Tensor, Tensor]:
        sessions = []
        for _ in range(2):
            session = Session(RunSpec("accuracy", MOMENTUM, cluster=Cluster(workers=2)), comm, Noise(), CPU)
            session.prepare("diloco", make("diloco", **STREAMING))
            sessions.append(session)
        whole, resumed = sessions
        resumed.load_state_dict(copy.deepcopy(go_on(whole, 2).state_dict()))
        return go_on(whole, 6).flat.parameters, go_on(resumed, 6).flat.parameters

    (first, again), (second, _) = run_workers(2, work)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_fragments_spread_the_bytes_of_an_exchange_over_several_steps(measured):
    """The paper claims that peak bandwidth falls with the number of fragments. Here fragments are layers of
    ResNet-20."""
    network, steps = plugins.load("models", "resnet20").build(), 8

    def sent(fragments: int) -> list[int]:
        def work(comm) -> list[int]:
            flat = FlatGradients(network.parameters())
            groups = split_evenly(flat.sizes, fragments)
            method, clock = make("diloco", local_steps=4, fragments=fragments), Clock(CPU)
            buckets, weights = flat.buckets(groups), torch.zeros_like(flat.gradients)
            exchange = LocalExchange(method, groups, buckets, transport(ALL_GATHER, comm), clock, weights)
            clock.start()
            found = []
            for number in range(1, steps + 1):
                exchange.begin(at(number, comm.rank, 2))
                exchange.updated()
                found.append(exchange.transport.sent_bytes)
            return found

        return run_workers(2, work)[0]

    whole, parts = sent(1), sent(4)
    assert [bool(one) for one in whole] == [False, False, False, True] * 2 and all(parts)
    measured("diloco", "bytes, 4 fragments / 1 fragment", sum(parts) / sum(whole), at_least=1, at_most=1)
    peak = max(parts) / max(whole)
    measured("diloco", "largest bytes of a step, 4 fragments / 1 fragment", peak, at_least=0.25, at_most=0.3)


def regression(**options) -> float:
    """The error of linear regression with DiLoCo, divided by its initial value; each worker has data of its own."""
    workers, size, steps, parts = 4, 80, 960, 4
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(workers, 60, size, generator=draw)
    truth = torch.randn(size, generator=draw)
    targets = data @ truth + 0.1 * torch.randn(workers, 60, generator=draw)

    def work(comm) -> Tensor:
        flat, weights, inputs = torch.zeros(size), torch.zeros(size), data[comm.rank]
        buckets = [Bucket(i, part) for i, part in enumerate(flat.split(size // parts))]
        groups, clock = [(i, i + 1) for i in range(parts)], Clock(CPU)
        answers = transport(ALL_GATHER, comm)
        exchange = LocalExchange(make("diloco", **options), groups, buckets, answers, clock, weights)
        clock.start()
        for number in range(1, steps + 1):
            exchange.begin(at(number, comm.rank, workers))
            weights -= 0.05 * inputs.T @ (inputs @ weights - targets[comm.rank]) / len(inputs)
            exchange.updated()
        return weights

    return ((sum(run_workers(workers, work)) / workers - truth).norm() / truth.norm()).item()


@pytest.mark.slow
def test_streaming_learns_as_well_as_diloco(measured):
    """The paper claims similar quality."""
    whole = regression()
    for options in ({"fragments": 4}, {"fragments": 4, "delay": 5, "mixing": 0.5}):
        what = ", ".join(f"{key} {value}" for key, value in options.items())
        error = regression(**options) / whole
        measured("diloco", f"error of linear regression / DiLoCo's, {what}", error, at_least=0.5, at_most=1.1)


def test_a_delay_that_would_never_take_effect_is_refused():
    with pytest.raises(ValueError, match=r"^delay: 3 is not below local_steps=3; give a "):
        make("diloco", local_steps=3, delay=3)


def test_diloco_steps_as_torchs_sgd_with_nesterov_momentum():
    deltas = torch.randn(5, 40)
    found = run_workers(1, lambda comm: exchange_steps(comm, make("diloco"), [[delta] for delta in deltas]))[0]
    weights = torch.nn.Parameter(torch.zeros(40))
    optimizer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    for delta, (update,) in zip(deltas, found, strict=True):
        before, weights.grad = weights.detach().clone(), delta
        optimizer.step()
        torch.testing.assert_close(before - weights, update)


def test_sparseloco_that_sends_all_and_keeps_nothing_is_diloco_without_momentum(measured):
    sparse = trained("sparseloco", 4, 3, training=MOMENTUM, local_steps=2, top=4096, decay=0.0, bits=32)[0]
    dense = trained("diloco", 4, 3, training=MOMENTUM, local_steps=2, **WHOLE)[0]
    error = (moved(sparse) - moved(dense)).abs().max() / moved(dense).abs().max()
    what = "largest difference from DiLoCo without outer momentum / its largest move, k = all"
    measured("sparseloco", what, error, at_most=1e-3)


@pytest.mark.parametrize("bits, each", [(2, 64 * 14 // 8 + 2 * 4), (32, 64 * (4 + 1.5))])
def test_sparseloco_sends_64_of_each_4096_in_14_bits(bits, each):
    (session,) = trained("sparseloco", 2, 1, local_steps=2, bits=bits)
    chunks = -(-len(initial()) // 4096)
    assert session.sent_bytes == chunks * each + HEADER_BYTES
    assert session.exchanges["sparseloco"].transport.sent_entries == chunks * 64


def test_sparseloco_sends_the_largest_of_each_chunk_and_keeps_the_rest_with_decay():
    deltas, kept = torch.randn(4, 3 * 4096 + 700), torch.zeros(3 * 4096 + 700)
    method = make("sparseloco")
    found = run_workers(1, lambda comm: exchange_steps(comm, method, [[delta] for delta in deltas]))[0]
    for delta, (update,) in zip(deltas, found, strict=True):
        kept = 0.95 * kept + delta
        for chunk, sent in zip(blocks(kept, 4096), blocks(update, 4096), strict=True):
            places = chunk.abs().topk(64).indices
            sizes = chunk[places].abs()
            large = sizes > sizes.mean()
            of_kind = torch.where(large, sizes[large].mean(), sizes[~large].mean())
            expected = torch.zeros(4096).index_copy(0, places, chunk[places].sign() * of_kind)
            torch.testing.assert_close(sent, expected)
        kept = kept - update
    torch.testing.assert_close(method.residuals[0], kept)


class Watched(Noise):
    """One test batch; records the weights of every evaluation."""

    def test(self, size, shard, limit):
        self.weights = self.flat.parameters.clone()
        yield torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64)


def test_what_is_tested_between_exchanges_is_the_mean_of_the_workers():
    def work(comm):
        data = Watched()
        session = Session(RunSpec("accuracy", Training("small")), comm, data, CPU)
        session.prepare("diloco", make("diloco", local_steps=3))
        data.flat, (own, between, restored) = session.flat, ([], [], [])
        for steps in (2, 3):
            go_on(session, steps)
            own.append(session.flat.parameters.clone())
            session.evaluate(2)
            between.append(data.weights)
            restored.append(torch.equal(session.flat.parameters, own[-1]))
        return own, between, restored

    (own, tested, restored), (other, again, _) = run_workers(2, work)
    assert all(restored) and torch.equal(tested[0], again[0])
    torch.testing.assert_close(tested[0], (own[0] + other[0]) / 2)
    assert torch.equal(tested[1], own[1]) and torch.equal(again[1], own[1])  # after an exchange, as they are


def calibrated(name: str, **options) -> pd.DataFrame:
    scheme = Scheme(method=name, options=options)
    spec = RunSpec("exchanges", Training("small"), scheme, measurement=Measurement(repeats=1, largest={name: 20_000}))
    rows, _ = run_workers(
        2, lambda comm: exchanges(spec, comm, None, CPU, lambda *progress: None, LaunchSettings())["samples"]
    )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", LOCAL)
def test_timing_and_the_time_model_weigh_the_steps_without_an_exchange(name):
    method = make(name)
    assert timed_steps(method, 2) == [1, 2, 30]
    assert phase_share(method, "local") == 29 / 30
    assert timed_steps(make(name, fragments=3), 2) == [1, 2, 10, 20, 30]  # every fragment
    samples = calibrated(name, local_steps=4)
    assert not samples[samples["phase"] == "local"][["sent_bytes", "communication_s"]].any(axis=None)
    if name == "diloco":
        assert traffic_per_entry(samples).sent == pytest.approx(4 / 4, rel=0.01)
        streaming = calibrated(name, local_steps=4, fragments=2)  # half the bytes, twice as often
        assert traffic_per_entry(streaming).sent == pytest.approx(4 / 4, rel=0.01)


def test_one_worker_without_a_process_group_exchanges_on_the_device_of_its_model():
    """The device "meta" stands for a GPU. Saved state is copied to this device when it is loaded."""
    comm = local_steps._communicator(torch.device("meta"), None)
    assert comm.device == torch.device("meta")
    comm.close()


@pytest.mark.parametrize("name", LOCAL)
def test_a_hook_of_gradients_refuses_to_exchange_weights(name):
    line = f"^method: {name} exchanges weights, and a hook exchanges gradients; use dlgs_bench.hooks.local_steps."
    with pytest.raises(ValueError, match=line):
        Hook(torch.nn.Module(), {}, [], single(), name, {}, 8.0)
