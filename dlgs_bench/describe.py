"""What plug-ins say of themselves, as JSON: python -m dlgs_bench.describe [<kind>/<name> ...].

The workflow asks this in a process of its own, since it imports torch and the plug-ins (see ``plugins.describe``). Each
plug-in is loaded in a fork of that process, so that one which ends Python, hangs or changes torch's defaults does
not touch the others. A plug-in that cannot be loaded is described by its error, in one line.
"""

import contextlib
import inspect
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from dlgs_bench import data, plugins
from dlgs_bench.exchange.plugin import about
from dlgs_bench.training.build import build, check_parameters, evaluating, hidden_matrices, trained
from dlgs_bench.training.head import widths

MODEL = {
    "TITLE": "the name to show in tables and figures",
    "DATA": "the name of a data set, a file in dlgs_bench/data",
    "build": "a function that returns the nn.Module",
    "loss": "a function of outputs, targets and reduction, such as torch.nn.functional.cross_entropy",
}
NOTICE_S = 10.0  # after this time a person reads which plug-in is being described
LIMIT_S = 900.0  # for one plug-in


def model(name: str) -> dict:
    """Its title, its data set and the metric of it, the data sets that it takes, its layers in the order of
    exchange, the multiply-adds of one sample, the columns of each fully connected layer of its head, and how many
    hidden matrices Muon would update.

    Frozen parameters are not among its layers. Models that cannot be built on meta tensors are built on the CPU.
    """
    module = plugins.load("models", name)
    for what, meaning in MODEL.items():
        if not hasattr(module, what):
            raise ValueError(f"{what} is missing: {meaning}")
    try:
        with torch.device("meta"):
            found = _built(module)
    except Exception:  # such as .item(), a branch on a value, a buffer made by numpy
        found = _built(module)
    return {"title": module.TITLE, "data": module.DATA, "metric": data.load(module.DATA).metric} | found


