"""One rank of bench/profiles.py: an ordinary training script, with the probe or with a method.

    python bench/profiles_script.py <request.json>

The request names the job, and the cases to time. Rank 0 writes one file per case.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench import plugins
from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.data import DataSet, Shard
from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.data.text import Text
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.fingerprint import commit
from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.probe import record
from dlgs_bench.probe.recorder import WARM_UP, Recorder
from dlgs_bench.spec import Cluster, RunSpec
from dlgs_bench.testbed import link_rates
from dlgs_bench.timemodel.job_advice import UNCOMPRESSED
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.training.results import provenance
from dlgs_bench.training.timed import over_cycle, timed_steps

ENGINE = "torch_dist"
ALONE = "alone"  # an iteration without an exchange
PROFILE, PROBE = "profile.json", "probe.json"
METHODS = ("topk", "dlgs", "lags", "powersgd")  # the probe always adds 16 bits
ALONE_BLOCKS = 4  # iterations without an exchange before the recording, and after it
TOKENS = {"transformer": Text.classes, "language_model": 4000}
LENGTH = 64  # tokens of a sample
SMALL_IMAGES = ("resnet20", "vgg16")  # 32x32 pixels; 64x64 for other models
DATA = Path(__file__).resolve().parent.parent / "data"


class LanguageModel(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t): 5.2 million parameters, most in torch's own
    TransformerEncoder and in the two tables of words."""

    def __init__(self, width: int = 256, blocks: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS["language_model"], width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True), blocks, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, TOKENS["language_model"])

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.encoder(self.embedding(tokens), mask, is_causal=True)).transpose(1, 2)


def built(model: str) -> nn.Module:
    if model == "language_model":
        return LanguageModel()
    if model == "mobilenet_v2":
        import torchvision

        return torchvision.models.mobilenet_v2(num_classes=100)
    return plugins.load("models", model).build()


