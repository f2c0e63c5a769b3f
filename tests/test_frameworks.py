"""The examples with frameworks, on two processes: stopped, saved, loaded and continued equals never stopped.

A resume that forgets the hook's state is said."""

import copy
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support import PATIENCE_S, ROOT
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.engines import ENGINES
from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.timemodel.job_profile import load

EXAMPLES = {"accelerate": "with_accelerate", "lightning": "with_lightning", "transformers": "with_transformers"}


def frameworks() -> list:
    return [
        pytest.param(example, id=name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"no {name} installed"))
        for name, example in EXAMPLES.items()
    ]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("example", frameworks())
def test_resumed_is_never_stopped(example, tmp_path):
    script = str(ROOT / "tests" / "framework_script.py")
    program = ["env", "-C", str(tmp_path), sys.executable, script, example, str(tmp_path)]
    done = subprocess.run(
        ENGINES["torch_dist"].command(2, program), env=os.environ | ENGINES["torch_dist"].environment(threads=1),
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ranks = [torch.load(Path(tmp_path) / f"found.{rank}", weights_only=True) for rank in range(2)]
    for found in ranks:
        assert not all(map(torch.equal, found["resumed 3"], found["resumed 6"]))
        assert all(map(torch.equal, found["whole 6"], found["resumed 6"]))
        assert all(map(torch.equal, found["whole 6"], ranks[0]["whole 6"]))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="no transformers installed")
def test_a_callback_records_a_profile_under_a_trainer(tmp_path):
    program = [sys.executable, str(ROOT / "examples" / "probe_transformers.py"), str(tmp_path / "profile.json")]
    environment = os.environ | ENGINES["torch_dist"].environment(threads=1) | {"PYTHONPATH": str(ROOT)}
    command = ENGINES["torch_dist"].command(2, program)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    job = load(tmp_path / "profile.json")["job"]
    assert (job["kind"], job["steps"], job["workers"]) == ("ddp", 10, 2)


@pytest.mark.unit
@pytest.mark.parametrize("method, options, warned", [("topk", {"ratio": 0.1}, True), ("none", {}, False)])
def test_a_resume_without_the_hooks_state_is_said_on_the_first_step(method, options, warned):
    """The warning comes only if the method has state to lose, and only until the state is loaded."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(4, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def warnings_of(hook_state: dict | None) -> tuple[list[str], dict]:
            net = DistributedDataParallel(copy.deepcopy(model.module))
            resumed = torch.optim.AdamW(net.parameters(), lr=0.1)
            resumed.load_state_dict(optimizer.state_dict())
            hook = DDPHook(net, resumed, method, **options)
            if hook_state is not None:
                hook.load_state_dict(hook_state)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    net(torch.ones(2, 4)).sum().backward()
                    resumed.step()
            found = [str(w.message) for w in caught if "starts without its state" in str(w.message)]
            optimizer.load_state_dict(resumed.state_dict())
            return found, hook.state_dict()

        first, state = warnings_of(None)  # a fresh optimizer
        assert first == []
        assert warnings_of(state)[0] == []
        forgotten = warnings_of(None)[0]
        assert len(forgotten) == warned and not any("\n" in line for line in forgotten)
    finally:
        dist.destroy_process_group()
