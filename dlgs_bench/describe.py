"""Prints descriptions of plug-ins as JSON: python -m dlgs_bench.describe [<kind>/<name> ...].

The workflow starts it as a separate process, since it imports torch and the plug-ins (see ``plugins.describe``). Each
plug-in is loaded in a fork, as many at a time as there are cores. So a plug-in that ends Python, hangs or changes
torch's defaults does not affect the others. If a plug-in cannot be loaded, its description is its error in one line.
"""

import contextlib
import importlib
import inspect
import json
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dlgs_bench import data, plugins
from dlgs_bench.errors import TITLE, is_title, short_repr
from dlgs_bench.exchange.plugin import method_info
from dlgs_bench.training.build import build, check_parameters, evaluating, hidden_matrices, trainable, without_values
from dlgs_bench.training.head import widths

MODEL = {
    "TITLE": "the name to show in tables and figures",
    "DATA": "the name of a data set, a file in dlgs_bench/data",
    "build": "a function that returns the nn.Module",
    "loss": "a function of outputs, targets and reduction, such as torch.nn.functional.cross_entropy",
}
NOTICE_S = 10.0  # after this time a line on standard error names the plug-in that is being described
LIMIT_S = 900.0  # for one plug-in
FORK_LOCK = threading.Lock()  # without it, a fork could inherit the write end of another's pipe, which then ends late
FORKS: set[int] = set()  # the processes that describe a plug-in now
# The module with the slowest imports of a kind: Numba for methods, and what torch imports with the first meta tensor.
SHARED = {"methods": "dlgs_bench.exchange.magnitudes", "models": "torch._dynamo"}


def model(name: str) -> dict:
    """The description of a model.

    It has the title, the model's data set, the metric of this data set and all data sets that the model accepts
    (``takes``), the entries of each layer in the order of exchange, the multiply-adds of one sample, the columns of
    each fully connected layer of its head, and the number of hidden matrices, which Muon would update. Frozen
    parameters are left out.
    """
    module = plugins.load("models", name)
    for attribute, meaning in MODEL.items():
        if not hasattr(module, attribute):
            raise ValueError(f"{attribute} is missing: {meaning}")
    if not is_title(module.TITLE):
        raise ValueError(f"TITLE: {short_repr(module.TITLE)} is not valid; give {TITLE}")
    return {"title": module.TITLE, "data": module.DATA, "metric": data.load(module.DATA).metric} | without_values(
        lambda: _sizes(module)
    )