class Feed:
    """A worker's data, with a new batch in every step: text, CIFAR-10 if its file is there, or random values.

    ``title``: what the data are.
    """

    def __init__(self, model: str, samples: int, rank: int = 0, workers: int = 1):
        self._model, self._shard, self.step = model, Shard(samples, workers, rank, seed=0), 0
        self._data: DataSet | None = None
        if model == "transformer":
            self._data = Text(DATA, torch.device("cpu"))
        elif model not in TOKENS and (DATA / "cifar10.npz").exists():
            self._data = Cifar10(DATA, torch.device("cpu"))
        self.title = self._data.title if self._data else "random"

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next step."""
        self.step += 1
        inputs, targets = self._random() if self._data is None else self._data.batch(self.step - 1, self._shard)
        if self._model not in (*TOKENS, *SMALL_IMAGES):
            inputs = F.interpolate(inputs, scale_factor=2)
        return inputs.contiguous(), targets

    def _random(self) -> tuple[Tensor, Tensor]:
        own, samples = self._shard, self._shard.batch
        generator = torch.Generator().manual_seed(self.step * own.workers + own.rank)
        if self._model in TOKENS:
            tokens = torch.randint(0, TOKENS[self._model], (samples, LENGTH + 1), generator=generator)
            return tokens[:, :-1], tokens[:, 1:]
        targets = torch.randint(0, Cifar10.classes, (samples,), generator=generator)
        return torch.randn(samples, 3, 32, 32, generator=generator), targets


class Script:
    """The training of one model in a kind of script: uncompressed, or by a method of ``DDPHook``.

    The learning rates are so small that gradients hardly change in the few steps of a launch.
    """

    def __init__(self, job: dict[str, Any], feed: Feed, name: str = UNCOMPRESSED, options: dict | None = None):
        torch.manual_seed(0)
        net, self.method = built(job["model"]), method_class(name)(**(options or {}))
        if self.method.owns_momentum:
            optimizer: Optimizer = torch.optim.SGD(net.parameters(), 1e-4)
        elif job["model"] in TOKENS:
            optimizer = torch.optim.AdamW(net.parameters(), 1e-6)
        else:
            optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9)
        if job["script"] == "accelerate":
            from accelerate import Accelerator  # takes seconds to import

            accelerator = Accelerator(cpu=True)
            self._backward = accelerator.backward
            self.model, self.optimizer = accelerator.prepare(net, optimizer)
        else:
            self._backward = Tensor.backward
            self.model, self.optimizer = DistributedDataParallel(net), optimizer
        self._feed, self.hook = feed, None
        if name != UNCOMPRESSED:
            self.hook = DDPHook(self.model, optimizer, name, **(options or {}))
            self.method = self.hook.method
            self._warm_start()

    def gradients(self) -> None:
        inputs, targets = self._feed.next()
        self.optimizer.zero_grad()
        self._backward(F.cross_entropy(self.model(inputs), targets))

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()

    def _warm_start(self) -> None:
        """Set the method's residuals to what they are after long training. Otherwise the density would drift."""
        with self.model.no_sync():
            self.gradients()
        for parameter, view in self.hook._flat.views:
            view.copy_(parameter.grad / dist.get_world_size())
        for bucket in self.hook._exchange.buckets[: len(self.hook._sizes)]:
            self.method.warm_start(bucket, dist.get_world_size())

    def density(self) -> float:
        """The part of the entries that rank 0 sent in the last step."""
        if self.hook is None:
            return 1.0
        return sum(map(int, self.hook._exchange.sent_entries)) / sum(self.hook._sizes)

    def buckets(self) -> list[int]:
        """The entries of each bucket that the script exchanges, in their order."""
        if self.hook is not None:
            return self.hook._sizes
        described = self.model._get_ddp_logging_data()
        sizes = described.get("rebuilt_bucket_sizes") or described["bucket_sizes"]
        return [int(size) // 4 for size in sizes.split(",")]


def recorded(job: dict[str, Any], feed: Feed, folder: Path) -> Script:
    """The script whose profile was recorded. Also trains it without the probe, and compares the weights.

    Iterations without an exchange are timed before the recording and after it, as in each case.
    """
    plain, script = Script(job, feed), Script(job, feed)

    def train(trained: Script) -> None:
        feed.step = 0
        torch.manual_seed(1 + dist.get_rank())  # dropout draws from the global generator
        for _ in range(WARM_UP + job["steps"] + 2):
            trained.step()

    train(plain)
    weights = [parameter.detach().clone() for parameter in plain.model.parameters()]
    alone_s = [alone(plain) for _ in range(ALONE_BLOCKS)]
    with record(script.model, script.optimizer, folder / PROFILE, job["steps"], job["methods"]):
        train(script)
    alone_s += [alone(plain) for _ in range(ALONE_BLOCKS)]
    equal = torch.tensor([float(all(map(torch.equal, weights, script.model.parameters())))])
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    keep(folder / PROBE, {"equal_bits": bool(equal.item()), "buckets": script.buckets(), "alone_s": alone_s})
    return script


def facts() -> dict[str, str]:
    """The machine, the date and the commit of a measurement."""
    metadata = provenance(RunSpec("exchanges", cluster=Cluster(ENGINE)), commit())
    return {key: metadata[key] for key in ("machine", "date", "commit")}


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a file on rank 0, with the facts of the measurement. All ranks wait until it is there."""
    if dist.get_rank() == 0:
        measured = facts() | {"cores": len(os.sched_getaffinity(0))} | result
        write_atomically(path, (json.dumps(measured, indent=1) + "\n").encode())
    dist.barrier()


def keep_overhead(path: Path, pairs: int, until: float) -> None:
    """Write the seconds of adjacent steps of ResNet-20 with and without the hooks of the probe, in one process.

    The first step of a pair is with the hooks in every second pair. The first pairs are a warm-up. Ends early, after
    ``until``.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    feed, net = Feed("resnet20", 32), built("resnet20")
    optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9)
    recorder = Recorder(net, optimizer, path, pairs + WARM_UP, ())  # its file is not written
    rows = []
    for pair in range(-WARM_UP, pairs):
        seconds = {}
        for hooked in (True, False) if pair % 2 else (False, True):
            inputs, targets = feed.next()
            if hooked:
                recorder.start()
            began = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
            seconds["with_s" if hooked else "without_s"] = time.perf_counter() - began
            recorder.remove_hooks()
        if pair >= 0:
            rows.append({"pair": pair, **seconds})
        if time.time() > until:
            break
    if not rows:  # the time was over: the next call measures
        return
    table = pd.DataFrame(rows).assign(**facts())
    write_atomically(path, table.to_csv(index=False, float_format="%.6g").encode())


