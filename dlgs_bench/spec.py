"""What one run is, in parts by what they describe. No torch, no Snakemake.

Every field of ``RunSpec`` is part of the run's identity: it decides the numbers that come out. ``LaunchSettings`` says
where a run finds its data and how long it may stay silent, which decides none: two runs that differ only there
are one run. Only what differs from the defaults is written down, so a new field repeats no run.
"""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES, Topology

Kind = Literal["accuracy", "timing", "planners", "layers", "exchanges", "sums", "hybrid"]
Groups = tuple[tuple[int, int], ...]  # (start, stop) of layers, last layer first


@dataclass(frozen=True)
class Training:
    """What is learnt, and from what. Budgets in epochs, batch sizes per worker."""

    model: str = ""
    data: str = "cifar10"
    stand_in: bool = False  # the data is not what the paper used for this model
    batch: int = 32
    epochs: float = 140  # the recipe's; the learning-rate schedule refers to these
    train_epochs: float = 140  # what an accuracy run really trains; the schedule is scaled to it
    # train_epochs as asked for, where the run's budget_s decides how many of them are trained; 0: no budget
    most_epochs: float = 0
    train_steps: int = 0  # in the place of train_epochs, where it is above 0
    lr: float = 0.1
    lr_steps: tuple[float, ...] = ()
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    momentum: float = 0.9  # of sgd and muon
    betas: tuple[float, float] = (0.9, 0.999)  # of adamw and muon
    weight_decay: float = 1e-4
    warmup_epochs: float = 0
    seed: int = 0
    # of forward and backward; weights, loss, exchange and update are float32
    precision: Literal["float32", "bfloat16"] = "float32"

    def learning_rate(self, epoch: float) -> float:
        """The rate at ``epoch`` of this run: divided by 10 at each of ``lr_steps``, after a linear warm-up."""
        of_recipe = epoch * self.epochs / self.train_epochs
        if of_recipe < self.warmup_epochs:
            return self.lr * (of_recipe + 1e-9) / self.warmup_epochs
        return self.lr * 0.1 ** sum(of_recipe >= step for step in self.lr_steps)


