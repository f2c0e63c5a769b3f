"""Launch settings of a configuration's runs, and the resources that a run requests from a scheduler. No torch."""

from dlgs_bench import plugins
from dlgs_bench.spec import LaunchSettings, RunSpec

SAMPLES = 130_000  # of the longest epoch, which is ImageNet-100's
MARGIN = 4  # factor on the expected time, which assumes that nodes are never idle
REPEATED = 2  # factor on the budget of a timing run: its least number of blocks may take longer
START_MIN, TIMED_MIN = 30, 60  # minutes
CPU_MULTIPLY_ADDS_S = 1e10  # of one thread: slow processors do 9e9 a second when they train ResNet-20
PROCESS_MB, MB_PER_PARAMETER = 4000, 40e-6  # memory of a process
RESOURCES = ("nodes", "tasks", "gpu", "tasks_per_gpu", "cpus_per_task", "mem_mb", "runtime", "mpi", "slurm_extra")


def settings(values: dict, workflow: int = 0) -> LaunchSettings:
    """The launch settings of a configuration; ``workflow``: the id of the process that waits for the runs."""
    launch = values["launch"]
    return LaunchSettings(
        data_root=values["data"]["root"],
        hang_timeout_s=values["hang_timeout_s"],
        checkpoint_every_s=values["checkpoint_every_s"],
        workflow=workflow,
        by=launch["by"],
        hosts=tuple(launch["hosts"]),
        interface=launch["interface"],
        per_gpu=launch["per_gpu"],
    )


def resources(spec: RunSpec, values: dict) -> dict[str, int | str]:
    """The resources that a run requests, with the names of Snakemake's executor for Slurm.

    ``runtime`` is in minutes, ``mem_mb`` is per node. If Slurm starts the processes, they are the tasks of the job.
    Otherwise all processes are in one task.
    """
    per_node = min(values["launch"]["per_node"], spec.processes)
    tasks = spec.processes if values["launch"]["by"] == "slurm" else 1
    on_node = per_node if tasks > 1 else spec.processes
    nodes = -(-spec.processes // on_node)
    most = -(-spec.processes // nodes)  # processes on one node
    gpus = -(-most // values["launch"]["per_gpu"]) if spec.cluster.device == "cuda" else 0
    extra = [] if spec.kind == "accuracy" else ["--exclusive"]
    # Slurm may distribute the GPUs of a job unevenly over its nodes, and then no step can use them.
    extra += [f"--gpus-per-node={gpus}"] if gpus and nodes > 1 else []
    return {
        "nodes": nodes,
        "tasks": tasks,
        "gpu": nodes * gpus,
        "tasks_per_gpu": 0,  # Slurm binds no task to a GPU: each process uses the GPU of its local rank
        "cpus_per_task": spec.cluster.threads * spec.processes // tasks,
        "mem_mb": on_node * _process_mb(spec),
        "runtime": _minutes(spec, values["testbed"]["nodes"]["multiply_adds_s"]),
        # The job's command starts the processes in the job itself.
        "mpi": "srun" if tasks > 1 else "",
        "slurm_extra": " ".join(extra),
    }


def _process_mb(spec: RunSpec) -> int:
    """The memory of one process."""
    parameters = plugins.describe("models", spec.training.model)["parameters"] if spec.training.model else 0
    return PROCESS_MB + round(parameters * MB_PER_PARAMETER)


def _minutes(spec: RunSpec, multiply_adds_s: float) -> int:
    """The time limit of a job. An accuracy run that reaches it continues in the next attempt."""
    if spec.kind != "accuracy":
        return max(TIMED_MIN, START_MIN + round(REPEATED * spec.measurement.budget_s / 60))
    if spec.cluster.device == "cpu":
        multiply_adds_s = CPU_MULTIPLY_ADDS_S * spec.cluster.threads
    training = spec.training
    samples = training.train_steps * training.batch * spec.cluster.workers or training.train_epochs * SAMPLES
    multiply_adds = samples * plugins.describe("models", training.model)["multiply_adds"]
    return START_MIN + round(MARGIN * multiply_adds / (spec.cluster.workers * multiply_adds_s) / 60)
