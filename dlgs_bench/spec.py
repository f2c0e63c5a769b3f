"""The specification of a run: ``RunSpec``, whose fields can change its numbers, and ``LaunchSettings``. No torch.

Every field of ``RunSpec`` is part of the identity of a run. ``LaunchSettings`` has fields that cannot change a number,
such as the folders of data and timeouts: two runs that differ only in them are the same run. Only values that differ
from the defaults are written, so a new field does not repeat finished runs.
"""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES, Topology

UNCOMPRESSED = "none"  # the method and the variant that send the whole gradient
Kind = Literal["accuracy", "timing", "planners", "layers", "exchanges", "sums", "hybrid"]
# The module in dlgs_bench/training of each kind of run. Its function has the name of the kind: timed.timing,
# train.accuracy.
MODULES: dict[Kind, str] = {
    "accuracy": "train",
    "timing": "timed",
    "planners": "timed",
    "layers": "calibrate",
    "exchanges": "calibrate",
    "sums": "sums",
    "hybrid": "hybrid",
}
Groups = tuple[tuple[int, int], ...]  # (start, stop) of layers, last layer first


@dataclass(frozen=True)
class Training:
    """The model, its data, and the training recipe. Budgets are in epochs; the batch size is per worker."""

    model: str = ""
    data: str = "cifar10"
    stand_in: bool = False  # the data is not what the paper used for this model
    batch: int = 32
    epochs: float = 140  # epochs of the recipe, on which the learning-rate schedule is based
    train_epochs: float = 140  # epochs that an accuracy run trains; the schedule is scaled to them
    # train_epochs of the configuration, if the run's budget_s may reduce them; 0: no budget
    most_epochs: float = 0
    train_steps: int = 0  # if above 0, used instead of train_epochs
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
    """The exchange of gradients: the method with its parameters, the topology, and the plan."""

    method: str = "none"
    variant: str = ""  # the name of this set of parameters; empty: the method's own name
    # parameters of the method, with its ratio; for hybrid parallelism, the workers that hold the head
    options: dict[str, Any] = field(default_factory=dict)
    topology: str = ALL_GATHER.name  # a name in dlgs_bench.topology
    collective: str = "engine"  # the all-reduce of dense sums: "engine", or a file in dlgs_bench/comm/collectives
    streams: dict[str, int] = field(default_factory=dict)  # options of a collective with streams
    wire: Literal["indices", "smallest", "run-length"] = "indices"  # the format of sparse messages
    bucket_bytes: int = 2**23  # layers of uncompressed gradients are merged up to this size
    # timing: the way of merging layers, such as "256kib" or "planned", if a baseline is timed with several; empty: up
    # to bucket_bytes
    bucketing: str = ""
    planner: str = "layer"  # the planner that merges layers for methods of scope "plan"
    groups: Groups = ()  # the planner's result
    ratios: tuple[float, ...] = ()  # one per group, if the plan has ratios
    plans: dict[str, Groups] = field(default_factory=dict)  # kind "planners": the result of each planner
    # timing, exchanges: schemes that are timed in alternation with this one in the same processes, label ->
    # {"method": ..., "options": ...} and the other fields that differ from this scheme
    timed_with: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of this scheme in a run that times several, from variant, ratio and bucketing: "topk-0.01"."""
        ratio = self.options.get("ratio")
        parts = [self.variant or self.method, "" if ratio is None else f"{ratio:g}", self.bucketing]
        return "-".join(filter(None, parts))

    def alone(self, label: str) -> "Scheme":
        """The scheme with this label, without other schemes: this one, one of ``timed_with``, or uncompressed."""
        if label == self.label:
            return replace(self, timed_with={})
        other = self.timed_with.get(label, {"method": "none", "options": {}})
        return replace(self, **{"variant": label, "groups": (), "ratios": (), "timed_with": {}} | other)


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, their device, and their network."""

    engine: str = "horovod"
    workers: int = 2  # servers and dedicated aggregators are further processes
    threads: int = 1  # per worker
    device: Literal["cpu", "cuda"] = "cpu"
    network: Literal["host", "testbed"] = "host"
    rates_mbit: tuple[float, ...] = ()  # testbed: the rate of each host's link, in Mb/s
    latency_ms: float = 0.0  # testbed: the time of an empty message from host to host
    in_proportion: bool = False  # whether the rates come from a calibration, see dlgs_bench/timemodel/slowdown.py
    calibrated_s: float = 0.0  # the time of forward and backward in this calibration
    latency_in_proportion: bool = False  # whether the latency comes from the calibration, too


@dataclass(frozen=True)
class Measurement:
    """The measured quantities, and the number of measurements."""

    evaluations: int = 10  # accuracy: points of the curve, the last one at the end
    test_samples: int = 10_000  # accuracy: test samples at each point except the last
    final_test_samples: int = 10_000  # accuracy: test samples at the last point
    byte_budget: float = 0.0  # accuracy: another point, when rank 0 has sent this number of bytes; 0: none
    launches: int = 1  # timing: the number of launches
    # timing: the smallest number of blocks in a launch. More follow while the interval of a speed-up, divided by the
    # speed-up, is wider than ``width``, and the run, with the starts of launches, has taken less than ``budget_s``.
    blocks: int = 5
    width: float = 0.0
    budget_s: float = 0.0  # layers, exchanges: fewer ``repeats`` if it is spent; 0: all. accuracy: see most_epochs
    repeats: int = 3  # timing: iterations of each phase in a block; calibration: samples
    # exchanges: label -> entries of the largest bucket to measure
    largest: dict[str, int] = field(default_factory=dict)
    largest_entries: int = 0  # sums: the entries of the tensor
    brief: bool = False  # sums: only blocks at random positions, at a few densities

    def tested(self, most: float) -> float:
        """The number of samples that all points of a curve test; ``most``: the samples of the test set."""
        return (self.evaluations - 1) * min(self.test_samples, most) + min(self.final_test_samples, most)


