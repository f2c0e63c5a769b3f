"""``record``: times the steps of a user's training loop, and measures its network and the compression methods."""

import json
import math
import platform
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, median_low
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlgs_bench import plugins
from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.buckets import fill
from dlgs_bench.device import processor
from dlgs_bench.errors import listed, meant
from dlgs_bench.hooks.fsdp import FSDPHook, hook_of_shards, reshard
from dlgs_bench.hooks.hook import plain_context, refuse_second_hook
from dlgs_bench.hooks.local_steps import has_local_steps
from dlgs_bench.hooks.optimizers import refuse_stranger
from dlgs_bench.hooks.wrappers import exchanged_by, has_outer, refuse_inner
from dlgs_bench.probe import mirror, process_group
from dlgs_bench.probe.marks import Marks
from dlgs_bench.timemodel.job_profile import (
    DDP_DEFAULTS,
    DTYPES,
    FEW_STEPS,
    FORMAT,
    ONE_EXCHANGE,
    PARTS,
    VERSION,
    check,
)

# Modules whose communication hooks of DistributedDataParallel leave the sum as it is. The first is the project's own,
# for which ``refuse_second_hook`` answers: a hook that is closed stays registered.
PLAIN_HOOKS = (
    "dlgs_bench.hooks.ddp",
    "torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks",
)
NO_REPLICAS = (
    "record: model: FSDP shards it, and methods replace an all-reduce between replicas, not FSDP's reduce-scatter; if "
    'it has replicas, call fully_shard(model, mesh=mesh["shard"]) and FSDPHook(model, mesh["rep"], optimizer, "none")'
)
WARM_UP = 2  # steps that are not recorded: DDP reorders its buckets after the first step


class record:  # noqa: N801 - it is called like a function
    """Record a profile of the training inside the context, and write it to ``path`` on rank 0.

    Example: ``with record(model, optimizer, "profile.json"): train()``. The weights have the same bits as without
    recording. The first two steps are not timed; the next ``steps`` are. Before the step after them, or at the end of
    the context, the process group and the compression methods are measured. All ranks must get there. This takes
    seconds to a few minutes. Rank 0 reports it on the standard error. ``methods``: names of the methods to measure, all
    if None. Nothing is written if the training makes fewer than three steps, or raises an exception before the
    measurement. ValueError in one line if the job cannot be recorded. RuntimeWarning without ``with``.
    """

    _entered = True  # until the arguments are known to be complete

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        path: str | Path,
        steps: int = 30,
        methods: Sequence[str] | None = None,
    ) -> None:
        self._asked, self._entered = (model, optimizer, Path(path), steps, methods), False

    def __enter__(self) -> None:
        self._entered = True
        self._recorder = Recorder(*self._asked)
        self._recorder.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._recorder.finish()
            elif issubclass(kind, KeyboardInterrupt):
                self._recorder.report_interruption()
        except KeyboardInterrupt:  # while measuring
            self._recorder.report_interruption()
            raise
        finally:
            self._recorder.remove_hooks()

    def __del__(self) -> None:
        if not self._entered:
            warnings.warn("record: nothing is recorded; write: with record(...): train()", RuntimeWarning, stacklevel=2)


@dataclass
class _Step:
    """The time stamps of one optimizer step; ``passes``: begin and end of each forward pass.

    ``exchanges``: parameter -> the number of its gradients that were exchanged, if DistributedDataParallel does it.
    ``backward_clocks``, ``last_clocks``: the host's clock, and the processor time of this process, when backward began
    and at the last gradient.
    """

    passes: list[list[Any]] = field(default_factory=list)
    backward: Any = None
    arrived: dict[int, Any] = field(default_factory=dict)
    exchanges: dict[int, int] = field(default_factory=dict)
    last: Any = None
    optimizer: Any = None
    backward_clocks: tuple[float, float] | None = None
    last_clocks: tuple[float, float] = (0.0, 0.0)


_RECORDERS: "weakref.WeakKeyDictionary[nn.Module, Recorder]" = weakref.WeakKeyDictionary()


