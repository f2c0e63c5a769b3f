"""Laws that hold for every file in methods/, present and future, on simulated workers.

A class declares which laws it keeps; every declared law is tested here, and a class that declares none is refused.
"""

import copy
import json
import re
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import (
    CLASSES,
    METHODS,
    VARIANTS,
    at,
    examples,
    exchange_of,
    exchange_steps,
    gradients,
    make,
    one_step,
    sgd,
)

from dlgs_bench import plugins
from dlgs_bench.comm.collectives import HEADER_BYTES
from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket, LocalSteps, Sum
from dlgs_bench.exchange.feedback import ErrorFeedback
from dlgs_bench.exchange.plugin import method_info
from dlgs_bench.exchange.transport import Transport
from dlgs_bench.exchange.wire import FORMATS
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES, Traffic

pytestmark = pytest.mark.unit

WORKERS = 3
SERVED = [m for m in METHODS if CLASSES[m].sum_kind]  # by a parameter server
SERVERS = [topology for topology in TOPOLOGIES.values() if topology.servers]
# ``LocalSteps`` exchanges fragments outside of the method: test_engines.py runs them.
NAMES = METHODS + [variant for variant in VARIANTS if not issubclass(CLASSES[variant], LocalSteps)]
EXACT = [m for m in NAMES if CLASSES[m].exact_when is not None]
CONSERVING = [m for m in NAMES if CLASSES[m].conserves_mass]
UNBIASED = [m for m in METHODS if CLASSES[m].unbiased_when is not None]
BOUNDED = [m for m in NAMES if CLASSES[m].relative_error is not None]
# e5m2 has 2 bits of mantissa: the bound is for 8 bits; test_methods_2026.py has its own.
BOUNDED = [name for name in BOUNDED if name != "quantised-e5m2"]
SIGNED = [m for m in METHODS if CLASSES[m].keeps_signs]
GLOBAL = "draw from a torch.Generator of the method's own, which follows from a seed, not from torch's global generator"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_a_law(name):
    assert name in EXACT + CONSERVING + UNBIASED + BOUNDED + SIGNED, (
        f"methods/{name}.py declares no law: see dlgs_bench.exchange.Method"
    )


@pytest.mark.parametrize("name", NAMES)
def test_all_workers_end_with_the_same_bits_and_so_does_a_second_run(name, device):
    def work(comm):
        return exchange_steps(comm, make(name), gradients(comm.rank, 5, device=device))

    first, *others = run_workers(WORKERS, work)
    again = run_workers(WORKERS, work)[0]
    assert all(a.dtype == torch.float32 for step in first for a in step)
    for rank, other in enumerate(others, start=1):
        cause = f"return what depends on the answers alone, not on this worker's gradient; {GLOBAL}"
        assert_same_steps(first, other, f"{name}: workers 0 and {rank} differ", cause)
    assert_same_steps(first, again, f"{name}: worker 0 differs in a second run", GLOBAL)


def assert_same_steps(some: list, others: list, who: str, cause: str, first: int = 1) -> None:
    """The same bits in each bucket of each step, or a message with the first step that has others."""
    for step, (one, other) in enumerate(zip(some, others, strict=True), start=first):
        for bucket, (a, b) in enumerate(zip(one, other, strict=True)):
            if not torch.equal(a, b):
                entries = int((a != b).sum()) if a.shape == b.shape else f"shapes {tuple(a.shape)}, {tuple(b.shape)}:"
                pytest.fail(f"{who} in step {step}, bucket {bucket}: {entries} of {a.numel()} entries; {cause}", False)


def test_a_message_of_a_law_names_the_step_the_workers_and_the_cause():
    steps = [[torch.zeros(3)], [torch.tensor([0.0, 1.0, 2.0])]]
    with pytest.raises(pytest.fail.Exception, match=r"^who in step 2, bucket 0: 1 of 3 entries; a cause$"):
        assert_same_steps(steps, [steps[0], [torch.tensor([0.0, 1.0, 3.0])]], "who", "a cause")


