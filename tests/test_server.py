"""With a parameter server every kind of run goes through the schedule it goes through without."""

import pytest
import torch

from harness.training.calibrate import exchanges
from harness.comm.local import run_workers
from harness.exchange.method import Gather
from harness.spec import RunSpec
from harness.training.timed import time_iterations
from harness.topology import TOPOLOGIES, ParameterServer
from harness.training.train import train

CPU = torch.device("cpu")
WORKERS = 2


class Images:
    """Fixed random images in place of CIFAR-10, dealt to the workers in turn."""

    train_size = test_size = 24

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(self.train_size, 3, 32, 32, generator=generator)
        self._labels = torch.randint(0, 10, (self.train_size,), generator=generator)

    def train(self, batch, workers, rank, seed, epoch):
        return self.test(batch, workers, rank, self.train_size)

    def test(self, batch, workers, rank, limit):
        assert rank < workers
        for chosen in torch.arange(rank, limit, workers).split(batch):
            yield self._images[chosen], self._labels[chosen]


def run(work, topology: str, **about) -> list[dict]:
    """The tables of ``work``, of every worker."""
    about = {"model": "resnet20", "method": "dlgs", "ratio": 0.1, "batch": 4, "workers": WORKERS} | about
    spec = RunSpec(topology=topology, **about)
    found = run_workers(WORKERS + spec.servers, lambda comm: work(spec, comm, Images(), CPU, lambda done, total: None))
    return found[:WORKERS]


@pytest.mark.parametrize("topology", [t for t in TOPOLOGIES if t != "allgather"])
def test_an_accuracy_run_learns_the_same_with_a_server(topology):
    """Learning rates that change on the way reach the server, and it adds nothing to any mean."""
    torch.set_num_threads(1)
    about = {"kind": "accuracy", "epochs": 2, "train_epochs": 2, "lr_steps": (1,), "evaluations": 2}
    about |= {"test_images": 5, "final_test_images": 24}
    with_server, without = run(train, topology, **about), run(train, "allgather", **about)
    for ours, theirs in zip(with_server, without, strict=True):
        for point, other in zip(ours["points"], theirs["points"], strict=True):
            assert point | {"elapsed_s": 0} == other | {"elapsed_s": 0}
        assert [i["sent_bytes"] for i in ours["iterations"]] == [i["sent_bytes"] for i in theirs["iterations"]]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_timing_runs_and_calibrations_go_through(topology):
    torch.set_num_threads(1)
    for tables in run(time_iterations, topology, kind="timing", blocks=2, repeats=1):
        variants = [(row["block"], row["variant"], row["phase"]) for row in tables["iterations"]]
        block = [("none", "step"), ("dlgs", "refresh"), ("dlgs", "reuse")]
        assert variants == [(b, *rest) for b in (1, 2) for rest in block]
        assert all(row["received_bytes"] > 0 for row in tables["iterations"])
    for tables in run(exchanges, topology, kind="exchanges", repeats=1, largest_entries=1000):
        assert {row["phase"] for row in tables["samples"]} == {"refresh", "reuse"}


def test_a_server_refuses_what_it_cannot_add_up():
    def work(comm):
        with pytest.raises(TypeError, match="sums only"):
            ParameterServer(comm, pull="sparse").start(Gather(torch.ones(1)))

    run_workers(1, work)
