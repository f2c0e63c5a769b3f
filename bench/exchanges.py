"""Methods: the time of each method as a multiple of a copy, the bytes that it sends, and the error of its aggregate.

    python bench/exchanges.py results/bench [--quick]

It runs on one core, or on the GPU if there is one. Two workers exchange one bucket in one thread. The bucket is a layer
as large as the model. Gradients are normally distributed, and half of the variance is common to both workers. The time
is the work of worker 0: its computation, and to pack and add sparse messages. The work of an engine (dense sums and
maxima) is not included. Times are measured after ``warm_start``. They are medians over rounds, divided by a copy of the
gradient in the same round; the interval is the middle half. Methods with several kinds of steps, such as the refresh of
thresholds, are amortised over their cycle, in which each kind has its own median. Bits are what worker 0 gives to the
engine, amortised in the same way. The error, vNMSE = E |aggregate - mean|^2 / E |mean|^2, is the error of a first
exchange, before there is a residual. Methods with local steps make such an exchange once in many steps.
"""

import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import QUICK, parser
from saving import save

from dlgs_bench import plugins
from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange
from dlgs_bench.exchange import Bucket, Gather, Max, StepContext, Sum
from dlgs_bench.exchange.fidelity import bits_per_entry, vnmse
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.steps import sum_messages
from dlgs_bench.exchange.wire import Indices
from dlgs_bench.training.results import machine
from dlgs_bench.training.timed import over_cycle, timed_steps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(512, 512), (3840, 3840)]  # 0.26 and 14.7 million entries
RATIO, WORKERS = 0.01, 2


def _timed(call, *args) -> tuple:
    """The result, and the seconds of the call."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()  # earlier work does not count
    begun = time.perf_counter()
    result = call(*args)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - begun


class Exchange:
    """A method's workers on one bucket each; ``spent_s`` and ``sent_bytes``: of worker 0 in the last step."""

    def __init__(self, make, gradients: list[torch.Tensor], shape: tuple[int, int]):
        self.methods, self.gradients = [make() for _ in gradients], gradients
        self.buckets = [Bucket(0, gradient.clone(), (shape,)) for gradient in gradients]

    def warm_start(self) -> None:
        for method, bucket in zip(self.methods, self.buckets, strict=True):
            method.warm_start(bucket, WORKERS)

    def step(self, number: int) -> torch.Tensor:
        """One exchange; the aggregate of worker 0."""
        self.spent_s, self.sent_bytes = 0.0, 0
        for bucket, gradient in zip(self.buckets, self.gradients, strict=True):
            bucket.gradient.copy_(gradient)
        pairs = enumerate(zip(self.methods, self.buckets, strict=True))
        workers = [
            method.exchange(bucket, StepContext(number, rank, WORKERS, lr=0.1)) for rank, (method, bucket) in pairs
        ]
        transport = [None] * WORKERS
        while True:
            asked = [self._by(rank, _resume, worker, transport[rank]) for rank, worker in enumerate(workers)]
            if isinstance(asked[0], torch.Tensor):
                return asked[0]
            transport = self._answers(asked)

    def _by(self, rank: int, call, *args):
        result, seconds = _timed(call, *args)
        self.spent_s += seconds * (rank == 0)
        return result

    def _answers(self, asked: list) -> list:
        match asked[0]:
            case PeerExchange():
                self.sent_bytes += asked[0].sent_bytes
                return [{peer: asked[peer].sends[rank].clone() for peer in r.receives} for rank, r in enumerate(asked)]
            case Gather():
                self.sent_bytes += asked[0].tensor.nbytes + HEADER_BYTES
                return [[request.tensor.clone() for request in asked]] * WORKERS
            case Sum(indices=None) | Max():
                self.sent_bytes += asked[0].values.nbytes
                two = torch.maximum if isinstance(asked[0], Max) else torch.add
                total = two(*(request.values for request in asked))
                return [request.values.copy_(total) for request in asked]
        messages = [self._by(rank, _packed, request).clone() for rank, request in enumerate(asked)]
        self.sent_bytes += messages[0].nbytes + HEADER_BYTES
        return [self._by(rank, sum_messages, messages, request.out) for rank, request in enumerate(asked)]


def _resume(worker, answer):
    """The worker's next request, or what it returned."""
    try:
        return worker.send(answer)
    except StopIteration as end:
        return end.value


def _packed(request: Sum) -> torch.Tensor:
    return Indices.pack(request.values, request.indices, request.out.numel())


def candidates() -> dict:
    """name -> a call that makes the method. A method with the option ``selection`` has one row for each selection."""
    calls = {}
    for name in plugins.names("methods"):
        fields = plugins.fields(name)
        options = {"ratio": RATIO} if "ratio" in fields else {}
        for selection in ("torch", "compiled") if "selection" in fields else ():
            calls[f"{name}, {selection}"] = partial(method_class(name), **options, selection=selection)
        if "selection" not in fields:
            calls[name] = partial(method_class(name), **options)
    return calls


def measure(shape: tuple[int, int], rounds: int) -> list[dict]:
    size = shape[0] * shape[1]
    common, *own = torch.randn(1 + WORKERS, size, device=DEVICE)
    gradients = [(common + noise) / WORKERS for noise in own]
    rows = []
    for name, make in candidates().items():
        error = vnmse([Exchange(make, gradients, shape).step(1)], [sum(gradients)])
        exchange = Exchange(make, gradients, shape)
        exchange.warm_start()
        method = exchange.methods[0]
        steps = timed_steps(method, rounds)
        _round(exchange, common, 1)  # it warms up
        timed = pd.DataFrame([_round(exchange, common, number) for number in steps])
        ratios = timed["own_s"] / timed["copy_s"]
        own_s, sent_bytes = (over_cycle(method, steps, [*timed[column]]) for column in ("own_s", "sent_bytes"))
        rows.append(
            {
                "entries": size,
                "method": name,
                "median_ms": 1e3 * own_s,
                "times_a_copy": own_s / timed["copy_s"].median(),
                "times_a_copy_low": ratios.quantile(0.25),
                "times_a_copy_high": ratios.quantile(0.75),
                "bits_per_entry": bits_per_entry(sent_bytes, size),
                "vnmse": error,
                "rounds": rounds,
            }
        )
    return rows


def _round(exchange: Exchange, source: torch.Tensor, number: int) -> dict:
    target = torch.empty_like(source)
    copy_s = min(_timed(target.copy_, source)[1] for _ in range(2))  # the first allocates pages
    exchange.step(number)
    return {"own_s": exchange.spent_s, "copy_s": copy_s, "sent_bytes": exchange.sent_bytes}


def main(folder: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    rows = []
    for shape in SHAPES[:1] if quick else SHAPES:
        print(f"layers of {shape[0]} x {shape[1]}", file=sys.stderr, flush=True)
        rows += measure(shape, rounds=9 if shape == SHAPES[0] and not quick else 3)
    where = "One core of" if DEVICE.type == "cpu" else "On the GPU of"
    save(rows, folder, "exchanges", f"{where} {machine(DEVICE.type)}, ratio {RATIO}.")


if __name__ == "__main__":
    asked = parser(__doc__, QUICK).parse_args()
    main(asked.folder, asked.quick)