@pytest.mark.parametrize("name", EXACT)
def test_where_it_says_so_the_aggregate_is_the_dense_mean(name, measured, device):
    parameters = CLASSES[name].exact_when
    steps = 4 if parameters == {} else 1

    def work(comm):
        return exchange_steps(comm, make(name, **parameters), gradients(comm.rank, steps, device=device))

    found = run_workers(2, work)[0]
    shares = [gradients(rank, steps, device=device) for rank in range(2)]
    what = "largest difference from the dense mean" + "".join(f", {key} {value}" for key, value in parameters.items())
    bits = CLASSES[name].conserves_mass == "bits"
    for step, (aggregate, *parts) in enumerate(zip(found, *shares, strict=True), start=1):
        for index, (bucket, *share) in enumerate(zip(aggregate, *parts, strict=True)):
            hint = f"step {step}, bucket {index}: return the sum of the workers' gradients, which are divided already"
            measured(name, what, (bucket - sum(share)).abs().max(), at_most=0 if bits else 1e-5, hint=hint)


@pytest.mark.parametrize("name", [m for m in METHODS if CLASSES[m].elementwise])
def test_an_elementwise_method_does_not_mind_another_order_in_each_step(name):
    size, draw = sum(part.numel() for part in gradients(0, 1)[0]), torch.Generator().manual_seed(0)
    orders = [torch.randperm(size, generator=draw) for _ in range(4)]

    def work(comm, ordered: bool):
        of_steps = [[torch.cat(step)] for step in gradients(comm.rank, len(orders))]
        if ordered:
            of_steps = [[step[order]] for (step,), order in zip(of_steps, orders, strict=True)]
        return exchange_steps(comm, make(name), of_steps)

    straight, other = (run_workers(WORKERS, partial(work, ordered=ordered))[0] for ordered in (False, True))
    for (a,), (b,), order in zip(straight, other, orders, strict=True):
        assert torch.equal(a[order], b)


@pytest.mark.parametrize("name", CONSERVING)
@given(size=st.integers(1, 200), seed=st.integers(0, 2**16))
@examples(0.3)
def test_what_is_sent_and_what_is_kept_add_up(name, measured, device, size, seed):
    """With one worker, the aggregate is what the worker sent."""

    def work(comm):
        generator = torch.Generator().manual_seed(seed)
        method = make(name, **CLASSES[name].conserves_when)
        exchange = exchange_of(comm, method, [torch.zeros(size, device=device)])
        for number in range(1, 5):
            gradient = torch.randn(size, generator=generator).to(device)
            expected = gradient + method.residual(exchange.buckets[0])
            (sent,) = one_step(comm, exchange, [gradient], number)
            residual = method.residual(exchange.buckets[0])
            hint = f"step {number}, {size} entries: subtract from the residual exactly what is sent"
            match method.conserves_mass:
                case "bits" | "rounding" as kept:
                    error = ((sent + residual - expected).abs() / (1 + expected.abs())).max()
                    what = "largest error of sent + residual, over 1 + its magnitude"
                    measured(name, what, error, at_most=0 if kept == "bits" else 1e-5, hint=hint)
                case "at most":
                    part = (sent + residual).abs().sum() / expected.abs().sum()
                    measured(name, "mass sent and kept / mass there was, one worker", part, at_most=1 + 1e-5, hint=hint)

    run_workers(1, work)


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_over_many_draws_is_the_dense_mean(name, measured, device):
    draws, gradient = 2000, gradients(0, 1, sizes=(40,), device=device)[0]

    def work(comm):
        method = make(name, **CLASSES[name].unbiased_when)
        return torch.stack([step[0] for step in exchange_steps(comm, method, [gradient] * draws)])

    found = run_workers(1, work)[0]
    errors = ((found.mean(0) - gradient[0]).abs() - 1e-6).clamp(min=0) / (found.std(0) / draws**0.5).clamp(min=1e-9)
    measured(name, f"largest error of the mean of {draws} draws, in standard errors", errors.max(), at_most=5)