# Functions of this module, not methods, so that copies of the model do not copy the recorder. torch.compile would
# compile them into the model, again in each step.
@torch.compiler.disable
def _forward_begins(model: nn.Module, inputs: tuple) -> None:
    if model in _RECORDERS:
        _RECORDERS[model]._forward_begins(model, inputs)


@torch.compiler.disable
def _forward_ended(model: nn.Module, inputs: tuple, outputs: Any) -> None:
    if model in _RECORDERS:
        _RECORDERS[model]._forward_ended(model, inputs, outputs)


class Recorder:
    """Hooks on a model and its optimizer; see ``record``."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, path: Path, steps: int, methods: Sequence[str] | None
    ) -> None:  # fmt: skip
        # torch.compile around DistributedDataParallel: the wrapper has the hooks, and the module in it the settings.
        self._model, self._wrapped = model, getattr(model, "_orig_mod", model)
        self._parameters = _recordable(self._wrapped, optimizer, path, steps, methods)
        hook = _uncompressed_hook(self._wrapped)
        self._replicas = hook.replicas if hook else None
        self._local = [parameter.detach() for parameter in self._parameters]
        if hook:
            self._local = [cast(DTensor, shard).to_local() for shard in self._local]
        self._optimizer, self._path = _stepping(optimizer), path
        self._steps, self._methods = steps, methods
        self._device = self._parameters[0].device
        self._marks = Marks(self._device)
        self._handles: list[Any] = []
        self._output_handles: list[Any] = []
        self._recorded: list[dict[str, Any]] = []
        self._step, self._began, self._seen, self._depth = _Step(), None, 0, 0
        self._in_closure = False  # whether an optimizer's step computes gradients
        self._exchanges = True  # whether the gradients of the current pass are exchanged
        self._finished = self._written = False

    def start(self) -> None:
        if any(recorder._wrapped is self._wrapped for recorder in _RECORDERS.values()):
            raise ValueError("record: model: another record records it; wait until that has ended")
        _RECORDERS[self._model] = self
        self._handles = [
            self._model.register_forward_pre_hook(_forward_begins),
            self._model.register_forward_hook(_forward_ended),
            self._optimizer.register_step_pre_hook(self._optimizer_begins),
            self._optimizer.register_step_post_hook(self._optimizer_ended),
        ]
        for index, parameter in enumerate(self._parameters):
            self._handles.append(parameter.register_post_accumulate_grad_hook(partial(self._gradient_arrived, index)))

    def remove_hooks(self) -> None:
        if _RECORDERS.get(self._model) is self:
            del _RECORDERS[self._model]
        for handle in (*self._handles, *self._output_handles):
            handle.remove()
        self._handles, self._output_handles = [], []

    def finish(self) -> None:
        """Remove the hooks, measure the network and the methods, and write the file.

        Warns if there is nothing to write: the training has ended, and must not fail now.
        """
        if self._finished:
            return
        self._finished = True
        self.remove_hooks()
        if not self._recorded:
            warnings.warn(
                f"record: steps: none was recorded, so {self._path} is not written; train for at least {WARM_UP + 1} "
                "steps in the context",
                stacklevel=2,
            )
            return
        self._marks.synchronize()
        cuda = self._device.type == "cuda"
        current = torch.cuda.device(self._device) if cuda else nullcontext()
        seeds = torch.random.fork_rng([self._device] if cuda else [])
        with plain_context(self._device), seeds, current, _float32_by_default():
            profile, first = self._profile()
        if first:
            check(profile)
            text = json.dumps(profile, indent=1, allow_nan=False)
            try:
                write_atomically(self._path, f"{text}\n".encode())
            except OSError as error:  # the job trains on
                warnings.warn(f"record: path: {self._path} cannot be written: {error.strerror}", stacklevel=2)
            else:
                _say(self._summary(profile))
        self._written = True

    def report_interruption(self) -> None:
        """Report on rank 0 that no file is written, if training or measuring was interrupted before it was."""
        if not self._written and process_group.is_first():
            during = "while measuring" if self._finished else f"after {len(self._recorded)} of {self._steps} steps"
            _say(f"interrupted {during}, so {self._path} is not written")

    def _summary(self, profile: dict) -> str:
        """What was recorded, in one line."""
        recorded, methods = len(self._recorded), len(profile["methods"])
        text = f"{self._path} is written: {recorded} of {self._steps} steps recorded, {methods} methods measured"
        if recorded < FEW_STEPS:
            text += f"; fewer than {FEW_STEPS} steps make the medians uncertain"
        return text

    def _forward_begins(self, model: nn.Module, inputs: tuple) -> None:
        if not torch.is_grad_enabled() or self._finished:
            return
        if len(self._recorded) == self._steps:
            self.finish()
            return
        if self._depth and not self._in_closure:  # an optimizer's step has raised an exception
            self._step, self._began, self._depth = _Step(), None, 0
        if has_outer(self._parameters):
            raise ValueError("record: model: a DistributedDataParallel around it is trained; give record that model")
        if not self._seen:  # a hook can be made in the context
            _refuse_other_exchanges(self._wrapped, self._optimizer)
        if isinstance(self._wrapped, DistributedDataParallel) and self._wrapped._join_config.enable:
            raise ValueError(
                "record: model: in join, workers make different numbers of steps, but all must get to the measurement; "
                "record before any join, with as many batches for each worker"
            )
        # FSDP2 gives gradients to hooks only in passes that exchange them.
        self._exchanges = getattr(self._wrapped, "require_backward_grad_sync", self._replicas is not None)
        self._step.passes.append([self._marks.mark(), None])
        self._step.backward, self._step.last, self._step.backward_clocks = None, None, None
        self._step.arrived.clear()

    def _forward_ended(self, model: nn.Module, inputs: tuple, outputs: Any) -> None:
        if not torch.is_grad_enabled() or self._finished or not self._step.passes:
            return
        self._step.passes[-1][1] = self._marks.mark()
        for handle in self._output_handles:
            handle.remove()
        self._output_handles = [tensor.register_hook(self._backward_begins) for tensor in _tensors(outputs)]

    def _backward_begins(self, gradient: Tensor) -> None:
        if self._step.backward is None:
            self._step.backward = self._marks.mark()
            self._step.backward_clocks = _clocks()

    def _gradient_arrived(self, index: int, parameter: Tensor) -> None:
        self._step.last = self._step.arrived[index] = self._marks.mark()
        self._step.last_clocks = _clocks()
        if self._exchanges:
            self._step.exchanges[index] = self._step.exchanges.get(index, 0) + 1

    def _optimizer_begins(self, optimizer: Optimizer, positional: tuple, named: dict) -> tuple[tuple, dict]:
        # Horovod's optimizer calls the wrapped optimizer after the exchange, so the inner call sets the time stamp.
        self._depth += 1
        self._step.optimizer = self._marks.mark()
        if named.get("closure") is not None:
            return positional, named | {"closure": self._marked(named["closure"])}
        if len(positional) > 1 and positional[1] is not None:  # the first argument is the optimizer
            return (positional[0], self._marked(positional[1]), *positional[2:]), named
        return positional, named

    def _marked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """``closure``, which computes gradients. What comes after it counts as the optimizer's work."""

        def computed() -> Any:
            self._in_closure = True
            try:
                loss = closure()
            finally:
                self._in_closure = False
            if not self._finished:
                self._step.optimizer = self._marks.mark()
            return loss

        return computed

    def _optimizer_ended(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        self._depth = max(0, self._depth - 1)  # a forward pass within the step has taken its step for interrupted
        if self._depth or self._finished:
            return
        ended, step, began = self._marks.mark(), self._step, self._began
        self._step, self._began = _Step(), ended
        if step.last is None or not step.passes or step.passes[-1][1] is None:
            return
        self._seen += 1
        if self._seen > WARM_UP and began is not None and len(self._recorded) < self._steps:
            self._recorded.append({"step": step, "began": began, "ended": ended})

    def _times(self) -> tuple[dict[str, list[float]], list[list[float | None]]]:
        """The seconds of each step by part, and the arrival times of gradients by step and parameter."""
        parts: dict[str, list[float]] = {part: [] for part in PARTS}
        arrivals = []
        between = self._marks.seconds
        for row in self._recorded:
            step: _Step = row["step"]
            (first, _), (last, forward) = step.passes[0], step.passes[-1]
            backward = step.backward if step.backward is not None else forward
            values = {
                # With several passes, all backward passes except the last count as forward. If they exchange
                # gradients, the profile's ``exchanges`` is above 1, and predictions warn.
                "forward": between(first, last) + between(last, forward),
                "loss": between(forward, backward),
                "backward": between(backward, step.last),
                "waiting": between(step.last, step.optimizer),
                "optimizer": between(step.optimizer, row["ended"]),
                "other": between(row["began"], first),
                "iteration": between(row["began"], row["ended"]),
            }
            for part, seconds in values.items():
                parts[part].append(seconds)
            marks = [step.arrived.get(index) for index in range(len(self._parameters))]
            arrivals.append([None if mark is None else between(backward, mark) for mark in marks])
        return parts, arrivals

    def _busy_cores(self) -> float | None:
        """The cores that this process kept busy in a backward pass; None if its beginning was not seen."""
        busy = []
        for row in self._recorded:
            began, ended = row["step"].backward_clocks, row["step"].last_clocks
            if began is not None and ended[0] > began[0]:
                busy.append((ended[1] - began[1]) / (ended[0] - began[0]))
        return _median(busy)

    def _profile(self) -> tuple[dict, bool]:
        """The profile, and whether this rank writes it."""
        parts, arrivals = self._times()
        arrived = [_median([own for own in column if own is not None]) for column in zip(*arrivals, strict=True)]
        shapes = [tuple(local.shape) for local in self._local]
        used = [index for index, seconds in enumerate(arrived) if seconds is not None]
        order = sorted(used, key=lambda index: arrived[index])
        order = [index for index in order if self._local[index].numel()]
        layers = [shapes[index] for index in order]
        chosen, left_out = mirror.chosen(self._methods)
        kind, backend, comm = process_group.job_group(self._wrapped, self._device, self._replicas)
        # With hybrid sharding, each shard has a group of its own, and the group of the first shard writes the profile.
        shard = cast(DTensor, self._parameters[0]).device_mesh.get_local_rank() if self._replicas else 0
        first = shard == 0 and (not comm or comm.rank == 0)
        ddp = process_group.ddp_settings(cast(DistributedDataParallel, self._wrapped)) if kind == "ddp" else None
        filled_by = ddp or DDP_DEFAULTS
        lengths = [self._local[index].nbytes for index in order]
        plan = fill(lengths, filled_by["first_bucket_bytes"], filled_by["bucket_bytes"])
        try:
            sizes = [sum(map(math.prod, bucket)) for bucket in mirror.own_buckets(layers, plan)]
            selection = mirror.selection_rows(sizes, self._marks, self._device)
            if first:
                expected_s = mirror.expected_s(len(chosen), layers, plan, selection)
                links = "the links, then " if comm else ""
                _say(f"measuring {links}{len(chosen)} methods (about {_rounded(expected_s)} s)")
            shards = cast(DTensor, self._parameters[0]).device_mesh if self._replicas else None
            machine = process_group.machine(comm, shards)
            rows, too_large = process_group.measure(comm, self._marks) if comm else ([], {})
            reordered = kind == "ddp" and order != sorted(order, reverse=True)
            not_float32 = any(self._local[index].dtype != torch.float32 for index in order)
            other_memory = not_float32 or kind in ("hsdp", "horovod")
            methods, failed = mirror.measure(chosen, layers, plan, self._marks, self._device, reordered, other_memory)
            if comm:
                comm.barrier()  # ranks need different times to measure methods
        finally:
            self._marks.free()
            if comm:
                comm.stop_thread()
        job = self._job(kind) | {"ddp": ddp}
        if first:
            not_selected = set(sizes) - {row["entries"] for row in selection}
            without_memory = [f"selection from {size} entries" for size in sorted(not_selected)]
            without_memory += [f"{operation} of {size} bytes or more" for operation, size in too_large.items()]
            self._report(job, failed | (left_out if self._methods else {}), without_memory)
        busy = self._busy_cores()
        idle = None if busy is None else max(0.0, process_group.own_cores(machine) - busy)
        workers = comm.world_size if comm else 1
        job |= {"backend": backend, "workers": workers, "machine": machine, "idle_cores": idle}
        described = [
            {"shape": list(shape), "dtype": str(parameter.dtype).removeprefix("torch."), "arrived_s": seconds}
            for shape, parameter, seconds in zip(shapes, self._parameters, arrived, strict=True)
        ]
        profile = {
            "format": FORMAT, "version": VERSION, "job": job, "parameters": described,
            "times": {part: _spread(seconds) for part, seconds in parts.items()},
            "network": rows, "selection": selection, "methods": methods, "left_out": left_out | failed,
        }  # fmt: skip
        return profile, first

    def _report(self, job: dict, failed: dict[str, str], without_memory: list[str]) -> None:
        """Report what the profile lacks. ``failed``: method -> why it was not measured."""
        if job["kind"] == "distributed":
            _say(
                "the job has several processes, and record found nothing that exchanges this model's gradients; if "
                "DistributedDataParallel does, give record the wrapped model"
            )
        if job["exchanges"] > 1:
            _say(f"{job['exchanges']} of {job['passes']} passes of a step exchange gradients, but {ONE_EXCHANGE}")
        for name, reason in failed.items():
            _say(f"methods: {name} is not measured: {reason}")
        for what in without_memory:
            _say(f"{what} is not measured: a worker has too little memory")

    def _exchanges_of_a_step(self) -> int:
        """How many passes of the median step exchange gradients.

        With DistributedDataParallel, each pass outside ``no_sync`` does.
        Horovod's optimizer exchanges once per step, whatever its ``backward_passes_per_step``.
        """
        return max(1, median_low(max(row["step"].exchanges.values(), default=1) for row in self._recorded))

    def _job(self, kind: str) -> dict:
        """The entries of the profile's ``job`` that the network does not change. ``kind``: as from ``job_group``."""
        return {
            "steps": len(self._recorded),
            # The median: if GradScaler skips an optimizer step, two steps are recorded as one.
            "passes": median_low(len(row["step"].passes) for row in self._recorded),
            "exchanges": self._exchanges_of_a_step() if kind in ("ddp", "hsdp") else 1,
            "kind": kind,
            "device": self._device.type, "device_name": _device_name(self._device),
            "threads": torch.get_num_threads(), "versions": _versions(),
        }  # fmt: skip


def _recordable(
    model: nn.Module, optimizer: Optimizer, path: Path, steps: int, methods: Sequence[str] | None
) -> list[nn.Parameter]:  # fmt: skip
    """The trainable parameters; ValueError in one line if an argument is invalid or the job cannot be recorded."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"record: model: {type(model).__qualname__} is not a torch.nn.Module; give the model first")
    if not isinstance(optimizer, Optimizer) and not hasattr(optimizer, "register_step_post_hook"):
        kind = type(optimizer).__qualname__
        raise ValueError(
            f"record: optimizer: {kind} is not a torch.optim.Optimizer; give the model's optimizer; if there are "
            "several, give the one that steps last"
        )
    reshard(model)
    refuse_stranger(_stepping(optimizer), model, "record: ")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"record: steps: {steps!r} is not a positive integer; give the number of steps to time")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"record: path: the folder of {path} does not exist; create it first")
    if path.is_dir():
        raise ValueError(f"record: path: {path} is a folder; give a file")
    try:
        tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        raise ValueError(f"record: path: {path} cannot be written: {error.strerror}; give another file") from None
    known = plugins.names("methods")
    if isinstance(methods, str):
        raise ValueError(f"record: methods: {methods!r} is not a list; give a list of names, such as {[methods]}")
    for name in methods or ():
        if name not in known:
            raise ValueError(f"record: methods: {name!r} is not a method{meant(name, known)}; {listed(known)}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if isinstance(model, DistributedDataParallel):
        parameters = list(exchanged_by(model).values())
    if not parameters:
        raise ValueError("record: model: the model has no trainable parameters; give the model that is trained")
    _refuse_other_exchanges(model, optimizer)
    if hook := _uncompressed_hook(model):
        parameters = hook.shards
    elif any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules()):
        raise ValueError(NO_REPLICAS)
    elif any(isinstance(parameter, DTensor) for parameter in parameters):
        raise ValueError("record: model: the parameters are sharded; record the job with DDP or on one process")
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters} - set(DTYPES))
    if kinds:
        raise ValueError(f"record: model: {kinds[0]} is not a supported dtype of gradients; use float32")
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1 or parameters[0].device.type not in ("cpu", "cuda"):
        raise ValueError(f"record: model: {', '.join(devices)} is not one CPU or CUDA device; move the model to one")
    return parameters


@contextmanager
def _float32_by_default() -> Iterator[None]:
    """Tensors without a dtype have 4 bytes an entry, as the sizes of messages assume, whatever the job's default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _refuse_other_exchanges(model: nn.Module, optimizer: Optimizer) -> None:
    """ValueError in one line if the job does not exchange gradients once, uncompressed, as predictions assume."""
    try:
        if _uncompressed_hook(model) is None:
            refuse_second_hook(dict(model.named_parameters()))
    except ValueError:
        raise ValueError(
            "record: model: a hook exchanges its gradients, and a profile is of uncompressed training; record without "
            "the hook, or call its close first"
        ) from None
    if has_local_steps(model.parameters()):
        raise ValueError(
            "record: model: LocalSteps exchanges its weights, and a profile is of uncompressed training; record "
            "without LocalSteps, or call its close first"
        )
    inside = model.module if isinstance(model, DistributedDataParallel) else model
    refuse_inner(inside, inside.parameters(), where="record: ")
    for exchange, _ in getattr(model, "_comm_hooks", ()):
        module, name = (getattr(exchange, key, "") for key in ("__module__", "__qualname__"))
        if not module.startswith(PLAIN_HOOKS) and exchange is not allreduce_hook:
            raise ValueError(
                f"record: model: its communication hook {name} changes the exchange, and a profile is of uncompressed "
                "training; record without the hook"
            )
    compression = getattr(optimizer, "_compression", None)
    if hasattr(optimizer, "skip_synchronize") and getattr(compression, "__name__", "") != "NoneCompressor":
        raise ValueError(
            f"record: optimizer: Horovod's compression is {getattr(compression, '__name__', compression)}, and a "
            "profile is of uncompressed training; record with hvd.Compression.none"
        )


def _uncompressed_hook(model: nn.Module) -> FSDPHook | None:
    """The hook of a job with hybrid sharding that exchanges uncompressed gradients between its replicas."""
    hook = hook_of_shards(model)
    return hook if hook and hook.method.uncompressed else None


def _stepping(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose steps can be hooked. Accelerate wraps it in a subclass of Optimizer that has no hooks."""
    inner = getattr(optimizer, "optimizer", None)
    has_hooks = hasattr(optimizer, "_optimizer_step_post_hooks")
    return optimizer if has_hooks or not isinstance(inner, Optimizer) else inner


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors in a model's outputs that require a gradient."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.requires_grad else []
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):
        return [tensor for output in outputs for tensor in _tensors(output)]
    return []


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _say(text: str) -> None:
    print(f"record: {text}", file=sys.stderr, flush=True)


def _rounded(seconds: float) -> int:
    """At least 1, and two significant digits."""
    return max(1, int(float(f"{seconds:.2g}")))


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = map(float, np.quantile(values, [0.1, 0.5, 0.9]))
    return {"median_s": middle, "low_s": low, "high_s": high}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def _versions() -> dict[str, str | None]:
    """The versions of the packages that decide the job's times; None for a package that the job does not use."""
    import dlgs_bench

    horovod = sys.modules.get("horovod")
    versions = {
        "python": platform.python_version(), "torch": torch.__version__, "dlgs-bench": dlgs_bench.__version__,
        "horovod": getattr(horovod, "__version__", None), "cuda": torch.version.cuda, "nccl": None,
    }  # fmt: skip
    if torch.cuda.is_available() and dist.is_available() and dist.is_nccl_available():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions
