"""A real Slurm of two nodes, each on a host of its own: jobs that span both, with the bits of a local run."""

import subprocess

import pytest
import slurm_node
import ssh_hosts
from support import ENVIRONMENT, WORKFLOW_TIMEOUT_S, alone, clone, needs_horovod, snakemake
from test_slurm import SLURM, accuracy, logs, needs_plugin, needs_slurm, the_same

GRID = ["--configfile", "config/tiny.yaml", "--config", "methods=[none, dlgs]", "timing={ratios: [0.1]}", "workers=3"]
RUNS = [f"results/tiny/runs/tiny/accuracy/tiny-{run}-seed0/points.csv" for run in ("none", "dlgs-0.1")]

needs_ssh = pytest.mark.skipif(bool(ssh_hosts.missing()), reason=ssh_hosts.missing() or "")
pytestmark = [pytest.mark.root, pytest.mark.slow, needs_plugin, needs_slurm, needs_ssh]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    keys, folder = (tmp_path_factory.mktemp(name) for name in ("ssh", "slurm"))
    with alone("slurm"), ssh_hosts.hosts(2, keys) as found, slurm_node.cluster(folder, found):
        yield found


@pytest.mark.parametrize("engine, asked", [pytest.param("horovod", RUNS, marks=needs_horovod), ("torch_dist", ["all"])])
def test_jobs_of_two_nodes_have_the_bits_of_a_local_run(engine, asked, hosts, tiny_source, tmp_path):
    here, there = (clone(tiny_source, tmp_path / name) for name in ("here", "there"))
    done = snakemake(here, ENVIRONMENT, *RUNS, *GRID, f"engine={engine}")
    assert done.returncode == 0, done.stderr[-3000:]
    process = hosts.start(
        ["snakemake", *asked, *SLURM, *GRID, f"engine={engine}", "launch={by: slurm, per_node: 2}"],
        cwd=there, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    said = process.communicate(timeout=WORKFLOW_TIMEOUT_S)[0]
    assert process.returncode == 0, said[-3000:] + logs(there)[-3000:]
    the_same(accuracy(there), accuracy(here))
    assert (there / "results/tiny/report.html").exists() == (asked == ["all"])
