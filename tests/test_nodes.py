"""What nodes say they have: too few GPUs are one line, and a Slurm job's processes are dealt out to all its nodes."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlgs_bench.config import launching
from dlgs_bench.launch import nodes
from dlgs_bench.launch.launcher import RUN
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec, Training

pytestmark = pytest.mark.unit


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder whose programs stand in for those of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.fixture
def gpus_by_ssh(programs):
    """A host's number of GPUs by its name, which ssh gets before the command. Each host greets first."""

    def answer(**gpus: int) -> None:
        says = {host: json.dumps({"seen": True, "gpus": count, "port": 4000}) for host, count in gpus.items()}
        cases = "\n".join(f"*\\ {host}\\ *) echo '{said}' ;;" for host, said in says.items())
        programs("ssh", f'echo Welcome\ncase " $* " in\n{cases}\nesac')

    return answer


def test_a_host_with_fewer_gpus_than_its_processes_need_is_one_line(gpus_by_ssh, tmp_path):
    gpus_by_ssh(one=2, two=1)
    said = "launch.hosts: two shows 1 GPUs for 2 processes; give it fewer, or a larger launch.per_gpu"
    with pytest.raises(nodes.Refused, match=f"^{re.escape(said)}$"):
        nodes.reach({"one": 2, "two": 2}, "cuda", 1, tmp_path)
    assert nodes.reach({"one": 2, "two": 1}, "cuda", 1, tmp_path) == 4000
    assert nodes.reach({"one": 4, "two": 2}, "cuda", 2, tmp_path) == 4000  # two processes share a GPU
    assert nodes.reach({"one": 9, "two": 9}, "cpu", 1, tmp_path) == 4000


JOB = """\
JobId=7 JobName=sh
   NodeList={names}
   BatchHost=a1
   NumNodes={nodes} NumCPUs={tasks} NumTasks={tasks} CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES={gres}
     Nodes={names} CPU_IDs=0-1 Mem=100 GRES=
"""


def job(tasks: int, names: list[str], gres: str = "(null)") -> str:
    """What ``scontrol show job --details`` prints of a job."""
    return JOB.format(names=",".join(names), nodes=len(names), tasks=tasks, gres=gres)


