"""One process's whole training: everything that changes from step to step, and the schedule of a step.

What a process does at each point of the schedule depends on its role (``dlgs_bench.training.roles``).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dlgs_bench import plugins
from dlgs_bench.buckets import Plan, assign_buckets
from dlgs_bench.comm import Communicator
from dlgs_bench.data import DataSet, Shard
from dlgs_bench.exchange import Method, StepContext
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.launch.liveness import Ended
from dlgs_bench.spec import RunSpec, Scheme
from dlgs_bench.training.build import build, to_device
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.error_probe import ErrorProbe
from dlgs_bench.training.finite_check import FiniteCheck
from dlgs_bench.training.flat import FlatModel
from dlgs_bench.training.optimizer import optimizer_of
from dlgs_bench.training.roles import Role, Server, Worker

_SEEDING = threading.Lock()  # local workers are threads that share torch's one generator


class Session:
    """Model, optimizer, exchanges, place in the data and rows of one process.

    ``done``: steps made; ``drawn``: batches taken from the data; ``sent_bytes``: by this process, in all steps;
    ``sums``: [loss sum, correct, predictions] since the last point of the curve; ``rows``: table -> rows so far;
    ``exchanges``: those of each variant.
    ``state_dict`` holds all that changes, so that a session which loads it goes on as if never stopped.
    """

    def __init__(self, spec: RunSpec, comm: Communicator, data: DataSet | None, device: torch.device):
        self.spec, self.comm, self.data = spec, comm, data
        training, workers = spec.training, spec.cluster.workers
        self.model = plugins.load("models", training.model)
        with _SEEDING:
            torch.manual_seed(training.seed)
            net = build(self.model)
        self.flat = FlatModel(to_device(net, device))
        comm.broadcast(self.flat.parameters)
        self._broadcast_frozen()
        torch.manual_seed(training.seed * workers + comm.rank)  # from here on workers draw their own
        self.shard = Shard(training.batch, workers, comm.rank, training.seed)
        self.optimizer = optimizer_of(training, self.flat.parameters, self.flat.matrices())
        self.clock = Clock(device)
        self.exchanges: dict[str, Exchange] = {}
        self._joining_decay = 0.0
        self.done = self.drawn = self.sent_bytes = 0
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.rows: dict[str, list[dict]] = {}
        self._listener = None
        self._arrived: set[int] = set()  # layers, in this backward pass
        self._begun = time.perf_counter()
        role = Server if spec.topology.serves(comm.rank, workers) else Worker
        self.role: Role = role(self)
        for layer, (parameter, view) in enumerate(self.flat.views):
            parameter.register_post_accumulate_grad_hook(self._hook(layer, view))

    def _broadcast_frozen(self) -> None:
        for parameter in self.flat.model.parameters():
            if not parameter.requires_grad and parameter.numel():
                values = parameter.detach().flatten()
                self.comm.broadcast(values.view(torch.uint8))  # whatever their type
                parameter.data.copy_(values.view_as(parameter))

    def _hook(self, layer: int, view: Tensor):
        """Put the gradient into its bucket, already divided by the workers: sums become means."""
        share = 1 / self.spec.cluster.workers

        def hook(parameter: Tensor) -> None:
            with self.clock("other"):
                gradient = parameter.grad if parameter.grad.layout is torch.strided else parameter.grad.to_dense()
                torch.mul(gradient, share, out=view)
                if self._joining_decay:
                    view.add_(parameter.detach(), alpha=self._joining_decay * share)
                parameter.grad = None
            self._arrive(layer)

        return hook

    def _arrive(self, layer: int) -> None:
        if layer in self._arrived:
            name = self.flat.names[layer]
            raise Ended(
                f"backward gives the gradient of {name} in several parts, as checkpoint with use_reentrant=True does "
                "for a shared layer; give use_reentrant=False"
            )
        self._arrived.add(layer)
        if self._listener is not None:
            self._listener.ready(layer)

    def complete_gradient(self) -> None:
        """After backward: layers that took no part in it have a gradient of zeros, so workers may skip different
        ones."""
        for layer, (_, view) in enumerate(self.flat.views):
            if layer not in self._arrived:
                view.zero_()
                self._arrive(layer)
        self._arrived.clear()

    @property
    def epoch_steps(self) -> int:
        """Steps of one epoch."""
        return self.data.steps(self.shard)

    def prepare(
        self, variant: str, method: Method, groups: Plan | None = None, scheme: Scheme | None = None
    ) -> Exchange:
        """Cut the gradient into the method's buckets, or into those of ``groups``; keep it under ``variant``.

        ``scheme``: how it is exchanged, if not as the run's.
        """
        scheme, flat = scheme or self.spec.scheme, self.flat
        groups = groups or assign_buckets(
            flat.sizes, method.scope, scheme.planner, scheme.bucket_bytes // 4, scheme.groups
        )
        buckets = flat.buckets(groups, scheme.ratios if method.ratios_from_plan else ())
        how = transport(self.spec.topology, self.comm, scheme.wire, scheme.collective, scheme.streams)
        self.exchanges[variant] = self.role.exchange(method, groups, buckets, how)
        return self.exchanges[variant]

    def step(self, exchange: Exchange, number: int, before: FiniteCheck | ErrorProbe | None = None) -> dict:
        """One iteration: its parts in seconds, its bytes and density, and how many messages of ours they were, in which
        the engine's own do not count. Loss and hits are added to ``sums``. ``before``: stands before the exchange."""
        self._listener = before or exchange
        self._drive(exchange.method)
        self.clock.start()
        messages = self.comm.sent_messages
        exchange.begin(StepContext(number, self.comm.rank, self.spec.cluster.workers, self.optimizer.lr))
        outcome = self.role.compute(lambda: None)
        exchange.finish()
        with self.clock("optimizer"):
            self.role.update()
        exchange.updated()
        counted = exchange.transport
        row = {
            "step": number,
            "phase": exchange.method.phase(number),
            **self.clock.stop(),
            "sent_bytes": counted.sent_bytes,
            "received_bytes": counted.received_bytes,
            "sent_messages": self.comm.sent_messages - messages,
            "density": int(counted.sent_entries) / len(self.flat.gradients),
        }
        self.sent_bytes += counted.sent_bytes
        if outcome is not None:
            self.sums += outcome.sums()
        return row

    def _drive(self, method: Method) -> None:
        """Momentum is the method's or the optimizer's, never both; so is weight decay where it joins the gradient."""
        training = self.spec.training
        if training.optimizer == "sgd":
            self.optimizer.momentum = 0.0 if method.owns_momentum else training.momentum
            self.optimizer.weight_decay = 0.0 if method.decay_joins_gradient else training.weight_decay
        elif method.owns_momentum or method.decay_joins_gradient:
            name = type(method).__name__
            raise ValueError(f"optimizer: {training.optimizer} cannot leave its momentum to {name}; give sgd")
        self._joining_decay = training.weight_decay if method.decay_joins_gradient else 0.0

    def local_gradient(self, listener=None, begun: Callable[[], None] = lambda: None) -> None:
        """Leave one gradient of this worker alone in the buckets: nothing is exchanged or updated.

        ``listener.ready(layer)`` is called as in an exchange, ``begun`` when backward starts.
        """
        self._listener = listener
        self.clock.start()
        self.role.compute(begun)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The model's, float32, in whatever precision it computes them."""
        mixed = self.spec.training.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed):
            return self.flat.model(inputs).float()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This worker's next inputs and targets."""
        batch = self.data.batch(self.drawn, self.shard)
        self.drawn += 1
        return batch

    def decide(self, yes: bool) -> bool:
        """What rank 0 says, for all processes: for what depends on the clock."""
        decision = torch.tensor([float(yes)], device=self.comm.device)
        self.comm.broadcast(decision)
        return bool(decision.item())

    def train_means(self) -> dict[str, float]:
        """Training loss and accuracy since the last call, over all workers."""
        found = _means("train", self.comm.allreduce(self.sums.clone()))
        self.sums.zero_()
        return found

    def evaluate(self, limit: int) -> dict[str, float]:
        """Loss and accuracy on the first ``limit`` test samples, the work shared by the workers.

        Between exchanges of weights it is the mean of the workers' weights that is tested.
        """
        self._average_buffers()
        own = self.flat.parameters.clone()
        if any(exchange.apart for exchange in self.exchanges.values()):
            self.flat.parameters.copy_(self.comm.allreduce(self.role.share(own)))
        sums = self.comm.allreduce(self.role.test_sums(limit))
        self.flat.parameters.copy_(own)
        return _means("test", sums)

    def _average_buffers(self) -> None:
        """BatchNorm's running statistics are each worker's own: use their mean."""
        buffers = self.flat.buffers()
        if not buffers:
            return
        share = self.role.share(torch.cat([b.view(-1) for b in buffers]))
        parts = self.comm.allreduce(share).split([b.numel() for b in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, of a resumed run its earlier sittings included."""
        return time.perf_counter() - self._begun

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step; tensors are the session's own."""
        return {
            "done": self.done,
            "drawn": self.drawn,
            "sent_bytes": self.sent_bytes,
            "elapsed_s": self.elapsed_s,
            "sums": self.sums,
            "rows": self.rows,
            "parameters": self.flat.parameters,
            "optimizer": self.optimizer.state_dict(),
            "buffers": list(self.flat.model.buffers()),
            "methods": {variant: exchange.method.state_dict() for variant, exchange in self.exchanges.items()},
            "random": self._random_states(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, after the same variants were prepared; ValueError if they were not."""
        if set(state["methods"]) != set(self.exchanges):
            raise ValueError(f"the state is of {sorted(state['methods'])}, here are {sorted(self.exchanges)}")
        for name in ("done", "drawn", "sent_bytes", "rows"):
            setattr(self, name, state[name])
        self.sums.copy_(state["sums"])
        self.flat.parameters.copy_(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        for buffer, kept in zip(self.flat.model.buffers(), state["buffers"], strict=True):
            buffer.copy_(kept)
        for variant, kept in state["methods"].items():
            self.exchanges[variant].method.load_state_dict(kept)
        self._begun = time.perf_counter() - state["elapsed_s"]
        torch.set_rng_state(state["random"]["cpu"])
        if "cuda" in state["random"]:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.flat.parameters.device)

    def _random_states(self) -> dict[str, Tensor]:
        device = self.flat.parameters.device
        own = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state()} | own


def make_method(name: str, options: dict[str, Any]) -> Method:
    """The method in ``methods/<name>.py`` with these parameters."""
    return method_class(name)(**options)


def _means(split: str, sums: Tensor) -> dict[str, float]:
    loss, correct, predictions = sums.tolist()
    return {f"{split}_loss": loss / predictions, f"{split}_accuracy": correct / predictions}
