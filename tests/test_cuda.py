"""On a GPU: what holds on CPUs, and what only a GPU does. The first thing to run where there is one."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import cuda_worker
import pandas as pd
import pytest
import torch
from support import ENVIRONMENT, METHODS, ROOT, exchange_of, exchange_steps, gradients, make, numbers, one_step
from test_async_device import KNOWN
from test_launch_hosts import accuracy
from test_models import MODELS, built, samples
from test_selection import KINDS

from dlgs_bench import plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.engines import ENGINES
from dlgs_bench.exchange import Threshold, TopK, sparsifier
from dlgs_bench.exchange.selection import IMPLEMENTATIONS, MANY, torch_backend
from dlgs_bench.hooks.local_steps import LocalSteps
from dlgs_bench.launch import gpus
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec, Training
from dlgs_bench.topology import TOPOLOGIES
from dlgs_bench.training.clock import PARTS, Clock
from dlgs_bench.training.session import Session

DEVICE = torch.device(os.environ.get("DLGS_BENCH_TEST_DEVICE", "cuda"))  # bench/gpu.py tries some tests on a CPU
if DEVICE.type == "cuda" and not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def device() -> torch.device:
    return DEVICE


def ways(name: str) -> list[dict]:
    """The options with which a method is tried: every selection, where it has a choice."""
    return [{"selection": one} for one in IMPLEMENTATIONS] if "selection" in plugins.fields(name) else [{}]


# Methods with a seed draw their numbers on the device, whose generator is another one.
@pytest.mark.parametrize(
    "name, options", [(m, way) for m in METHODS if "seed" not in plugins.fields(m) for way in ways(m)]
)
def test_a_method_gives_what_it_gives_on_a_cpu(name, options, monkeypatch):
    monkeypatch.setattr(sparsifier, "SPARE", 1000)  # room for all that is chosen, as on CPUs

    def work(comm, device: torch.device):
        steps = gradients(comm.rank, 5, (7, 20_000, 1), device=device)
        return exchange_steps(comm, make(name, **options), steps)

    found, expected = (run_workers(2, partial(work, device=one))[0] for one in (DEVICE, torch.device("cpu")))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, check_device=False)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("selection", IMPLEMENTATIONS)
def test_the_host_waits_for_nothing(name, selection):
    def work(comm):
        first, *others = gradients(0, 3, device=DEVICE)
        exchange = exchange_of(comm, make(name, selection=selection, **KNOWN[name]), first)
        one_step(comm, exchange, first, 1)  # DLGS looks for its thresholds
        torch.cuda.set_sync_debug_mode("error")
        try:
            for number, step in enumerate(others, start=2):
                one_step(comm, exchange, step, number)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    run_workers(1, work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["torch", "compiled", "triton"])
def test_a_selection_chooses_what_the_reference_chooses_on_a_cpu(name, kind, dtype):
    select = importlib.import_module(f"dlgs_bench.exchange.selection.{name}_backend")
    half = KINDS[kind](torch.randn(20_001, generator=torch.Generator().manual_seed(0))).to(dtype) / 2
    whole, there = half + half, half.to(DEVICE)

    def taken(found: torch.Tensor, values: torch.Tensor, left: torch.Tensor) -> None:
        assert len(found.unique()) == len(found)
        assert torch.equal(values.cpu(), whole[found])
        assert torch.equal(left.cpu(), whole.index_fill(0, found, 0))

    for k in (1, 200, 20_001):
        h = torch_backend.kth_magnitude(whole, k)
        assert select.kth_magnitude(whole.to(DEVICE), k) == h
        for rule in (TopK(k), Threshold(h)):
            expected, places = torch_backend.take(whole.clone(), rule)
            left = there.clone()
            values, indices = select.take(left, rule, there)
            found = indices.cpu().long()
            taken(found, values, left)
            if isinstance(rule, Threshold):
                assert torch.equal(found, places)
                capacities = {1, len(places) // 2 + 1, len(places) + 3}
            else:  # among equals any may be chosen
                assert torch.equal(values.cpu().abs().sort().values, expected.abs().sort().values)
                capacities = {k}
            for most in capacities:
                left, n = there.clone(), min(most, len(places))
                values, indices, chosen = select.take_at_most(left, rule, most, there)
                assert chosen.tolist() == [len(places)] and len(values) == len(indices) == most
                taken(indices[:n].cpu().long(), values[:n], left)
                assert not values[n:].any()
                assert isinstance(rule, TopK) or torch.equal(indices[:n].cpu().long(), places[:n])


@pytest.mark.parametrize("rule", [TopK(1), Threshold(9.0)])
@pytest.mark.parametrize("name", ["torch", "compiled", "triton"])
def test_nan_is_refused_or_counted_as_more_than_there_can_be(name, rule):
    select = importlib.import_module(f"dlgs_bench.exchange.selection.{name}_backend")
    nan = torch.tensor([1.0, torch.nan, 3.0], device=DEVICE)
    with pytest.raises(FloatingPointError, match="NaN"):
        select.take(nan.clone(), rule)
    assert select.take_at_most(nan.clone(), rule, 1)[2].tolist() == [MANY]


def test_the_parts_of_the_clock_are_the_gpus_and_add_up():
    clock, matrix = Clock(DEVICE), torch.randn(4000, 4000, device=DEVICE)
    product = matrix @ matrix  # the first one loads the library
    clock.start()

    def work() -> None:
        torch.mm(matrix, matrix, out=product)

    work()
    with clock("forward"):
        work()
    with clock("backward"):
        work()
        with clock("sparsify"):
            work()
        with clock("communication"):
            work()
    with clock("optimizer"):
        work()
    parts = clock.stop()
    assert all(parts[f"{part}_s"] > 0 for part in PARTS)
    assert sum(parts[f"{part}_s"] for part in PARTS) == pytest.approx(parts["iteration_s"], rel=0.01)
    spans = clock.intervals()
    assert [label for label, _, _ in spans if label != "other"][:3] == ["forward", "backward", "sparsify"]
    assert all(begun <= ended for _, begun, ended in spans)
    assert spans[-1][2] == pytest.approx(parts["iteration_s"])


def test_the_clock_does_not_make_the_host_wait_before_it_is_stopped():
    clock, matrix = Clock(DEVICE), torch.randn(4000, 4000, device=DEVICE)
    product = matrix @ matrix
    clock.start()
    with clock("backward"):
        for _ in range(20):
            torch.mm(matrix, matrix, out=product)
    assert not torch.cuda.current_stream().query()  # the GPU is still at it
    clock.stop()
    assert torch.cuda.current_stream().query()


def processes(count: int, topology: str, target: Path) -> list[dict]:
    """What ``size`` processes of torch.distributed on one GPU saw, by rank."""
    program = [sys.executable, cuda_worker.__file__, DEVICE.type, topology, str(target)]
    one = {gpus.VISIBLE: ",".join(gpus.visible()[:1])}
    done = subprocess.run(
        ENGINES["torch_dist"].command(count, program), env=ENVIRONMENT | ENGINES["torch_dist"].environment(1) | one,
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [torch.load(f"{target}.{rank}", weights_only=True) for rank in range(count)]


def equals_threads(found: list[dict], topology: str) -> None:
    """Every method's aggregates, and the results of a communicator, have the bits of local threads."""
    expected = run_workers(len(found), lambda comm: cuda_worker.exchanged(comm, TOPOLOGIES[topology], DEVICE))
    same = partial(torch.testing.assert_close, rtol=0, atol=0, check_device=False)
    same([one["exchanged"] for one in found], expected)
    if not TOPOLOGIES[topology].servers:
        same([one["messages"] for one in found], run_workers(len(found), cuda_worker.messages))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_workers_that_share_a_gpu_exchange_over_gloo_what_threads_do(topology, tmp_path):
    found = processes(2 + TOPOLOGIES[topology].servers, topology, tmp_path / "seen")
    assert {one["backend"] for one in found} == {"gloo"}
    equals_threads(found, topology)


