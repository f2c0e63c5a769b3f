"""With a parameter server every kind of run goes through the schedule it goes through without."""

import functools

import equal_worker  # noqa: F401 - has the model "small"
import pytest
import torch
from support import CPU

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Gather
from dlgs_bench.exchange.transport import ParameterServerTransport
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES
from dlgs_bench.training import train
from dlgs_bench.training.calibrate import exchanges
from dlgs_bench.training.timed import timing

pytestmark = pytest.mark.unit

WORKERS = 2
SERVERS = [topology for topology in TOPOLOGIES.values() if topology.servers]
SCHEME = {"method": "dlgs", "options": {"ratio": 0.1}}


class Images:
    """Fixed random images instead of CIFAR-10, dealt to the workers in turn."""

    train_size = test_size = 24

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(self.train_size, 3, 32, 32, generator=generator)
        self._labels = torch.randint(0, 10, (self.train_size,), generator=generator)

    def steps(self, shard):
        return self.train_size // (shard.batch * shard.workers)

    def batch(self, step, shard):
        return list(self.test(shard.batch, shard, self.train_size))[step % self.steps(shard)]

    def test(self, batch, shard, limit):
        assert shard.rank < shard.workers
        for chosen in torch.arange(shard.rank, limit, shard.workers).split(batch):
            yield self._images[chosen], self._labels[chosen]


class Silent:
    """A progress report without output."""

    def __call__(self, done, total):
        pass

    def say(self, text):
        pass


def run(work, topology, *place: LaunchSettings, **parts) -> list[dict]:
    """The tables of ``work``, of every worker."""
    scheme = Scheme(topology=topology.name, **SCHEME)
    training = Training("small", batch=4, epochs=2, train_epochs=2, lr_steps=(1,))
    spec = RunSpec(work.__name__, training, scheme, Cluster(workers=WORKERS), **parts)
    found = run_workers(spec.processes, lambda comm: work(spec, comm, Images(), CPU, Silent(), *place))
    return found[:WORKERS]


@pytest.mark.parametrize("topology", SERVERS, ids=lambda t: t.name)
def test_an_accuracy_run_learns_the_same_with_a_server(topology, tmp_path, monkeypatch):
    """Learning rates that change on the way reach the server, and it adds nothing to any mean."""
    monkeypatch.setattr(train, "identity", lambda spec: spec.scheme.topology)  # the small model has no file
    measurement = Measurement(evaluations=2, test_samples=5, final_test_samples=24)
    work = functools.wraps(train.accuracy)(
        functools.partial(train.accuracy, settings=LaunchSettings(checkpoints=str(tmp_path)))
    )
    with_server, without = (run(work, t, measurement=measurement) for t in (topology, ALL_GATHER))
    for ours, theirs in zip(with_server, without, strict=True):
        for point, other in zip(ours["points"], theirs["points"], strict=True):
            assert point | {"elapsed_s": 0} == other | {"elapsed_s": 0}
        assert [i["sent_bytes"] for i in ours["iterations"]] == [i["sent_bytes"] for i in theirs["iterations"]]


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_timing_runs_and_calibrations_go_through(topology):
    for tables in run(timing, topology, LaunchSettings(), measurement=Measurement(blocks=2, repeats=1)):
        variants = [(row["block"], row["variant"], row["phase"]) for row in tables["iterations"]]
        block = [("none", "step"), ("dlgs-0.1", "refresh"), ("dlgs-0.1", "reuse")]
        assert variants == [(b, *rest) for b in (1, 2) for rest in block]
        assert all(row["received_bytes"] > 0 for row in tables["iterations"])
    for tables in run(
        exchanges, topology, LaunchSettings(), measurement=Measurement(repeats=1, largest={"dlgs-0.1": 10_000})
    ):
        assert {row["phase"] for row in tables["samples"]} == {"refresh", "reuse"}
        cases = {(row["buckets"], row["overlapped"]) for row in tables["samples"]}
        assert cases == {(1, False), (8, False), (1, True), (8, True)}  # while computing, large buckets go one by one
        assert any(row["taken_s"] for row in tables["samples"])
        assert all(row["overlapped"] for row in tables["samples"] if row["taken_s"])
        for row in tables["samples"]:
            most = row["summed_bytes"] + row["gathered_bytes"] + row["message_bytes"]  # of a worker
            assert 0 < row["sent_bytes"] <= most
            assert row["phase"] == "reuse" or row["sent_bytes"] == most  # a refresh step sends k entries of each worker


def test_a_server_refuses_what_it_cannot_add_up():
    def work(comm):
        with pytest.raises(TypeError, match="cannot answer Gather, only Sum"):
            ParameterServerTransport(SERVERS[0], comm).start(Gather(torch.ones(1)))

    run_workers(1, work)
