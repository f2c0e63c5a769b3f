"""Where runs are started: slots, GPUs and builds that fit, and one line where they do not."""

import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE_S, ROOT, every_engine, needs_horovod, read

from dlgs_bench.config import checks, launching
from dlgs_bench.config import load as config
from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import gpus, nodes
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec

WORKER = [sys.executable, str(ROOT / "tests" / "stand_in_worker.py")]


@pytest.mark.unit
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 20))
def test_hosts_are_filled_in_order_and_too_few_slots_are_refused(slots, processes):
    place = LaunchSettings(by="ssh", hosts=tuple(f"host{number}:{count}" for number, count in enumerate(slots)))
    every = [f"host{number}" for number, count in enumerate(slots) for _ in range(count)]  # one for each slot
    if processes > len(every):
        with pytest.raises(nodes.Refused, match=f"{len(every)} slots for {processes} processes; give more hosts"):
            nodes.of(processes, place)
        return
    taken = nodes.of(processes, place)
    assert [name for name, count in taken.items() for _ in range(count)] == every[:processes]


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_an_engine_that_is_installed_lacks_nothing(engine):
    assert ENGINES[engine].lacks("cpu", False) is None


@pytest.mark.unit
@every_engine
def test_a_build_that_lacks_what_the_launch_needs_says_so(engine):
    for built, device, expected in (
        ("print('MPI')", "cpu", "it was built without Gloo"),
        ("print('Gloo')", "cuda", "it was built without NCCL"),
        ("import no_such_engine", "cpu", "it cannot be imported: .*No module named 'no_such_engine'"),
        ("import os; os._exit(132)", "cpu", "it cannot be imported: its import ended with status 132"),
    ):
        found = replace(ENGINES[engine], built=built).lacks(device, False)
        assert re.fullmatch(expected, found), found


@pytest.mark.unit
def test_processes_that_share_a_gpu_need_gloo():
    for engine in ENGINES.values():
        if engine.shares_gpus:
            assert engine.needs("cuda", True) == {"Gloo"} and engine.needs("cuda", False) == {"NCCL"}