def test_a_process_with_a_gpu_of_its_own_sums_and_gathers_over_nccl(tmp_path):
    found = processes(1, "allgather", tmp_path / "seen")
    assert found[0]["backend"] == "nccl"
    equals_threads(found, "allgather")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_accuracy_run_gives_the_same_numbers_twice(engine, tmp_path):
    """Two whole runs are compared. The two workers share one GPU if the engine allows it."""
    data = ROOT / "data"
    if not (data / "cifar10.npz").exists():  # a machine with a GPU may have no network
        pytest.skip("data/cifar10.npz is missing")
    workers = 2 if ENGINES[engine].shares_gpus else 1
    if lacks := ENGINES[engine].lacks(DEVICE.type, workers > 1):
        pytest.skip(f"{engine}: {lacks}")
    spec = accuracy(engine, workers=workers)
    spec = replace(spec, cluster=replace(spec.cluster, device=DEVICE.type))
    place, found = LaunchSettings(data_root=str(data), per_gpu=workers), []
    for folder in (tmp_path / "first", tmp_path / "second"):
        command = [sys.executable, "-m", "dlgs_bench.launch", spec.to_json(), place.to_json()]
        command += [str(folder / "run"), str(folder / "log")]
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        found.append(numbers(folder / "run"))
    assert len(found[0][0]) == spec.measurement.evaluations
    for one, other in zip(*found, strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_one_process_with_local_steps_resumes_from_a_file_of_the_cpu(tmp_path):
    """Without a process group, the state is saved on the CPU, and loaded to the GPU of the model."""
    weights = []
    for resumes in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with LocalSteps(model, optimizer, "diloco", local_steps=2) as sync:
            for step in range(6):
                if step == 3:
                    torch.save(sync.state_dict(), tmp_path / "state")
                    if resumes:
                        sync.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
                optimizer.zero_grad()
                model(torch.ones(2, 4, device=DEVICE) * step).square().mean().backward()
                optimizer.step()
                sync.step()
            _, _, state = sync.state_dict()["rank 0"]
            kept = [tensor for field in state.values() if isinstance(field, dict) for tensor in field.values()]
            assert {tensor.device.type for tensor in kept} == {"cpu"}
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_it_gives_on_a_cpu(name):
    """The results agree to 1 %: a GPU may round the inputs of convolutions to 10 bits."""
    model, inputs = built(name).eval(), samples(name)
    expected = model(inputs)
    assert (model.to(DEVICE)(inputs.to(DEVICE)).cpu() - expected).norm() < 0.01 * expected.norm()


class Samples:
    """Random samples in the shape of a model's data."""

    def __init__(self, name: str):
        self._name = name

    def batch(self, step, shard):
        inputs = samples(self._name, 4)
        targets = torch.randint(0, 10, (4,)) if inputs.is_floating_point() else inputs
        return inputs.to(DEVICE), targets.to(DEVICE)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_keeps_to_its_precision_and_memory_format(name, precision):
    seen = set()

    def note(module, inputs, outputs) -> None:
        images = outputs.dim() == 4
        seen.add((outputs.dtype, not images or outputs.is_contiguous(memory_format=torch.channels_last)))

    def work(comm):
        spec = RunSpec("accuracy", Training(name, precision=precision), cluster=Cluster(workers=1))
        session = Session(spec, comm, Samples(name), DEVICE)
        for module in session.flat.model.modules():
            if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
                module.register_forward_hook(note)
        exchange, before = session.prepare("none", make("none")), session.flat.parameters.clone()
        session.step(exchange, 1)
        return before, session

    ((before, session),) = run_workers(1, work)
    assert seen == {(getattr(torch, precision), True)}
    for tensor in (session.flat.parameters, session.flat.gradients):
        assert (tensor.device.type, tensor.dtype) == (DEVICE.type, torch.float32) and tensor.isfinite().all()
    assert session.sums.isfinite().all() and not torch.equal(before, session.flat.parameters)


# The last tests of this file: they are imported here since pytest runs tests in the order of their names in the module.
from test_methods import (  # noqa: E402, F401 - held here on ``device``
    test_a_resumed_run_goes_on_as_if_never_stopped,
    test_a_zero_gradient_gives_a_zero_aggregate,
    test_all_workers_end_with_the_same_bits_and_so_does_a_second_run,
    test_the_error_is_at_most_the_part_of_the_gradient_that_it_says,
    test_the_mean_over_many_draws_is_the_dense_mean,
    test_what_is_sent_and_what_is_kept_add_up,
    test_where_it_says_so_the_aggregate_is_the_dense_mean,
)
from test_session import (  # noqa: E402, F401 - held here on ``device``
    test_what_computes_in_bfloat16_keeps_float32_in_weights_loss_and_gradients,
)