@dataclass(frozen=True)
class RunSpec:
    """One run: its kind, and the parts that can change its numbers."""

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
        """The requested ratio; None for methods without a ratio."""
        return self.scheme.options.get("ratio")

    @cached_property
    def members(self) -> dict[str, "RunSpec"]:
        """The schemes of this run, label -> a run of this scheme only. Timing runs include uncompressed."""
        first = ["none"] if self.kind == "timing" else []
        labels = dict.fromkeys([*first, self.scheme.label, *self.scheme.timed_with])
        return {label: replace(self, scheme=self.scheme.alone(label)) for label in labels}

    @property
    def trains(self) -> bool:
        """Whether the run computes with its model. Calibrations of exchanges need only its size, and sums no model."""
        return self.kind not in ("exchanges", "sums")

    @property
    def timed(self) -> bool:
        """Whether the run measures times. Accuracy runs do not, nor does a hybrid that trains for some steps."""
        return self.kind != "accuracy" and not self.training.train_steps

    @property
    def processes(self) -> int:
        """The number of workers, and of servers or dedicated aggregators, which are the last ranks."""
        aggregators = self.scheme.streams["aggregators"] if self.scheme.streams.get("dedicated") else 0
        return self.cluster.workers + self.topology.servers + aggregators

    def steps(self, samples: int) -> int:
        """The number of steps of an accuracy run; ``samples``: the number of training samples."""
        training, points = self.training, self.measurement.evaluations
        epoch = -(-samples // (training.batch * self.cluster.workers))
        return training.train_steps or max(points, round(training.train_epochs * epoch))

    def points(self, steps: int) -> set[int]:
        """The steps after which an accuracy run has a point of its curve, without the point of its byte budget."""
        points = self.measurement.evaluations
        return {round(steps * (i + 1) / points) for i in range(points)}

    def asked(self) -> "RunSpec":
        """The spec as in the configuration, without the values that plans and calibrations add to a run."""
        links: dict[str, Any] = {"rates_mbit": (), "calibrated_s": 0.0} if self.cluster.in_proportion else {}
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
        """A spec from JSON values, as in the record of a run."""
        parts: dict[str, Any] = {f.name: f.default for f in fields(cls) if is_dataclass(f.default)}
        read = {name: replace(part, **_read(values.get(name, {}))) for name, part in parts.items()}
        return cls(values["kind"], **read)

    def title(self) -> str:
        """The title in messages: kind, model, variant and ratio."""
        ratio = f" at {self.ratio:g}" if self.ratio else ""
        return " ".join(filter(None, (self.kind, self.training.model, self.variant + ratio)))


# The columns that a plan file and its run have in common: see dlgs_bench/timemodel/plans.py.
PLANNED_FOR = ("model", "variant", "ratio", "bucketing", "engine", "topology", "collective", "workers", "planner")


@dataclass(frozen=True)
class LaunchSettings:
    """The place and the way in which a run is started. No field can change a number.

    ``data_root``: the folder of data sets.
    ``hang_timeout_s``: a rank without progress for this time counts as hung.
    ``workflow``: the process on this machine that waits for the run. If it or the launcher's parent ends, the run is
    stopped. 0: no process is watched.
    ``checkpoints``, ``checkpoint_every_s``: the folder of the run's checkpoints, and the interval between them.
    ``launch_budget_s``: the seconds of its budget that the run spends in this launch; None: the run has no budget.
    ``by``: the way of starting processes: "local" on this machine, "ssh" on ``hosts``, or "slurm" on the nodes of the
    current job.
    ``hosts``: hosts with their number of processes, such as "node1:2".
    ``interface``: the network interface between nodes, if it is not empty.
    ``per_gpu``: the number of processes that share a GPU.
    """

    data_root: str = ""
    hang_timeout_s: float = 900
    workflow: int = 0
    checkpoints: str = ""
    checkpoint_every_s: float = 300
    launch_budget_s: float | None = None
    by: Literal["local", "ssh", "slurm"] = "local"
    hosts: tuple[str, ...] = ()
    interface: str = ""
    per_gpu: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "LaunchSettings":
        return cls(**json.loads(text))


def _written(part: Any) -> dict:
    """The fields of a dataclass that differ from their defaults, parts as dictionaries."""
    written = {}
    for f in fields(part):
        value = getattr(part, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if value != default:
            written[f.name] = _written(value) if is_dataclass(value) else value
    return written


def _read(values: dict) -> dict:
    """The fields of a part from JSON values: lists become tuples, except in the options of methods."""
    return {name: value if name == "options" else _frozen(value) for name, value in values.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(part) for key, part in value.items()}
    return value