@pytest.mark.parametrize(
    "gres, per_gpu, shows",
    [
        ("(null)", 1, 0),
        ("gpu:2", 1, 2),
        ("gpu:a100:2", 1, 2),
        ("gpu:1", 2, 1),
        ("gpu:a100:1,gpu:h100:1", 1, 2),
        ("gpu:a100-sxm4:1,gpu:a100_3g.20gb:1", 1, 2),
        ("gpu:3", 1, None),
        ("gpu:a100:1,gpu:h100:2", 1, None),
        ("gpu:1g.10gb:3", 1, None),
        ("gpu:2", 2, None),
    ],
)
def test_a_slurm_job_with_fewer_gpus_than_its_processes_need_is_one_line(gres, per_gpu, shows, programs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    programs("scontrol", f"[ $2 = hostnames ] && printf 'a1\\na2\\n' || cat <<'END'\n{job(3, ['a[1-2]'], gres)}END")
    place = LaunchSettings(by="slurm", per_gpu=per_gpu)
    assert nodes.of(3, place, "cpu") == {"a1": 2, "a2": 1}
    if shows is None:
        assert nodes.of(3, place, "cuda") == {"a1": 2, "a2": 1}
        return
    said = f"launch.by: the Slurm job has {shows} GPUs for 3 processes; submit it with more, or give a larger "
    with pytest.raises(nodes.Refused, match=f"^{re.escape(said)}launch.per_gpu$"):
        nodes.of(3, place, "cuda")


def test_a_run_takes_the_first_nodes_of_a_larger_slurm_job(programs, monkeypatch):
    """Runs of one configuration have different numbers of processes."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    names = "printf 'a1\\na2\\na3\\n'"
    programs("scontrol", f"[ $2 = hostnames ] && {names} || cat <<'END'\n{job(5, ['a[1-3]'], 'gpu:5')}END")
    expected = {1: {"a1": 1}, 2: {"a1": 2}, 3: {"a1": 2, "a2": 1}, 5: {"a1": 2, "a2": 2, "a3": 1}}
    for processes, taken in expected.items():
        for device in ("cpu", "cuda"):
            assert nodes.of(processes, LaunchSettings(by="slurm"), device) == taken
    programs("scontrol", f"[ $2 = hostnames ] && {names} || cat <<'END'\n{job(9, ['a[1-3]'], 'gpu:6')}END")
    assert nodes.of(6, LaunchSettings(by="slurm"), "cpu") == {"a1": 3, "a2": 3}
    assert nodes.of(6, LaunchSettings(by="slurm"), "cuda") == {"a1": 2, "a2": 2, "a3": 2}  # 2 GPUs on each
    programs("scontrol", f"[ $2 = hostnames ] && {names} || cat <<'END'\n{job(5, ['a[1-3]'], 'gpu:5')}END")
    with pytest.raises(nodes.Refused, match=r"has 5 tasks, the run 6 processes; give --ntasks=6$"):
        nodes.of(6, LaunchSettings(by="slurm"))


def test_a_slurm_that_does_not_answer_is_one_line(programs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    programs("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    said = "launch.by: scontrol cannot describe this job: slurm_load_jobs error: Invalid job id specified"
    with pytest.raises(nodes.Refused, match=f"^{said}; check the Slurm client$"):
        nodes.of(3, LaunchSettings(by="slurm"))


def dealt(processes: int, names: list[str]) -> dict[str, int]:
    """Give each process in turn to the first of the nodes that have the fewest."""
    given = dict.fromkeys(names, 0)
    for _ in range(processes):
        given[min(names, key=given.get)] += 1
    return given


@given(processes=st.integers(1, 60), per_node=st.integers(1, 9), per_gpu=st.integers(1, 3))
def test_the_processes_of_a_slurm_job_are_dealt_out_to_its_nodes(processes, per_node, per_gpu, monkeypatch):
    """A node gets at most the processes that its limit and its GPUs allow. The job has the size that was asked for."""
    launch = {"by": "slurm", "per_node": per_node, "per_gpu": per_gpu}
    spec = RunSpec("accuracy", Training("resnet20"), cluster=Cluster(workers=processes, device="cuda"))
    asked = launching.resources(spec, {"launch": launch, "testbed": {"nodes": {"multiply_adds_s": 1e9}}})
    names = [f"a{number}" for number in range(asked["nodes"])]
    answers = {"job": job(asked["tasks"], names, f"gpu:{asked['gpu']}"), "hostnames": "\n".join(names) + "\n"}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(nodes, "_scontrol", lambda what, *options: answers[what])
    taken = nodes.of(processes, LaunchSettings(by="slurm", per_gpu=per_gpu), "cuda")
    assert taken == dealt(processes, names) and list(taken) == names
    assert sum(taken.values()) == processes and min(taken.values()) >= 1 and max(taken.values()) <= per_node
    gpus, more = divmod(asked["gpu"], len(names))
    assert more == 0 and (gpus - 1) * per_gpu < max(taken.values()) <= gpus * per_gpu
    assert asked["slurm_extra"] == (f"--gpus-per-node={gpus}" if len(names) > 1 else "")


def test_a_host_that_takes_ssh_and_then_hangs_is_named(programs, tmp_path, monkeypatch):
    programs("ssh", "exec sleep 600")
    monkeypatch.setattr(nodes, "PROBE_TIMEOUT_S", 0.5)
    with pytest.raises(nodes.Refused, match=r"one did not answer within 0\.5 s; give hosts that answer"):
        nodes.reach({"one": 2}, "cpu", 1, tmp_path)


def test_many_nodes_need_no_long_argument(tmp_path, monkeypatch):
    """Linux limits one argument to 128 KiB. Here are 200 nodes and the paths of a module system."""
    monkeypatch.setattr(nodes, "reach", lambda *_: 29500)
    place = LaunchSettings(by="ssh", hosts=tuple(f"node{number}.cluster.example:2" for number in range(200)))
    spec = RunSpec("accuracy", Training("resnet20"), cluster=Cluster("torch_dist", 400))
    made = nodes.command(spec, place, [*RUN, str(tmp_path)], {"PATH": "/software/bin:" * 150})
    assert all(len(argument) < 2**17 for argument in made)
    commands = json.loads(Path(made[-1]).read_text())
    assert len(commands) == 200 and all(sum(map(len, one)) < 2**17 for one in commands)