@pytest.mark.parametrize("name", BOUNDED)
@given(size=st.integers(1, 2000), seed=st.integers(0, 2**16), power=st.integers(1, 9))
@examples(0.5)
def test_the_error_is_at_most_the_part_of_the_gradient_that_it_says(name, measured, device, size, seed, power):
    """The bound holds in every step. The higher the power, the more the few largest entries of the gradients
    dominate."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(size, generator=generator).to(device) ** power for _ in range(3)]
    steps = [[gradient / gradient.abs().max()] for gradient in drawn]
    found = run_workers(1, lambda comm: exchange_steps(comm, make(name), steps))[0]
    for (aggregate,), (gradient,) in zip(found, steps, strict=True):
        error, most = (aggregate - gradient).norm() / gradient.norm(), CLASSES[name].relative_error
        measured(name, "norm of the error / norm of the gradient, one worker", error, at_most=most)


@pytest.mark.parametrize("name", SIGNED)
@given(size=st.integers(1, 2000), seed=st.integers(0, 2**16))
@examples(0.5)
def test_no_entry_goes_against_the_sign_of_its_gradient(name, device, size, seed):
    generator = torch.Generator().manual_seed(seed)
    steps = [[torch.randn(size, generator=generator).to(device)] for _ in range(3)]
    results = run_workers(1, lambda comm: exchange_steps(comm, make(name), steps))[0]
    for number, ((aggregate,), (gradient,)) in enumerate(zip(results, steps, strict=True), start=1):
        against = int((aggregate * gradient < 0).sum())
        assert not against, (
            f"{name}: step {number}: {against} of {size} entries have the opposite sign of their gradient"
        )
        assert torch.dot(aggregate, gradient) > 0, f"{name}: step {number}: nothing of the gradient is left"


@pytest.mark.parametrize("name", [m for m in NAMES if m in EXACT + CONSERVING + UNBIASED + BOUNDED])
def test_a_zero_gradient_gives_a_zero_aggregate(name, device):
    zeros = [[torch.zeros(50, device=device)]] * 3
    for parameters in ({}, CLASSES[name].exact_when or {}, CLASSES[name].unbiased_when or {}):
        for step in run_workers(2, lambda comm, p=parameters: exchange_steps(comm, make(name, **p), zeros))[0]:
            assert torch.equal(step[0], torch.zeros(50, device=device)), f"{name} with {parameters}"


@pytest.mark.parametrize("name", NAMES)
def test_denormal_gradients_give_finite_aggregates(name, device):
    """The smallest magnitudes of float32, which a residual reaches if its layer is not used for long."""
    tiny = torch.arange(1, 1201, dtype=torch.float32, device=device) * 2.0**-149
    steps = [[(tiny * sign).roll(shift).contiguous()] for shift, sign in ((0, 1), (7, -1), (50, 1))]
    for step in run_workers(2, lambda comm: exchange_steps(comm, make(name), steps))[0]:
        assert step[0].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_goes_on_as_if_never_stopped(name, device):
    def whole(comm):
        return exchange_steps(comm, make(name), gradients(comm.rank, 6, device=device))[3:]

    def in_two(comm):
        steps = gradients(comm.rank, 6, device=device)
        first = make(name)
        exchange_steps(comm, first, steps[:3])
        second = make(name)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        return exchange_steps(comm, second, steps[3:], first=4)

    cause = "name every field that a resumed run needs in the class's state"
    results = run_workers(2, whole)[0], run_workers(2, in_two)[0]
    assert_same_steps(*results, f"{name}: a resumed run differs", cause, first=4)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_another_method_is_refused(name):
    with pytest.raises(ValueError, match="load a state of this method"):
        make(name).load_state_dict({"no such state": 1})


@pytest.mark.parametrize("name", SERVED)
def test_a_method_asks_a_server_what_it_says(name):
    """``sum_kind`` holds for a bucket of any size."""
    method = make(name)
    for index, size in enumerate((1, 300)):
        bucket = Bucket(index, torch.randn(size))
        assert method.num_requests(bucket, at(1)) == 1
        segments = method.exchange(bucket, at(1))
        request = next(segments)
        assert isinstance(request, Sum)
        written = request.values if method.sum_kind == "dense" else request.out
        assert (request.indices is None) == (method.sum_kind == "dense")
        assert written.data_ptr() == bucket.gradient.data_ptr() and written.shape == bucket.gradient.shape
        with pytest.raises(StopIteration) as end:
            segments.send(written.fill_(3.0))
        assert torch.equal(end.value.value, torch.full((size,), 3.0))


@pytest.mark.parametrize("name", SERVED)
@given(workers=st.integers(1, 4), seed=st.integers(0, 2**16))
@examples(0.1)
def test_a_parameter_server_gives_what_collectives_give_bit_for_bit(name, workers, seed):
    def work(comm, **method_info):
        return exchange_steps(comm, make(name), gradients(comm.rank, 4, seed=seed), **method_info)

    expected = run_workers(workers, work)[0]
    weights = torch.zeros(sum(b.numel() for b in expected[0]))
    optimizer = sgd(weights)
    found = {t.owner: run_workers(workers + 1, lambda comm, t=t: work(comm, topology=t))[:-1] for t in SERVERS}
    for step, aggregate in enumerate(map(torch.cat, expected)):
        optimizer.step(aggregate)
        for worker in range(workers):
            assert torch.equal(torch.cat(found["worker"][worker][step]), aggregate)
            assert torch.equal(torch.cat(found["server"][worker][step]), weights)


class Recorder:
    """Stands before a communicator and adds up the tensors that pass."""

    def __init__(self, comm):
        self._comm, self.bytes = comm, 0
        self.rank, self.world_size, self.device = comm.rank, comm.world_size, comm.device

    def start_allreduce(self, tensor):
        self.bytes += tensor.nbytes
        return self._comm.start_allreduce(tensor)

    def start_max(self, tensor):
        self.bytes += tensor.nbytes
        return self._comm.start_max(tensor)

    def start_allgather(self, tensor):
        self.bytes += tensor.nbytes + HEADER_BYTES
        return self._comm.start_allgather(tensor)

    def start_round(self, messages):
        self.bytes += sum(t.nbytes + HEADER_BYTES * messages.headers for t in messages.sends.values())
        return self._comm.start_round(messages)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wire", FORMATS)
def test_bytes_counted_are_the_bytes_that_moved(name, wire):
    """The sender's own count is compared with its messages. In a gather, the receiver's bytes are the counts of the
    others."""

    def work(comm):
        recorder = Recorder(comm)
        first = gradients(comm.rank, 1, sizes=(500,))[0]
        exchange = exchange_of(recorder, make(name), first, wire=wire)
        one_step(comm, exchange, first, 1)
        return exchange.transport, recorder.bytes

    found = run_workers(WORKERS, work)
    by_all = sum(counted.sent_bytes for counted, _ in found)
    every = [counted.traffic for counted, _ in found]
    if not any(one.summed for one in every):  # what a dense sum moves depends on the engine
        moved_by_all = sum((WORKERS - 1) * one.gathered + one.messages for one in every)
        received_by_all = sum(counted.received_bytes for counted, _ in found)
        assert received_by_all == moved_by_all, (
            f"{name}: step 1: {received_by_all} of {moved_by_all} bytes are received"
        )
    for rank, (counted, moved) in enumerate(found):
        assert_counted(counted, moved, f"{name}: step 1, worker {rank}")
        entries = "give each Gather or PeerExchange the number of gradient entries that it represents"
        assert counted.sent_entries > 0, f"{name}: step 1, worker {rank}: no entries are counted; {entries}"
        received = f"{name}: step 1, worker {rank}: {counted.received_bytes} bytes are counted as received"
        if counted.traffic == Traffic(gathered=moved):
            assert counted.received_bytes == by_all - moved, f"{received}, the others sent {by_all - moved}"
        else:
            assert name != "topk" and counted.received_bytes > 0, received
        if name == "none":
            assert counted.received_bytes == 4 * 500, f"{received}, a sum of 500 entries has {4 * 500}"


def assert_counted(counted: Transport, moved: int, who: str) -> None:
    """The bytes that the transport counts are those of the tensors that a worker handed to the engine."""
    cause = "send tensors only in requests, and do not change a tensor that a request has"
    assert counted.sent_bytes == moved == counted.traffic.sent > 0, (
        f"{who}: {counted.sent_bytes} bytes are counted and {moved} were sent; {cause}"
    )


@pytest.mark.parametrize("name", [m for m in NAMES if not CLASSES[m].cost_depends_on_shapes])
def test_bytes_do_not_depend_on_the_shapes_of_layers_unless_the_class_says_so(name, measured):
    """Otherwise the calibration would measure the bytes of vectors, and predict the bytes of matrices from them."""

    def sent_bytes(comm, shape: tuple[int, ...]) -> int:
        steps = gradients(comm.rank, 4, sizes=(16384,))
        exchange = exchange_of(comm, make(name), steps[0])
        exchange.buckets[0] = replace(exchange.buckets[0], shapes=(shape,))
        for number, step in enumerate(steps, start=1):
            one_step(comm, exchange, step, number)
        return exchange.transport.sent_bytes

    vector, matrix = (run_workers(2, partial(sent_bytes, shape=shape))[0] for shape in ((16384,), (128, 128)))
    hint = "declare cost_depends_on_shapes = True"
    what = "bytes of a matrix of 128 x 128 / bytes of a vector of 16384, step 4"
    measured(name, what, matrix / vector, at_least=0.98, at_most=1.02, hint=hint)


# Ok-Topk sends more than it declares if workers choose unlike entries, as these independent gradients make them do.
GROWS = {"oktopk": 1.4}


@pytest.mark.parametrize("name", NAMES)
def test_bytes_on_a_link_grow_with_the_workers_as_the_class_says(name, measured):
    """From the traffic of 2 workers, the time model predicts what 8 workers send."""

    def traffic_of(comm) -> list[list[float]]:
        steps, rows = gradients(comm.rank, 4, sizes=(16384,)), []
        exchange = exchange_of(comm, make(name), steps[0])
        for number, step in enumerate(steps, start=1):
            one_step(comm, exchange, step, number)
            counted = exchange.transport.traffic
            rows.append([counted.summed, counted.gathered, counted.messages])
        return rows

    def most(workers: int) -> Traffic:
        """In each step, of the worker that sends most; the sum over the steps."""
        return Traffic(*torch.tensor(run_workers(workers, traffic_of)).amax(dim=0).sum(dim=0).tolist())

    few, many = most(2), most(8)
    predicted = ALL_GATHER.link_bytes(few.among(8, 2, CLASSES[name].link_growth), 16384, 8)
    what, hint = "bytes on the busiest link of 8 workers / predicted from 2 workers", "declare link_growth"
    grown = ALL_GATHER.link_bytes(many, 16384, 8) / predicted
    measured(name, what, grown, at_least=0.8, at_most=GROWS.get(name, 1.2), hint=hint)


@pytest.mark.parametrize("topology", SERVERS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("wire", FORMATS)
def test_bytes_counted_are_the_bytes_that_a_server_moved(name, topology, wire):
    def work(comm):
        recorder = Recorder(comm)
        first = gradients(comm.rank, 1, sizes=(500,))[0]
        exchange = exchange_of(recorder, make(name), first, topology=topology, wire=wire)
        one_step(comm, exchange, first, 1)
        return exchange.transport, recorder.bytes

    *workers, (_, by_server) = run_workers(WORKERS + 1, work)
    for rank, (counted, moved) in enumerate(workers):
        who = f"{name}: step 1, worker {rank}"
        assert_counted(counted, moved, who)
        received, part = counted.received_bytes, by_server / WORKERS
        assert received == part, f"{who}: {received} bytes are counted as received, the server sent {part:g}"


@pytest.mark.parametrize("name", METHODS)
def test_the_workflow_is_told_what_the_class_says(name):
    described, cls = plugins.describe("methods", name), CLASSES[name]
    assert (described["scope"], described["sum_kind"]) == (cls.scope, cls.sum_kind)
    assert described["uncompressed"] == make(name).uncompressed == (name == "none")


FEEDBACK = """
from dataclasses import dataclass
from dlgs_bench.exchange import Sum
from dlgs_bench.exchange.sparsifier import Ratio