@pytest.fixture
def three_gpus(tmp_path, monkeypatch):
    """A machine that shows three GPUs, of which nobody uses one."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    lines = "".join(f"GPU {number}: NVIDIA T (UUID: GPU-{number}aa)\n" for number in range(3))
    capabilities = "9.0\\n7.5\\n9.0\\n"
    smi.write_text(f"#!/bin/sh\ncase $1 in -L) printf '{lines}';; *) printf '{capabilities}';; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpus.tempfile, "tempdir", None)  # found anew
    monkeypatch.delenv(gpus.VISIBLE, raising=False)


@pytest.mark.unit
def test_runs_side_by_side_take_different_gpus_and_wait_for_them(three_gpus, monkeypatch):
    with ExitStack() as first:
        two = first.enter_context(gpus.taken(2))
        with gpus.taken(1) as one:
            assert sorted(two + one) == ["GPU-0aa", "GPU-1aa", "GPU-2aa"]
        later = []

        def wait() -> None:
            with gpus.taken(3) as every:
                later.append(every)

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(2)
        assert waiting.is_alive() and not later
    waiting.join(PATIENCE_S)
    assert later == [["GPU-0aa", "GPU-1aa", "GPU-2aa"]]
    with pytest.raises(nodes.Refused, match="device: cuda needs 4 GPUs, this machine shows 3"), gpus.taken(4):
        pass
    monkeypatch.setenv(gpus.VISIBLE, "2,0")  # what a person or Slurm leaves it
    assert gpus.visible() == ["2", "0"]
    monkeypatch.setenv(gpus.VISIBLE, "-1")  # CUDA's way to say none
    assert not gpus.visible()


@pytest.mark.unit
def test_a_gpu_of_an_old_kind_lacks_bfloat16(three_gpus, tmp_path, monkeypatch):
    gpus.lack_bfloat16.cache_clear()
    assert gpus.lack_bfloat16() and not checks.gains_from_bfloat16("cuda")
    values = {"device": "cuda", "models": {"m": {"precision": "bfloat16"}}}
    assert checks.check_precisions(values) == (
        "models.m.precision: a GPU of this machine does not support bfloat16; give float32, or auto"
    )
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(smi.read_text().replace("7.5", "8.0"))
    gpus.lack_bfloat16.cache_clear()
    assert not gpus.lack_bfloat16() and checks.gains_from_bfloat16("cuda") and not checks.check_precisions(values)
    gpus.lack_bfloat16.cache_clear()
    monkeypatch.setenv("PATH", "")  # as on the login node of a cluster
    assert checks.gains_from_bfloat16("cuda")
    gpus.lack_bfloat16.cache_clear()  # for other tests


@pytest.mark.unit
def test_the_number_and_the_uuid_of_a_gpu_are_one_lock_and_any_name_can_be_locked(three_gpus, monkeypatch):
    with gpus.taken(2) as by_uuid:
        monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
        with gpus.taken(1) as by_number:
            assert (by_uuid, by_number) == (["GPU-0aa", "GPU-1aa"], ["2"])
    monkeypatch.setenv(gpus.VISIBLE, "MIG-GPU-0aa/1/0")
    with gpus.taken(1) as part:
        assert part == ["MIG-GPU-0aa/1/0"]


@pytest.mark.unit
def test_locks_follow_no_link_and_lie_in_no_link(three_gpus, tmp_path):
    """Anybody can make the folder, whose name is known, and a link in it."""
    precious, folder = tmp_path / "precious", tmp_path / f"gpus-taken-by-{os.getuid()}"
    precious.write_text("kept")
    folder.mkdir(mode=0o700)
    (folder / "GPU-0aa").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), gpus.taken(1):
        pass
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(nodes.Refused, match="is not a folder of this user"), gpus.taken(1):
        pass
    assert precious.read_text() == "kept"


@pytest.mark.unit
def test_the_gpu_of_a_process_that_was_killed_is_free(three_gpus):
    holds = "import time\nfrom dlgs_bench.launch import gpus\nwith gpus.taken(3): print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", holds], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"
    process.kill()
    process.communicate()
    with gpus.taken(3) as found:
        assert len(found) == 3


@pytest.mark.parametrize(
    "engine, per_gpu, expected",
    [
        pytest.param("horovod", 1, "GPU-1aa,GPU-2aa", marks=[pytest.mark.engine, pytest.mark.slow, needs_horovod]),
        pytest.param("torch_dist", 2, "GPU-1aa", marks=pytest.mark.engine),
    ],
)
def test_every_rank_sees_the_gpus_of_its_run_alone(engine, per_gpu, expected, three_gpus, tmp_path):
    spec = RunSpec("accuracy", cluster=Cluster(engine, device="cuda"))
    place, log = LaunchSettings(per_gpu=per_gpu), tmp_path / "log"
    with gpus.taken(1):
        assert launch(spec, place, tmp_path / "run", log, [*WORKER, "shows its GPUs", "30"]) == 0, log.read_text()
    assert (tmp_path / "run" / "points.csv").read_text() == f"gpus\n{expected}\n"


def smoke(**changes) -> dict:
    return read("smoke") | {"methods": ["none", "dlgs"]} | changes


@pytest.mark.unit
@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"launch": {"by": "pbs"}}, "launch.by: 'pbs' is not valid; give one of: local"),
        ({"launch": {"by": "ssh"}}, "launch.hosts: empty, but launch.by: ssh needs hosts; give hosts such"),
        ({"launch": {"hosts": ["a:2"]}}, "launch.hosts: hosts are for launch.by: ssh, not local; leave them out"),
        ({"launch": {"by": "ssh", "hosts": ["a"]}}, "launch.hosts.0: 'a' is not valid; give a host and its number"),
        ({"launch": {"by": "ssh", "hosts": ["a:0"]}}, "launch.hosts.0: 'a:0' is not valid"),
        ({"launch": {"by": "ssh", "hosts": ["-Fa:1"]}}, "launch.hosts.0: '-Fa:1' is not valid"),  # an option
        ({"launch": {"by": "ssh", "hosts": ["a:1", "a:2"]}}, "launch.hosts: a is listed twice; give it once"),
        ({"launch": {"per_node": 0}}, "launch.per_node: 0 is not valid; give by slurm: processes on a node"),
        ({"launch": {"per_gpu": 2}, "device": "cuda"}, "launch.per_gpu: processes of horovod cannot share a GPU"),
        ({"launch": {"by": "slurm"}, "network": "testbed"}, "network: testbed is for launch.by: local, not slurm"),
    ],
)
def test_mistakes(changes, expected):
    with pytest.raises(config.ConfigError, match=expected):
        config.load(smoke(**changes), "c")


@pytest.mark.unit
@pytest.mark.parametrize(
    "launch, jobs, expected",
    [
        ({"by": "ssh", "hosts": ["127.0.0.9:1"]}, False, "launch.hosts: 1 slots for 2 processes; give more hosts"),
        ({"by": "slurm"}, False, "launch.by: this is not a Slurm job; give local, or --workflow-profile"),
        ({"by": "ssh", "hosts": ["a:2"]}, True, "launch.by: ssh cannot be combined with jobs that Snakemake submits"),
    ],
)
def test_what_this_machine_cannot_start_is_refused_before_anything_runs(launch, jobs, expected, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    values = config.load(smoke(launch=launch, engine="torch_dist"), "c").values
    with pytest.raises(config.ConfigError, match=f"^c: {expected}"):
        config.check_machine(values, "c", jobs=jobs)


@pytest.mark.unit
def test_an_engine_that_is_not_built_for_the_launch_is_refused_before_anything_runs(monkeypatch):
    for name, engine in ENGINES.items():
        monkeypatch.setitem(ENGINES, name, replace(engine, built="print('none')", package="torch"))
    values = config.load(smoke(launch={"by": "slurm"}), "c").values
    with pytest.raises(config.ConfigError, match="c: engine: horovod cannot be used: it was built without"):
        config.check_machine(values, "c", jobs=True)


@pytest.mark.unit
@pytest.mark.parametrize("launch, jobs", [({"by": "local"}, False), ({"by": "slurm"}, True)])
@pytest.mark.parametrize("changes, refused", [({}, True), ({"engine": "torch_dist"}, False)])
@pytest.mark.parametrize("timed_on", ENGINES)
def test_an_engine_that_is_not_installed_is_refused_before_anything_runs(
    timed_on, changes, refused, launch, jobs, monkeypatch
):
    for name, engine in ENGINES.items():
        monkeypatch.setitem(ENGINES, name, replace(engine, built="print('Gloo MPI')"))
    monkeypatch.setitem(ENGINES, "horovod", replace(ENGINES["horovod"], package="no_such_package"))
    timing = read("smoke")["timing"] | {"engine": timed_on}
    values = config.load(smoke(network="host", launch=launch, timing=timing, **changes), "c").values
    if refused or timed_on == "horovod":
        expected = (
            "c: engine: horovod is not installed here; "
            "run 'make env' (compiles it, about 2 minutes) or use engine: torch_dist"
        )
        with pytest.raises(config.ConfigError, match=f"^{re.escape(expected)}$"):
            config.check_machine(values, "c", jobs=jobs)
    else:
        config.check_machine(values, "c", jobs=jobs)


@pytest.mark.unit
def test_where_runs_are_started_changes_none_of_them():
    shared = {"network": "host", "engine": "torch_dist"}
    here = config.load(smoke(**shared), "c").every
    for there in ({"by": "ssh", "hosts": ["a:1", "b:1"]}, {"by": "slurm", "per_node": 2}, {"per_gpu": 2}):
        assert config.load(smoke(**shared, launch=there), "c").every == here


@pytest.mark.unit
def test_a_job_asks_for_its_own_size_and_not_for_the_largest_runs():
    changes = {"topologies": ["allgather", "ps-weights"], "device": "cuda", "workers": 3, "network": "host"}
    found = config.load(smoke(**changes, launch={"by": "slurm", "per_node": 2}), "c")
    for spec in found.every.values():
        asked = launching.resources(spec, found.values)
        assert set(asked) == set(launching.RESOURCES)
        assert (asked["tasks"], asked["gpu"], asked["nodes"]) == (spec.processes, 4, 2)  # as many GPUs on each node
    assert {spec.processes for spec in found.every.values()} == {3, 4}
    found = config.load(smoke(**changes), "c")  # each run in one task, which starts its processes
    for spec in found.every.values():
        asked = launching.resources(spec, found.values)
        assert (asked["tasks"], asked["nodes"], asked["mpi"]) == (1, 1, "")
        assert asked["gpu"] == asked["cpus_per_task"] == spec.processes