def timed(script: Script, block: int = 0, inside=None) -> float:
    """Seconds of an iteration on the slowest rank, amortised over the method's cycle, in block 0, 1, ...

    The ranks begin each step together. Otherwise a rank that ended the step before early would have a longer step, so a
    method that is timed in several steps would seem slower than a method that is timed in one.
    """
    method = script.method
    steps = timed_steps(method, 1)
    if script.hook is not None:
        script.hook.step = block * method.cycle  # each block has the first steps of a cycle
    with inside or nullcontext():
        seconds = torch.zeros(len(steps), dtype=torch.float64)
        for number in range(len(steps)):
            dist.barrier()
            began = time.perf_counter()
            script.step()
            seconds[number] = time.perf_counter() - began
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return over_cycle(method, steps, seconds.tolist())


def alone(script: Script) -> float:
    """Seconds of an iteration of a script without a method, without its exchange."""
    return timed(script, inside=script.model.no_sync())


def in_turns(scripts: dict[str, Script], most_blocks: int, until: float) -> dict[str, list[float]]:
    """Seconds of an iteration by block, of all scripts and of an iteration without an exchange.

    The first block is a warm-up. Blocks follow until the next one would end after ``until``; there is at least one.
    """
    plain = scripts[UNCOMPRESSED]
    turns: dict[str, Callable[[int], float]] = {ALONE: lambda block: alone(plain)}
    for name, script in scripts.items():
        turns[name] = lambda block, script=script: timed(script, block)
    rows: dict[str, list[float]] = {name: [] for name in turns}
    block = 0
    while True:
        began = time.time()
        for name, turn in turns.items():
            seconds = turn(block)
            if block:
                rows[name].append(seconds)
        now, block = time.time(), block + 1
        another = torch.tensor([block == 1 or (block <= most_blocks and 2 * now - began <= until)])
        dist.broadcast(another, 0)  # as rank 0 says
        if not another:
            return rows


def work(request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job, folder, cases = request["job"], Path(request["folder"]), request["cases"]
    feed = Feed(job["model"], job["batch"], dist.get_rank(), dist.get_world_size())
    scripts = {UNCOMPRESSED: Script(job, feed) if (folder / PROBE).exists() else recorded(job, feed, folder)}
    for row in load(folder / PROFILE)["methods"]:
        scripts[row["name"]] = Script(job, feed, row["name"], row["options"])
    for script in scripts.values():
        for _ in range(WARM_UP):  # DDP assigns its buckets again after the first step
            script.step()
    rate_mbit = job["rates_mbit"][0]
    for number, case in enumerate(cases):
        if dist.get_rank() == 0:
            link_rates.scale(case["rate_mbit"] / rate_mbit)
        rate_mbit = case["rate_mbit"]
        dist.barrier()
        until = time.time() + (request["until"] - time.time()) / (len(cases) - number)
        seconds = in_turns(scripts, request["most_blocks"], until)
        buckets = {name: script.buckets() for name, script in scripts.items()}
        density = {name: script.density() for name, script in scripts.items()}
        kept = {"case": case, "data": feed.title, "seconds": seconds, "buckets": buckets, "density": density}
        keep(folder / case["file"], kept)
        if dist.get_rank() == 0:
            print(f"{case['rate_mbit']:g} Mb/s: {len(seconds[ALONE])} blocks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