@dataclass
class Forgets(Ratio):
    {declared}
    def exchange(self, bucket, at):
        aggregate = yield Sum(self.accumulate(bucket))
        return aggregate
"""


@pytest.mark.parametrize("declared", ["pass", 'conserves_mass = "bits"', "conserves_mass = None"])
def test_a_class_with_error_feedback_says_whether_it_conserves_mass(declared, monkeypatch):
    """The class inherits the law of ``Ratio``, which a method that drops its residual satisfies, too."""
    module = ModuleType("methods.forgets")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(FEEDBACK.format(declared=declared), vars(module))
    if declared != "pass":
        assert method_info("forgets")["scope"] == "layer"
        return
    with pytest.raises(
        ValueError, match=r"^Forgets\.conserves_mass: missing in a class with error feedback; give bits"
    ):
        method_info("forgets")


PLAIN = """
from dataclasses import dataclass, field

import torch

from dlgs_bench.exchange import Method, Sum

@dataclass
class Plain(Method):
    {declared}

    def {name}(self, bucket, context):
        return (yield Sum(bucket.gradient))
"""


def plain(declared: str, monkeypatch, name: str = "exchange") -> dict:
    """The description of a method with this line in its class."""
    module = ModuleType("methods.plain")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(PLAIN.format(declared=declared, name=name), vars(module))
    return method_info("plain")


@pytest.mark.parametrize(
    ("declared", "name", "said"),
    [
        ("title = 3", "exchange", "Plain.title: 3 is not valid; give a line of text"),
        ("title = '$d$'", "exchange", "Plain.title: '$d$' is not valid; give a line of text"),
        ("scope = 'bucket'", "exchange", "Plain.scope: 'bucket' is not valid; give one of: model, layer"),
        ("sum_kind = 'both'", "exchange", "Plain.sum_kind: 'both' is not valid; give one of: None, dense, sparse"),
        ("title: str = 'plain'", "exchange", "Plain.title: its annotation makes it a parameter; write `title"),
        (
            "state = ('drawn',); drawn: int = 0",
            "exchange",
            "Plain.drawn: a parameter is not a valid field of the state",
        ),
        ("pass", "exchanges", "Plain.exchange: missing; define it"),
        ("seed: int = field(default_factory=lambda: int('x'))", "exchange", "invalid literal for int"),
    ],
)
def test_a_class_that_no_run_could_use_is_one_line_when_described(declared, name, said, monkeypatch):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        plain(declared, monkeypatch, name)


def test_a_parameter_may_have_a_default_that_is_made_or_that_no_file_can_hold(monkeypatch):
    made = plain("seed: int = field(default_factory=lambda: 3)", monkeypatch)
    assert made["fields"] == {"seed": {"type": "int", "default": 3}}
    other = plain("dtype: torch.dtype = torch.float16", monkeypatch)
    assert other["fields"] == {"dtype": {}} and json.dumps(other)


@pytest.mark.parametrize("name", [m for m in METHODS if issubclass(CLASSES[m], ErrorFeedback)])
def test_every_method_with_error_feedback_declares_it(name):
    assert method_info(name)["title"]