def _sizes(module: ModuleType) -> dict:
    """Build the model on the default device, make one training step, and return the sizes of the model."""
    with _MetaWatch() as watch:
        net = build(module)
    if watch.named:
        _check_values(module)
    check_parameters(net)
    built = trainable(net).keys()
    data_set = data.load(module.DATA)
    inputs = data_set.example()
    with evaluating(net), torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            outputs = net(inputs)
        _check_outputs(outputs, 1, data_set, "in evaluation")
        _check_loss(module.loss(outputs.float(), _targets(outputs), reduction="sum"))
        takes = [name for name in data.names() if _takes(net, name)]
    _train(module, net, torch.cat([inputs, inputs]), data_set)  # BatchNorm cannot train on one sample
    if changed := sorted(built ^ trainable(net).keys()):
        raise ValueError(f"build: {changed[0]} is added or frozen in forward; do this when the model is built")
    layers = [p.numel() for p in trainable(net).values()][::-1]
    matrices = len(hidden_matrices(net))
    with evaluating(net), torch.no_grad():
        head = widths(net, inputs)
    work = {"multiply_adds": counter.get_total_flops() // 2, "head": head, "takes": takes}
    return {"layers": layers, "parameters": sum(layers), "matrices": matrices} | work


class _MetaWatch(TorchFunctionMode):
    """Notes whether code names the meta device itself."""

    named = False

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        devices = (one for one in (*args, *kwargs.values()) if isinstance(one, str | torch.device))
        self.named = self.named or "meta" in map(str, devices)
        return func(*args, **kwargs)


def _check_values(module: ModuleType) -> None:
    """Raise ValueError in one line if the model of a run would have a tensor without values."""
    with torch.device("cpu"):
        net = build(module)
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if tensor.is_meta:
            raise ValueError(f"build: {name} is on the meta device, so it has no values; make it on the CPU")


def _train(module: ModuleType, net: torch.nn.Module, inputs: torch.Tensor, data_set: type[data.DataSet]) -> None:
    """Make one forward and backward pass in training mode."""
    outputs = net(inputs)
    _check_outputs(outputs, len(inputs), data_set, "in training")
    loss = module.loss(outputs.float(), _targets(outputs))
    _check_loss(loss)
    if not loss.requires_grad:
        raise ValueError("loss: does not depend on any parameter that is trained; compute it from the model's outputs")
    loss.backward()


def _targets(outputs: torch.Tensor) -> torch.Tensor:
    """Targets of class 0 for outputs with their classes in dimension 1."""
    return torch.zeros_like(outputs[:, 0], dtype=torch.int64)


def _check_outputs(outputs: Any, samples: int, data_set: type[data.DataSet], when: str) -> None:
    if not isinstance(outputs, torch.Tensor):
        raise ValueError(
            f"build: the model returns a {type(outputs).__name__} {when}, not one tensor; return the tensor of scores "
            "alone, such as from a wrapper, or with aux_logits=False"
        )
    if outputs.dim() < 2 or len(outputs) != samples or not outputs.is_floating_point():
        shape = f"{str(outputs.dtype).removeprefix('torch.')} {tuple(outputs.shape)}"
        raise ValueError(
            f"build: the model returns {shape} for {samples} sample(s), not scores; return a float tensor of shape "
            "(samples, classes, ...)"
        )
    if data_set.classes is not None and outputs.shape[1] < data_set.classes:
        raise ValueError(
            f"build: the model has {outputs.shape[1]} outputs, but {data_set.title} has {data_set.classes} classes; "
            f"give at least {data_set.classes}"
        )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        kind = f"a tensor {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"loss: returns {kind}, not one number; take the mean unless reduction has another value")


def _takes(net: torch.nn.Module, name: str) -> bool:
    """Whether the model accepts the inputs and classes of a data set."""
    try:
        data_set = data.load(name)
        inputs = data_set.example()
        _check_outputs(net(inputs), len(inputs), data_set, "in evaluation")
    except (Exception, SystemExit):  # a model can refuse inputs in any way, and a data set's file can be broken
        return False
    return True


MOST_WORKERS = 1024  # in the description of a collective


def collective(name: str) -> dict:
    """The description of a collective, by number of workers.

    ``refuses``: why the collective does not support this number. ``rounds``: how many rounds it makes; only a plain
    collective has a fixed number of rounds.
    """
    module, worlds = plugins.load("collectives", name), range(1, MOST_WORKERS + 1)
    refuses = {n: why for n in worlds if (why := module.refuses(n))}
    plain = hasattr(module, "all_reduce")  # as comm.collectives.is_plain, in a package that this module does not import
    rounds = {n: module.rounds(n) for n in worlds if n not in refuses} if plain else {}
    return {"plain": plain, "refuses": refuses, "rounds": rounds}


DESCRIBE: dict[str, Callable[[str], dict]] = {"methods": method_info, "models": model, "collectives": collective}


def described(kind: str, name: str) -> str:
    """A plug-in's description as JSON, or {"error": one line}."""
    try:
        return json.dumps(DESCRIBE[kind](name))
    except SystemExit as error:
        lines = "what runs as a program belongs under if __name__ == '__main__'"
        message = f"it ends Python (SystemExit: {error}{_line_of(error, kind, name)}); {lines}"
    except Exception as error:  # the author of the plug-in must see any error
        kind_of_error = "" if type(error) is ValueError else f"{type(error).__name__}: "
        message = f"{kind_of_error}{error}{_line_of(error, kind, name)}"
    return json.dumps({"error": " ".join(message.split())})


def _line_of(error: BaseException, kind: str, name: str) -> str:
    """The line of the plug-in's own file at which the error arose, in words."""
    file = plugins.file_of(kind, name)
    lines = [f.lineno for f in inspect.getinnerframes(error.__traceback__) if f.filename.endswith(file)]
    return f" (line {lines[-1]})" if lines else ""


def in_fork(kind: str, name: str, limit_s: float = LIMIT_S) -> dict:
    """The description of a plug-in, which is loaded in a fork. Its output is discarded."""
    with FORK_LOCK:
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            with contextlib.suppress(BaseException):
                nowhere = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(nowhere, stream)
                sys.argv = [plugins.file_of(kind, name)]
                text = described(kind, name).encode()
                while text:
                    text = text[os.write(writing, text) :]
            os._exit(0)
        os.close(writing)
        FORKS.add(process)
    text, waited = _read(reading, f"{plugins.file_of(kind, name)}", limit_s)
    if waited is not None:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    FORKS.discard(process)
    if waited is not None:
        return {"error": f"it was not described after {waited:.0f} s; make import and build() faster"}
    try:
        return json.loads(text)
    except ValueError:
        signalled = os.WIFSIGNALED(status)
        how = signal.Signals(os.WTERMSIG(status)).name if signalled else f"status {os.waitstatus_to_exitcode(status)}"
        return {"error": f"it ends Python ({how}); nothing in the file, build() or loss may end the process"}


def _read(pipe: int, file: str, limit_s: float) -> tuple[bytes, float | None]:
    """The output of a fork, and None, or the seconds waited if they exceeded ``limit_s``.

    After ``NOTICE_S`` a line on standard error names the file.
    """
    began, text, notified = time.monotonic(), b"", False
    with open(pipe, "rb", buffering=0) as stream:
        while True:
            spent = time.monotonic() - began
            if spent > limit_s:
                return text, spent
            if spent > NOTICE_S and not notified:
                print(f"still describing {file}, at most {limit_s:.0f} s", file=sys.stderr, flush=True)
                notified = True
            until = limit_s if notified else min(NOTICE_S, limit_s)
            if not select.select([stream], [], [], max(0.0, until - spent) + 0.01)[0]:
                continue
            part = stream.read(1 << 16)
            if not part:
                return text, None
            text += part


def every() -> list[tuple[str, str]]:
    """(kind, name) of every plug-in."""
    return [(kind, name) for kind in DESCRIBE for name in plugins.names(kind)]


def import_shared(kinds: Iterable[str]) -> None:
    """Import here what the forks of several plug-ins of a kind would each import again. It takes seconds."""
    for kind, count in Counter(kinds).items():
        if kind in SHARED and count > 1:
            importlib.import_module(SHARED[kind])


def main(requested: list[str]) -> None:
    """Print the descriptions of these plug-ins (``<kind>/<name>``), or of all."""
    pairs = [tuple(plugin.split("/", 1)) for plugin in requested] or every()
    import_shared(kind for kind, _ in pairs)
    descriptions: dict[str, dict] = {kind: {} for kind in DESCRIBE}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for (kind, name), one in zip(pairs, pool.map(in_fork, *zip(*pairs, strict=True)), strict=True):
                descriptions[kind][name] = one
        except BaseException:  # a plug-in may ignore the signal that ends this process
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(FORKS):  # forks that end meanwhile are removed from the set
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            raise
    json.dump(descriptions, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
