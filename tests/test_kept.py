"""Accuracy runs give the same bits on every machine of one instruction set: compared with values kept here."""

import hashlib

import pytest
import torch
from support import CPU
from test_server import Images

from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import train

pytestmark = pytest.mark.unit

# Instruction set, as torch names it -> method -> digest of the weights after six steps of two workers. Kept from an
# AMD EPYC with torch 2.11.0. A change here says that every accuracy run learns something else than before.
KEPT = {
    "AVX2": {
        "none": "e16d36ac67b970f0",
        "topk": "57c6330f359c5520",
        "lags": "8f589df6d0d13221",
        "dlgs": "368848c83da85f1f",
    },
}


def learnt(method: str) -> str:
    options = {} if method == "none" else {"ratio": 0.1, "selection": "compiled"}
    training = Training("resnet20", batch=4, epochs=2, train_epochs=2, lr_steps=(1,))
    scheme = Scheme(method, options=options, planner="size" if method == "dlgs" else "layer", bucket_bytes=2**18)
    measurement = Measurement(evaluations=2, test_samples=5, final_test_samples=24)
    spec = RunSpec("accuracy", training, scheme, Cluster(workers=2), measurement)

    def work(comm):
        session, exchange = train.begin(spec, comm, Images(), CPU)
        for _ in range(session.spec.steps(session.data.train_size)):
            train.advance(session, exchange, session.spec.steps(session.data.train_size))
        return session.flat.parameters

    return hashlib.sha256(run_workers(2, work)[0].numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("method", ["none", "topk", "lags", "dlgs"])
def test_an_accuracy_run_learns_what_it_always_learnt(method):
    instructions = torch.backends.cpu.get_cpu_capability()
    if instructions not in KEPT:
        pytest.skip(f"no values kept for {instructions}, only for {', '.join(KEPT)}; print learnt() to keep them")
    assert learnt(method) == KEPT[instructions][method]