@dataclass(frozen=True)
class Scheme:
    """How gradients are exchanged."""

    method: str = "none"
    variant: str = ""  # the name of this set of parameters; empty: the method's own name
    # parameters of the method, its ratio too; of hybrids the workers that hold the head
    options: dict[str, Any] = field(default_factory=dict)
    topology: str = ALL_GATHER.name  # a name in dlgs_bench.topology
    collective: str = "engine"  # how dense sums travel: "engine", or a file in dlgs_bench/comm/collectives
    streams: dict[str, int] = field(default_factory=dict)  # options of a collective that has streams
    wire: Literal["indices", "smallest", "run-length"] = "indices"  # how the places of sent entries travel
    bucket_bytes: int = 2**23  # uncompressed gradients are merged up to this size
    # timing: how layers are merged if a baseline is timed with several ways of merging, such as "256kib" or "planned";
    # empty: as bucket_bytes says
    bucketing: str = ""
    planner: str = "layer"  # how methods of scope "plan" merge layers
    groups: Groups = ()  # what the planner found
    ratios: tuple[float, ...] = ()  # one for each group, where the plan chose them
    plans: dict[str, Groups] = field(default_factory=dict)  # kind "planners": what each planner found
    # timing, exchanges: schemes that take turns with this one in the same processes, label -> {"method": ...,
    # "options": ...} and the other fields in which they differ from this one
    timed_with: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Variant, ratio and bucketing: the name of this scheme in a run that times several, such as "topk-0.01"."""
        ratio = self.options.get("ratio")
        parts = [self.variant or self.method, "" if ratio is None else f"{ratio:g}", self.bucketing]
        return "-".join(filter(None, parts))

    def alone(self, label: str) -> "Scheme":
        """The scheme ``label`` without the others: this one, one of ``timed_with``, or uncompressed."""
        if label == self.label:
            return replace(self, timed_with={})
        other = self.timed_with.get(label, {"method": "none", "options": {}})
        return replace(self, **{"variant": label, "groups": (), "ratios": (), "timed_with": {}} | other)


@dataclass(frozen=True)
class Cluster:
    """Who takes part, on what, over which network."""

    engine: str = "horovod"
    workers: int = 2  # a server, or an aggregator apart, is a process more
    threads: int = 1  # per worker
    device: Literal["cpu", "cuda"] = "cpu"
    network: Literal["host", "testbed"] = "host"
    rates_mbit: tuple[float, ...] = ()  # testbed: of each host's link, in Mbit/s
    latency_ms: float = 0.0  # testbed: from host to host, beside the time of a message's bytes
    in_proportion: bool = False  # the rates follow from a calibration, see dlgs_bench/timemodel/slowdown.py,
    calibrated_s: float = 0.0  # in which forward and backward took so long
    latency_in_proportion: bool = False  # so does the latency


@dataclass(frozen=True)
class Measurement:
    """What is observed, and how often."""

    evaluations: int = 10  # accuracy: points of the curve, the last at the end
    test_samples: int = 10_000  # accuracy: how many are used at points before the last
    final_test_samples: int = 10_000  # accuracy: how many are used at the last point
    byte_budget: float = 0.0  # accuracy: a point more, where rank 0 has sent so many bytes; 0: none
    launches: int = 1  # timing: how often the processes are started
    blocks: int = 5  # timing: turns of all schemes in a launch, at least; more follow as long as
    width: float = 0.0  # the interval of a speed-up is wider than this part of it,
    budget_s: float = 0.0  # and the run has taken less than this, all launches and their starts included.
    # layers, exchanges: fewer ``repeats`` once this is spent; 0: all. accuracy: fewer epochs, see most_epochs
    repeats: int = 3  # timing: iterations of each phase in a block; calibration: samples
    # exchanges: label -> entries of the largest bucket to measure
    largest: dict[str, int] = field(default_factory=dict)
    largest_entries: int = 0  # sums: the entries of the tensor
    brief: bool = False  # sums: only blocks at random places, at few densities


@dataclass(frozen=True)
class RunSpec:
    """One run: its kind, and the parts that decide its numbers."""

    kind: Kind
    training: Training = Training()
    scheme: Scheme = Scheme()
    cluster: Cluster = Cluster()
    measurement: Measurement = Measurement()

    @property
    def topology(self) -> Topology:
        return TOPOLOGIES[self.scheme.topology]

    @property
    def variant(self) -> str:
        return self.scheme.variant or self.scheme.method

    @property
    def ratio(self) -> float | None:
        """The ratio asked for; None for methods without one."""
        return self.scheme.options.get("ratio")

    @property
    def members(self) -> dict[str, "RunSpec"]:
        """What takes turns in this run, label -> a run of that scheme alone. Timing runs include uncompressed."""
        first = ["none"] if self.kind == "timing" else []
        labels = dict.fromkeys([*first, self.scheme.label, *self.scheme.timed_with])
        return {label: replace(self, scheme=self.scheme.alone(label)) for label in labels}

    @property
    def trains(self) -> bool:
        """Whether the run computes with its model; a calibration of exchanges only takes its size, sums have none."""
        return self.kind not in ("exchanges", "sums")

    @property
    def processes(self) -> int:
        """The workers, and the servers or the aggregators apart from them, which are the last ranks."""
        aggregators = self.scheme.streams["aggregators"] if self.scheme.streams.get("apart") else 0
        return self.cluster.workers + self.topology.servers + aggregators

    def steps(self, samples: int) -> int:
        """How many steps an accuracy run makes with so many training samples."""
        training, points = self.training, self.measurement.evaluations
        epoch = -(-samples // (training.batch * self.cluster.workers))
        return training.train_steps or max(points, round(training.train_epochs * epoch))

    def points(self, steps: int) -> set[int]:
        """After which of its steps an accuracy run has a point of its curve, whatever its byte budget."""
        points = self.measurement.evaluations
        return {round(steps * (i + 1) / points) for i in range(points)}

    def asked(self) -> "RunSpec":
        """As a configuration asks for it: without what plans and calibrations tell its run."""
        links = {"rates_mbit": (), "calibrated_s": 0.0} if self.cluster.in_proportion else {}
        if self.cluster.latency_in_proportion:
            links["latency_ms"] = 0.0
        planned = ("groups", "ratios")
        timed_with = {
            label: {key: value for key, value in own.items() if key not in planned}
            for label, own in self.scheme.timed_with.items()
        }
        scheme = replace(self.scheme, groups=(), ratios=(), plans={}, timed_with=timed_with)
        training = self.training
        if training.most_epochs:
            training = replace(training, train_epochs=training.most_epochs)
        return replace(self, training=training, scheme=scheme, cluster=replace(self.cluster, **links))

    def flat(self) -> dict[str, Any]:
        """All fields by name, without the parts: the columns of tidy tables."""
        columns = {"kind": self.kind}
        for part in (self.training, self.scheme, self.cluster, self.measurement):
            columns |= asdict(part)
        return columns | {"variant": self.variant, "ratio": self.ratio}

    def to_json(self) -> str:
        return json.dumps(_written(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "RunSpec":
        return cls.from_dict(json.loads(text))

    @classmethod
    def in_folder(cls, folder: Path) -> "RunSpec":
        """The spec of the finished run in ``folder``."""
        return cls.from_dict(json.loads((folder / "run.json").read_text(encoding="utf-8"))["spec"])

    @classmethod
    def from_dict(cls, values: dict) -> "RunSpec":
        """From the types of JSON, as in the record of a run."""
        parts = {f.name: f.default for f in fields(cls) if is_dataclass(f.default)}
        read = {name: replace(part, **_read(values.get(name, {}))) for name, part in parts.items()}
        return cls(values["kind"], **read)

    def title(self) -> str:
        """For a person: kind, model, variant and ratio."""
        ratio = f" at {self.ratio:g}" if self.ratio else ""
        return " ".join(filter(None, (self.kind, self.training.model, self.variant + ratio)))


# What a plan file and the run that it is for agree on: see dlgs_bench/timemodel/plans.py.
PLANNED_FOR = ("model", "variant", "ratio", "bucketing", "engine", "topology", "collective", "workers", "planner")


@dataclass(frozen=True)
class LaunchSettings:
    """Where a run happens: nothing here decides a number.

    ``data``: data set -> its folder. ``hang_timeout_s``: a rank that reports no progress for so long counts as
    hung. ``workflow``: the process that waits for the run on this machine; if it ends, so does the run.
    ``checkpoints``: the folder of the run's checkpoints, and every how many seconds one is made.
    ``share_s``: how many seconds of its budget a run spends in this launch.
    ``by``: how its processes are started, "local" on this machine, by "ssh" on ``hosts``, each with how many it takes,
    such as "node1:2", or by "slurm" on the nodes of the job that this is. ``interface``: of the network that joins
    them, if not empty. ``per_gpu``: processes that share a GPU.
    """

    data: dict[str, str] = field(default_factory=dict)
    hang_timeout_s: float = 900
    workflow: int = 0
    checkpoints: str = ""
    checkpoint_every_s: float = 300
    share_s: float = 0.0
    by: Literal["local", "ssh", "slurm"] = "local"
    hosts: tuple[str, ...] = ()
    interface: str = ""
    per_gpu: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "LaunchSettings":
        return cls(**json.loads(text))


def _written(part) -> dict:
    """The fields of a dataclass that differ from their defaults, parts as dictionaries."""
    found = {}
    for f in fields(part):
        value = getattr(part, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if value != default:
            found[f.name] = _written(value) if is_dataclass(value) else value
    return found


def _read(values: dict) -> dict:
    """The fields of a part from the types of JSON: every list is a tuple, except in the options of methods."""
    return {name: value if name == "options" else _frozen(value) for name, value in values.items()}


def _frozen(value):
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(part) for key, part in value.items()}
    return value