def _built(module) -> dict:
    """What building the model and one training step on the default device show."""
    net, own = build(module), data.load(module.DATA)
    check_parameters(net)
    inputs = own.example()
    with evaluating(net), torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            outputs = net(inputs)
        _check_outputs(outputs, 1, own, "in evaluation")
        _check_loss(module.loss(outputs.float(), _targets(outputs), reduction="sum"))
        takes = [name for name in data.names() if _takes(net, name)]
    _train(module, net, torch.cat([inputs, inputs]), own)  # BatchNorm cannot train on one sample
    layers = [p.numel() for p in trained(net).values()][::-1]
    matrices = len(hidden_matrices(net))
    with evaluating(net), torch.no_grad():
        head = widths(net, inputs)
    work = {"multiply_adds": counter.get_total_flops() // 2, "head": head, "takes": takes}
    return {"layers": layers, "parameters": sum(layers), "matrices": matrices} | work


def _train(module, net: torch.nn.Module, inputs: torch.Tensor, own: type[data.DataSet]) -> None:
    """One forward and backward, as training makes them."""
    outputs = net(inputs)
    _check_outputs(outputs, len(inputs), own, "in training")
    loss = module.loss(outputs.float(), _targets(outputs))
    _check_loss(loss)
    if not loss.requires_grad:
        raise ValueError("loss: does not depend on any parameter that is trained")
    loss.backward()


def _targets(outputs: torch.Tensor) -> torch.Tensor:
    """Targets for outputs with their classes in dimension 1, all of class 0."""
    return torch.zeros_like(outputs[:, 0], dtype=torch.int64)


def _check_outputs(outputs, samples: int, data_set: type[data.DataSet], when: str) -> None:
    if not isinstance(outputs, torch.Tensor):
        raise ValueError(
            f"build: the model returns a {type(outputs).__name__} {when}, not one tensor; return the tensor of scores "
            "alone, such as from a wrapper, or with aux_logits=False"
        )
    if outputs.dim() < 2 or len(outputs) != samples or not outputs.is_floating_point():
        shape = f"{str(outputs.dtype).removeprefix('torch.')} {tuple(outputs.shape)}"
        raise ValueError(
            f"build: the model returns {shape} for {samples} sample(s), not scores (samples, classes, ...)"
        )
    if data_set.classes is not None and outputs.shape[1] < data_set.classes:
        raise ValueError(
            f"build: the model has {outputs.shape[1]} outputs, but {data_set.title} has {data_set.classes} classes; "
            f"give at least {data_set.classes}"
        )


def _check_loss(loss) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        found = f"a tensor {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"loss: returns {found}, not one number; take the mean unless reduction says otherwise")


def _takes(net: torch.nn.Module, name: str) -> bool:
    try:
        data_set = data.load(name)
        inputs = data_set.example()
        _check_outputs(net(inputs), len(inputs), data_set, "in evaluation")
    except (Exception, SystemExit):  # however it refuses them; another data set's file may be broken
        return False
    return True


MOST_WORKERS = 1024  # that a collective is asked about


def collective(name: str) -> dict:
    """By number of workers: why it refuses them, or how many rounds it makes, which only a plain one knows."""
    module, worlds = plugins.load("collectives", name), range(1, MOST_WORKERS + 1)
    refuses = {n: why for n in worlds if (why := module.refuses(n))}
    plain = hasattr(module, "rounds")
    rounds = {n: module.rounds(n) for n in worlds if n not in refuses} if plain else {}
    return {"plain": plain, "refuses": refuses, "rounds": rounds}


LOOKS: dict[str, Callable[[str], dict]] = {"methods": about, "models": model, "collectives": collective}


def described(kind: str, name: str) -> str:
    """A plug-in's description as JSON, or {"error": one line}."""
    try:
        return json.dumps(LOOKS[kind](name))
    except SystemExit as error:
        lines = "a program's part belongs under if __name__ == '__main__'"
        said = f"it ends Python (SystemExit: {error}{_line_of(error, kind, name)}); {lines}"
    except Exception as error:  # whatever it is, the person who wrote the plug-in is to read it
        what = "" if type(error) is ValueError else f"{type(error).__name__}: "
        said = f"{what}{error}{_line_of(error, kind, name)}"
    return json.dumps({"error": " ".join(said.split())})


def _line_of(error: BaseException, kind: str, name: str) -> str:
    """Where in the plug-in's own file the error arose."""
    file = plugins.file_of(kind, name)
    lines = [f.lineno for f in inspect.getinnerframes(error.__traceback__) if f.filename.endswith(file)]
    return f" (line {lines[-1]})" if lines else ""


def in_fork(kind: str, name: str, limit_s: float = LIMIT_S) -> dict:
    """The description of a plug-in, which is loaded in a process of its own, without its prints."""
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
    text, waited = _read(reading, f"{plugins.file_of(kind, name)}", limit_s)
    if waited is not None:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if waited is not None:
        return {"error": f"it was not described after {waited:.0f} s; make import and build() faster"}
    try:
        return json.loads(text)
    except ValueError:
        signalled = os.WIFSIGNALED(status)
        how = signal.Signals(os.WTERMSIG(status)).name if signalled else f"status {os.waitstatus_to_exitcode(status)}"
        return {"error": f"it ends Python ({how}); nothing in the file, build() or loss may end the process"}


def _read(pipe: int, file: str, limit_s: float) -> tuple[bytes, float | None]:
    """All that a fork writes, and how long it was waited for if that was too long; says what takes long."""
    begun, text, told = time.monotonic(), b"", False
    with open(pipe, "rb", buffering=0) as stream:
        while True:
            spent = time.monotonic() - begun
            if spent > limit_s:
                return text, spent
            if spent > NOTICE_S and not told:
                print(f"still describing {file}, at most {limit_s:.0f} s", file=sys.stderr, flush=True)
                told = True
            until = limit_s if told else min(NOTICE_S, limit_s)
            if not select.select([stream], [], [], max(0.0, until - spent) + 0.01)[0]:
                continue
            part = stream.read(1 << 16)
            if not part:
                return text, None
            text += part


def every() -> list[tuple[str, str]]:
    return [(kind, name) for kind in LOOKS for name in plugins.names(kind)]


def main(asked: list[str]) -> None:
    """Print the descriptions of these plug-ins, or of all."""
    pairs = [tuple(one.split("/", 1)) for one in asked] or every()
    found: dict[str, dict] = {kind: {} for kind in LOOKS}
    for kind, name in pairs:
        found[kind][name] = in_fork(kind, name)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
