"""One rank of a rehearsal: it waits as long as a recorded job computes, and really selects and exchanges.

python -m dlgs_bench.training.rehearsal <request> <result>   reads the first JSON file; rank 0 writes the second one
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from dlgs_bench.comm import Communicator, connect
from dlgs_bench.exchange import StepContext
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.exchange.transport import transport
from dlgs_bench.topology import ALL_GATHER
from dlgs_bench.training.session import make_method
from dlgs_bench.training.timed import over_cycle, timed_steps


def rehearse(comm: Communicator, request: dict) -> list[dict]:
    """One row per block and method: the seconds of an iteration on the slowest rank, amortised over the method's cycle,
    and the bytes that this rank sent, amortised in the same way.

    ``request``: ``forward_s`` and ``rest_s``, which are waited for; ``buffer_entries``, which rank 0 broadcasts before
    forward; ``blocks``; and ``methods``, which take turns, once per block. Each of these has ``row``, its name in the
    rows; ``name``, ``options`` and ``plan`` of the method; ``shapes``, in the order in which gradients arrive;
    ``backward_s`` per tensor, which is waited for; and ``hooked``: whether the method runs as in a hook.
    """
    generator = torch.Generator().manual_seed(comm.rank)
    flats: dict[str, FlatGradients] = {}
    turns = []
    for method in request["methods"]:
        flat = flats.setdefault(
            str(method["shapes"]), FlatGradients(torch.empty(shape) for shape in reversed(method["shapes"]))
        )
        kind = FiniteExchange if method["hooked"] else WorkerExchange
        exchange = kind(
            make_method(method["name"], method["options"]),
            method["plan"],
            flat.buckets(method["plan"]),
            transport(ALL_GATHER, comm),
            lambda label: nullcontext(),
        )
        turns.append((method, exchange, flat))
        flat.gradients.normal_(generator=generator).div_(comm.world_size)
        exchange.warm_start()
    rows = []
    for block in range(request["blocks"] + 1):  # the first one warms up
        for method, exchange, flat in turns:
            steps, slowest, sent = timed_steps(exchange.method, 1), list[float](), list[float]()
            for step in steps:
                flat.gradients.normal_(generator=generator)  # another gradient, as in training
                if not method["hooked"]:
                    flat.gradients.div_(comm.world_size)
                seconds = _iteration(exchange, flat, block * exchange.method.cycle + step, comm, request, method)
                slowest.append(comm.start_max(torch.tensor([seconds], dtype=torch.float64)).wait().item())
                sent.append(exchange.transport.sent_bytes)
            if block:
                seconds, sent_bytes = (over_cycle(exchange.method, steps, values) for values in (slowest, sent))
                rows.append({"row": method["row"], "block": block, "seconds": seconds, "sent_bytes": sent_bytes})
    return rows


def _iteration(
    exchange: WorkerExchange, flat: FlatGradients, step: int, comm: Communicator, request: dict, method: dict
) -> float:
    buffers = torch.zeros(request["buffer_entries"])
    comm.barrier()
    begun = time.perf_counter()
    if len(buffers):
        comm.broadcast(buffers)
    due = time.perf_counter() + request["forward_s"]
    for layer, seconds in enumerate(method["backward_s"]):
        due += seconds
        _wait_until(due)
        selecting = time.perf_counter()
        if not layer:  # a hook begins, and copies the method's state, at the first gradient
            exchange.begin(StepContext(step, comm.rank, comm.world_size, 0.1))
        if isinstance(exchange, FiniteExchange):
            flat.slice(layer, layer + 1).div_(comm.world_size)
        exchange.ready(layer)
        due += time.perf_counter() - selecting  # backward does not go on meanwhile
    exchange.finish()
    if isinstance(exchange, FiniteExchange):
        exchange.conclude([flat.gradients])
        exchange.restore()
    _wait_until(max(due, time.perf_counter()) + request["rest_s"])
    return time.perf_counter() - begun


def _wait_until(due: float) -> None:
    time.sleep(max(0.0, due - time.perf_counter()))


def main(request_path: Path, result_path: Path) -> None:
    torch.set_num_threads(1)
    request = json.loads(request_path.read_text(encoding="utf-8"))
    comm = connect(request["engine"], torch.device("cpu"))
    rows = rehearse(comm, request)
    if comm.rank == 0:
        result_path.write_text(json.dumps(rows), encoding="utf-8")
    comm.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
