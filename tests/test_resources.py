"""What the workflow's rules ask a cluster for: a run's own size, and more time with each attempt."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support import ENVIRONMENT, ROOT, TINY, read, snakemake

from dlgs_bench.config import grid, launching
from dlgs_bench.config import load as config
from dlgs_bench.spec import RunSpec

FUNCTIONS = ROOT / "workflow" / "rules" / "functions.smk"
CHANGES = {"methods": ["none", "dlgs"], "topologies": ["allgather", "ps-weights"], "network": "host", "workers": 3}
RECIPE = read("smoke")["models"]["resnet20"] | {"train_epochs": 140}
ON_SLURM = {"launch": {"by": "slurm", "per_node": 4}, "device": "cuda"}


def asking(models: list[str], **changes) -> tuple[dict[str, RunSpec], Callable[..., dict]]:
    """The runs of a configuration, and the resources that their rules ask for in an attempt, by the name of the run."""
    metadata = {"models": dict.fromkeys(models, RECIPE), "studies": {}}
    found = config.load(read("smoke") | CHANGES | metadata | changes, "c")
    names = {"CONFIG": found, "VALUES": found.values, "SPECS": found.every, "FOLDERS": defaultdict(str)}
    names |= {"grid": grid, "launching": launching, "replace": replace}
    exec(compile(FUNCTIONS.read_text(), FUNCTIONS, "exec"), names)

    def asked(name: str, attempt: int = 1) -> dict:
        kind, run = name.split("/")
        resources = names["resources_of"](kind)
        return {key: value(SimpleNamespace(run=run), attempt=attempt) for key, value in resources.items()}

    return found.every, asked


@pytest.mark.unit
@pytest.mark.parametrize("where", [ON_SLURM, {}], ids=["slurm", "local"])
def test_each_attempt_asks_for_more_time_and_for_nothing_else(where):
    runs, asked = asking(["resnet20"], **where)
    for name in runs:
        first = asked(name)
        assert first["runtime"] > 0
        for attempt in (2, 3):
            assert asked(name, attempt) == first | {"runtime": attempt * first["runtime"]}


@pytest.mark.unit
@pytest.mark.parametrize("where", [ON_SLURM, {}], ids=["slurm", "local"])
def test_timed_runs_ask_for_nodes_of_their_own_and_training_does_not(where):
    runs, asked = asking(["resnet20"], **where)
    assert {"accuracy", "timing", "layers", "exchanges"} <= {spec.kind for spec in runs.values()}
    for name, spec in runs.items():
        assert ("--exclusive" in asked(name)["slurm_extra"]) == (spec.kind != "accuracy"), name


@pytest.mark.unit
def test_a_timed_run_asks_for_its_budget_and_training_on_a_cpu_for_a_cpus_time():
    runs, asked = asking(["resnet20"], **ON_SLURM)
    timed = {"timing": read("smoke")["timing"] | {"budget_s": 7200}}
    longer, asked_longer = asking(["resnet20"], **ON_SLURM, **timed)
    name = next(name for name, spec in runs.items() if spec.kind == "timing")
    assert longer[name].measurement.budget_s == 7200
    assert asked(name)["runtime"] == launching.TIMED_MIN and asked_longer(name)["runtime"] > 2 * 7200 / 60
    trained = "accuracy/resnet20-none-seed0"
    assert asking(["resnet20"])[1](trained)["runtime"] > 10 * asked(trained)["runtime"]


@pytest.mark.unit
def test_a_run_asks_for_what_it_would_ask_for_without_larger_runs():
    runs, asked = asking(["resnet20", "vgg16"], **ON_SLURM)
    for model in ("resnet20", "vgg16"):
        own, alone = asking([model], **ON_SLURM)
        shared = own.keys() & runs.keys()  # studies take the largest model, and that one alone
        assert {f"accuracy/{model}-none-seed0", f"layers/{model}-3workers"} < shared
        for name in shared:
            assert asked(name) == alone(name), name
    small, large = (asked(f"accuracy/{model}-none-seed0") for model in ("resnet20", "vgg16"))
    assert small["mem_mb"] < large["mem_mb"] and small["runtime"] < large["runtime"]
    assert {spec.processes for spec in runs.values()} == {3, 4}
    for name, spec in runs.items():
        assert (asked(name)["tasks"], asked(name)["gpu"]) == (spec.processes, spec.processes), name


@pytest.mark.workflow
@pytest.mark.slow
def test_training_on_other_hosts_takes_all_cores_so_that_one_run_follows_another(tiny_project):
    """Snakemake counts only the cores of its own machine."""
    with (tiny_project / "workflow/rules/runs.smk").open("a") as rules:
        rules.write('\ncores = workflow.get_rule("accuracy").resources["_cores"].value\n')
        rules.write('print("training takes", cores, file=sys.stderr)\n')
    for launch, cores in (("{by: local}", 2), ("{by: ssh, hosts: [one:1, two:1]}", 8)):
        done = snakemake(tiny_project, ENVIRONMENT, "-n", "--cores", "8", *TINY, f"launch={launch}")
        assert f"training takes {cores}" in done.stderr, done.stderr
