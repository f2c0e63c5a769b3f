"""What plug-ins say of themselves, as JSON: python -m dlgs_bench.describe.

The workflow asks this in a process of its own, since it imports torch and the plug-ins (see ``plugins.describe``).
A plug-in that cannot be loaded is described by its error, in one line.
"""

import contextlib
import inspect
import io
import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

from dlgs_bench import data, plugins
from dlgs_bench.exchange.plugin import about
from dlgs_bench.training.head import widths

MODEL = {
    "TITLE": "the name to show in tables and figures",
    "DATA": "the name of a data set, a file in dlgs_bench/data",
    "build": "a function that returns the nn.Module",
    "loss": "a function of outputs, targets and reduction, such as torch.nn.functional.cross_entropy",
}


def model(name: str) -> dict:
    """Its title, its data set and those that it takes, its layers in the order of exchange, the multiply-adds of one
    sample, and the columns of each fully connected layer of its head."""
    module = plugins.load("models", name)
    for what, meaning in MODEL.items():
        if not hasattr(module, what):
            raise ValueError(f"{what} is missing: {meaning}")
    with torch.device("meta"):
        net = module.build().eval()  # BatchNorm cannot train on one sample
        inputs = data.load(module.DATA).example()
        with FlopCounterMode(display=False) as counter:
            net(inputs)
        layers = [p.numel() for p in net.parameters()][::-1]
        head = widths(net, inputs)
        takes = [name for name in data.names() if _takes(net, data.load(name).example())]
    about = {"title": module.TITLE, "data": module.DATA, "layers": layers, "parameters": sum(layers)}
    return about | {"multiply_adds": counter.get_total_flops() // 2, "head": head, "takes": takes}


def _takes(net: torch.nn.Module, inputs: torch.Tensor) -> bool:
    try:
        net(inputs)
    except Exception:  # however it refuses them
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


def described(kind: str, look) -> dict:
    """Every plug-in of a kind by name."""
    found = {}
    for name in plugins.names(kind):
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # a plug-in may print
                found[name] = look(name)
                json.dumps(found[name])
        except Exception as error:  # whatever it is, the person who wrote the plug-in is to read it
            found[name] = {"error": f"{type(error).__name__}: {error}{_line_of(error, kind, name)}".replace("\n", " ")}
    return found


def _line_of(error: Exception, kind: str, name: str) -> str:
    """Where in the plug-in's own file the error arose."""
    lines = [f.lineno for f in inspect.getinnerframes(error.__traceback__) if f.filename.endswith(f"{kind}/{name}.py")]
    return f" (line {lines[-1]})" if lines else ""


if __name__ == "__main__":
    style = {"methods": about, "models": model, "collectives": collective}
    json.dump({kind: described(kind, look) for kind, look in style.items()}, sys.stdout)
