"""What is not finite stops a run, with step, layer and worker, and is averaged into nobody's weights."""

import subprocess
import sys

import pytest
import torch
from equal_worker import session_of
from support import PATIENCE_S, ROOT, every_engine

from dlgs_bench.comm.local import run_workers
from dlgs_bench.launch.liveness import Ended
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training.finite_check import FiniteCheck


@pytest.mark.unit
@pytest.mark.parametrize("method", ["none", "dlgs"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_layer_and_the_worker_are_named(value, method):
    def work(comm):
        session = session_of(comm, method)
        (exchange,) = session.exchanges.values()
        weight = dict(session.flat.model.named_parameters())["1.0.weight"]
        weight.register_hook(lambda gradient: gradient.index_put((torch.tensor(0),), torch.tensor(value)))
        try:
            session.step(exchange, 1, FiniteCheck(exchange, session.flat, 1, comm.rank))
        except Ended as error:
            return str(error)

    (said,) = run_workers(1, work)
    assert said.startswith("the gradient of 1.0.weight is not finite in step 1 on worker 0; ")


@pytest.mark.unit
def test_a_loss_that_is_not_finite_is_named():
    finite_check = FiniteCheck(None, None, 3, 1)
    finite_check.check(torch.tensor(1e30))
    with pytest.raises(Ended, match="the loss is not finite in step 3 on worker 1"):
        finite_check.check(torch.tensor(float("inf")))


LAUNCH = """
import sys
from pathlib import Path
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import LaunchSettings, RunSpec
spec, place, folder = sys.argv[1:]
sys.exit(launch(RunSpec.from_json(spec), LaunchSettings.from_json(place), Path(folder, "run"), Path(folder, "log")))
"""


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_a_run_that_diverges_ends_with_one_line(engine, data, tmp_path):
    spec = RunSpec(
        "accuracy", Training("resnet20", batch=4, train_steps=50, lr=1e30, lr_steps=()), Scheme("none"),
        Cluster(engine), Measurement(evaluations=1, test_samples=8, final_test_samples=8),
    )  # fmt: skip
    place = LaunchSettings(data_root=str(data))
    command = [sys.executable, "-c", LAUNCH, spec.to_json(), place.to_json(), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr and not (tmp_path / "run").exists()
    assert " is not finite in step 2 on worker " in last and last.endswith(f"more in {tmp_path / 'log'}")
