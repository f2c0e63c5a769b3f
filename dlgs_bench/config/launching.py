"""Where a configuration's runs are started, and what each asks of a cluster's scheduler. No torch."""

from dlgs_bench import data, plugins
from dlgs_bench.spec import LaunchSettings, RunSpec

SAMPLES = 130_000  # of an epoch, at most: ImageNet-100's
MARGIN = 4  # expected times are those of nodes that are never idle
START_MIN, TIMED_MIN = 30, 60  # minutes
PROCESS_MB, MB_PER_PARAMETER = 4000, 40e-6  # of a process's memory
ASKED = ("nodes", "tasks", "gpu", "tasks_per_gpu", "cpus_per_task", "mem_mb", "runtime", "mpi", "slurm_extra")


def settings(values: dict, workflow: int = 0) -> LaunchSettings:
    """Where the runs of the process ``workflow`` are started."""
    launch = values["launch"]
    return LaunchSettings(
        data=dict.fromkeys(data.names(), values["data"]["root"]),
        hang_timeout_s=values["hang_timeout_s"],
        checkpoint_every_s=values["checkpoint_every_s"],
        workflow=workflow,
        by=launch["by"],
        hosts=tuple(launch["hosts"]),
        interface=launch["interface"],
        per_gpu=launch["per_gpu"],
    )


def asked(spec: RunSpec, values: dict) -> dict[str, int | str]:
    """What a run asks for, by the names of Snakemake's executor for Slurm; ``runtime``: minutes, ``mem_mb``: of a node.

    A job is as large as its run. Where Slurm starts the processes they are its tasks, else all are in one task.
    """
    per_node = min(values["launch"]["per_node"], spec.processes)
    tasks = spec.processes if values["launch"]["by"] == "slurm" else 1
    on_node = per_node if tasks > 1 else spec.processes
    nodes = -(-spec.processes // on_node)
    most = -(-spec.processes // nodes)  # of its processes, on one node
    gpus = -(-most // values["launch"]["per_gpu"]) if spec.cluster.device == "cuda" else 0
    extra = [] if spec.kind == "accuracy" else ["--exclusive"]
    # Of GPUs for a whole job Slurm gives one node more than another, and then no step can have them.
    extra += [f"--gpus-per-node={gpus}"] if gpus and nodes > 1 else []
    return {
        "nodes": nodes,
        "tasks": tasks,
        "gpu": nodes * gpus,
        "tasks_per_gpu": 0,  # Slurm binds no task to a GPU: each process takes the one of its local rank
        "cpus_per_task": spec.cluster.threads * spec.processes // tasks,
        "mem_mb": on_node * _process_mb(spec),
        "runtime": _minutes(spec, values["testbed"]["nodes"]["multiply_adds_s"]),
        # The job's command starts the processes in the job itself.
        "mpi": "srun" if tasks > 1 else "",
        "slurm_extra": " ".join(extra),
    }


def _process_mb(spec: RunSpec) -> int:
    parameters = plugins.describe("models", spec.training.model)["parameters"] if spec.training.model else 0
    return PROCESS_MB + round(parameters * MB_PER_PARAMETER)


def _minutes(spec: RunSpec, multiply_adds_s: float) -> int:
    """How long a job may take. An accuracy run that is ended then goes on in the next attempt."""
    if spec.kind != "accuracy":
        return TIMED_MIN
    training = spec.training
    samples = training.train_steps * training.batch * spec.cluster.workers or training.train_epochs * SAMPLES
    multiply_adds = samples * plugins.describe("models", training.model)["multiply_adds"]
    return START_MIN + round(MARGIN * multiply_adds / (spec.cluster.workers * multiply_adds_s) / 60)
