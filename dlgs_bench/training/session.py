"""The training of one process: its state, and the schedule of a step.

The work of a process at each point of the schedule depends on its role (``dlgs_bench.training.roles``).
"""

import random
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dlgs_bench import plugins
from dlgs_bench.buckets import Plan, assign_buckets, split_evenly
from dlgs_bench.comm import Communicator, broadcast_all, distinct
from dlgs_bench.data import DataSet, Shard
from dlgs_bench.errors import Ended
from dlgs_bench.exchange import LocalSteps, Method, StepContext
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.spec import RunSpec, Scheme
from dlgs_bench.training.build import build_seeded, seed_all, to_device
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.finite_check import Listener
from dlgs_bench.training.flat_model import FlatModel
from dlgs_bench.training.optimizer import SGD, optimizer_of
from dlgs_bench.training.roles import Role, Server, Worker


class Session:
    """The model, optimizer, exchanges, position in the data and rows of one process.

    ``done``: number of completed steps. ``drawn``: batches read from the data. ``sent_bytes``: bytes that this process
    sent in all steps. ``sums``: [loss sum, correct, predictions] since the last point of the curve. ``rows``: table ->
    rows so far. ``exchanges``: variant -> exchange.

    ``state_dict`` holds everything that changes. A session that loads it continues as if it had never stopped.
    """

    def __init__(self, spec: RunSpec, comm: Communicator, data: DataSet | None, device: torch.device) -> None:
        self.spec, self.comm, self.data = spec, comm, data
        training, workers = spec.training, spec.cluster.workers
        self.model = plugins.load("models", training.model)
        self.flat = FlatModel(to_device(build_seeded(self.model, training.seed), device))
        comm.broadcast(self.flat.parameters)
        broadcast_all(comm, [*self._frozen(), *self.flat.model.buffers()])
        seed_all(training.seed * workers + comm.rank)  # from here on, random numbers differ between workers
        self.shard = Shard(training.batch, workers, comm.rank, training.seed)
        self.optimizer = optimizer_of(training, self.flat.parameters, self.flat.matrices())
        self.clock = Clock(device)
        self.exchanges: dict[str, Exchange] = {}
        self._joining_decay = 0.0
        self.done = self.drawn = self.sent_bytes = 0
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.rows: dict[str, list[dict]] = {}
        self._listener: Listener | None = None
        self._arrived: set[int] = set()  # layers whose gradient is ready in this backward pass
        self._begun = time.perf_counter()
        role = Server if spec.topology.serves(comm.rank, workers) else Worker
        self.role: Role = role(self)
        for layer, (parameter, view) in enumerate(self.flat.views):
            parameter.register_post_accumulate_grad_hook(self._hook(layer, view))

    def _hook(self, layer: int, view: Tensor) -> Callable[[Tensor], None]:
        """A hook that writes the gradient into its bucket, divided by the number of workers, so that sums are means."""
        factor = 1 / self.spec.cluster.workers

        def hook(parameter: Tensor) -> None:
            with self.clock("other"):
                gradient = parameter.grad if parameter.grad.layout is torch.strided else parameter.grad.to_dense()
                torch.mul(gradient, factor, out=view)
                self._join_decay(parameter, view)
                parameter.grad = None
            self._arrive(layer)

        return hook

    def _join_decay(self, parameter: Tensor, view: Tensor) -> None:
        """Add the weight decay that joins gradients to this worker's part of a mean gradient."""
        if self._joining_decay:
            view.add_(parameter.detach(), alpha=self._joining_decay * (1 / self.spec.cluster.workers))

    def _arrive(self, layer: int) -> None:
        if layer in self._arrived:
            name = self.flat.names[layer]
            raise Ended(
                f"backward computes the gradient of {name} in several parts, as checkpoint with use_reentrant=True "
                "does for a shared layer; give use_reentrant=False"
            )
        self._arrived.add(layer)
        if self._listener is not None:
            self._listener.ready(layer)

    def complete_gradient(self) -> None:
        """Give a gradient of zeros to every layer that backward did not use, since other workers may have used it.

        Weight decay that joins gradients joins these, too.
        """
        for layer, (parameter, view) in enumerate(self.flat.views):
            if layer not in self._arrived:
                view.zero_()
                self._join_decay(parameter, view)
                self._arrive(layer)
        self._arrived.clear()

    def _present(self, gradient: Tensor) -> None:
        """Fill the buckets with this gradient, in backward's order of layers."""
        self.flat.gradients.copy_(gradient)
        for layer in range(len(self.flat.views)):
            self._arrive(layer)
        self._arrived.clear()

    @property
    def epoch_steps(self) -> int:
        """The number of steps of one epoch."""
        return self.data.steps(self.shard)

    def prepare(
        self, variant: str, method: Method, groups: Plan | None = None, scheme: Scheme | None = None
    ) -> Exchange:
        """Create the exchange of a method, and keep it in ``exchanges`` under ``variant``.

        ``groups``: the layers of each bucket, if given; otherwise the method's scope and the planner decide.
        ``scheme``: how gradients are exchanged; the run's scheme unless given.
        """
        scheme, flat = scheme or self.spec.scheme, self.flat
        if isinstance(method, LocalSteps):
            groups = split_evenly(flat.sizes, method.fragments)
        groups = groups or assign_buckets(
            flat.sizes, method.scope, scheme.planner, scheme.bucket_bytes // 4, scheme.groups
        )
        buckets = flat.buckets(groups, scheme.ratios if method.ratios_from_plan else ())
        own_transport = transport(self.spec.topology, self.comm, scheme.wire, scheme.collective, scheme.streams)
        self.exchanges[variant] = self.role.exchange(method, groups, buckets, own_transport)
        return self.exchanges[variant]

    def step(
        self, exchange: Exchange, number: int, listener: Listener | None = None, gradient: Tensor | None = None
    ) -> dict:
        """Make one iteration, and return its row: its parts in seconds, its bytes, messages and density.

        ``sent_messages`` counts the messages of this project's collectives, not those inside the engine. The loss and
        the number of correct predictions are added to ``sums``. ``listener``: is told of each gradient instead of the
        exchange, and passes it on. ``gradient``: is exchanged instead of a new gradient, which is then not computed.
        """
        self._listener = listener or exchange
        self._set_momentum_and_decay(exchange.method)
        self.clock.start()
        messages_before = self.comm.sent_messages
        exchange.begin(StepContext(number, self.comm.rank, self.spec.cluster.workers, self.optimizer.lr))
        outcome = None
        if gradient is None:
            outcome = self.role.compute(lambda: None)
        else:
            self._present(gradient)
        exchange.finish()
        with self.clock("optimizer"):
            self.role.update()
        exchange.updated()
        counts = exchange.transport
        row = {
            "step": number,
            "phase": exchange.method.phase(number),
            **self.clock.stop(),
            "sent_bytes": counts.sent_bytes,
            "received_bytes": counts.received_bytes,
            "sent_messages": self.comm.sent_messages - messages_before,
            "density": int(counts.sent_entries) / len(self.flat.gradients),
        }
        self.sent_bytes += counts.sent_bytes
        if outcome is not None:
            self.sums += outcome.sums()
        return row

    def _set_momentum_and_decay(self, method: Method) -> None:
        """Leave momentum to the method or to the optimizer, never to both; the same for weight decay."""
        training = self.spec.training
        if training.optimizer == "sgd":
            cast(SGD, self.optimizer).momentum = 0.0 if method.owns_momentum else training.momentum
            self.optimizer.weight_decay = 0.0 if method.decay_joins_gradient else training.weight_decay
        elif method.owns_momentum or method.decay_joins_gradient:
            name = type(method).__name__
            raise ValueError(f"optimizer: {training.optimizer} cannot leave its momentum to {name}; give sgd")
        self._joining_decay = training.weight_decay if method.decay_joins_gradient else 0.0

    def local_gradient(self, listener: Listener | None = None, begun: Callable[[], None] = lambda: None) -> None:
        """Compute one gradient of this worker into the buckets, without an exchange or an update of weights.

        ``listener.ready(layer)`` is called as in an exchange, and ``begun`` when backward starts.
        """
        self._listener = listener
        self.clock.start()
        self.role.compute(begun)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The outputs of the model as float32, computed in the precision of the run."""
        mixed = self.spec.training.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed):
            return self.flat.model(inputs).float()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This worker's next inputs and targets."""
        batch = self.data.batch(self.drawn, self.shard)
        self.drawn += 1
        return batch

    def train_means(self) -> dict[str, float]:
        """Training loss and accuracy since the last call, over all workers."""
        means = _means("train", self.comm.allreduce(self.sums.clone()))
        self.sums.zero_()
        return means

    def evaluate(self, limit: int) -> dict[str, float]:
        """Loss and accuracy on the first ``limit`` test samples, which the workers share. Before, BatchNorm's running
        statistics become their means over the workers.

        If the workers' weights differ, as between two exchanges of local steps, the mean of the weights is tested.
        """
        self._average_buffers()
        own = self.flat.parameters.clone()
        if any(exchange.weights_differ for exchange in self.exchanges.values()):
            self.flat.parameters.copy_(self.comm.allreduce(self.role.part_of_mean(own)))
        sums = self.comm.allreduce(self.role.test_sums(limit))
        self.flat.parameters.copy_(own)
        return _means("test", sums)

    def _average_buffers(self) -> None:
        """Replace BatchNorm's running statistics, which differ between workers, by their mean.

        Entries that are the same everywhere keep their bits, such as constants of the model.
        """
        buffers = self.flat.buffers()
        if not buffers:
            return
        own = torch.cat([b.reshape(-1) for b in buffers])
        first = own.clone()
        self.comm.broadcast(first)
        differ = self.comm.allreduce((own != first).to(own.dtype))
        mean = torch.where(differ > 0, self.comm.allreduce(self.role.part_of_mean(own)), own)
        parts = mean.split([b.numel() for b in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run, including the time before a resume."""
        return time.perf_counter() - self._begun

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from step to step. Tensors are not copied."""
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
            "frozen": self._frozen(),  # forward can update them, as the weights of a teacher
            "methods": {variant: exchange.method.state_dict() for variant, exchange in self.exchanges.items()},
            "random": self._random_states(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; ValueError unless the same variants were prepared."""
        if set(state["methods"]) != set(self.exchanges):
            raise ValueError(f"the state has the variants {sorted(state['methods'])}, not {sorted(self.exchanges)}")
        for name in ("done", "drawn", "sent_bytes", "rows"):
            setattr(self, name, state[name])
        self.sums.copy_(state["sums"])
        self.flat.parameters.copy_(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        for buffer, saved in zip(self.flat.model.buffers(), state["buffers"], strict=True):
            distinct(buffer).copy_(distinct(saved))
        for parameter, saved in zip(self._frozen(), state["frozen"], strict=True):
            parameter.copy_(saved)
        for variant, saved in state["methods"].items():
            self.exchanges[variant].method.load_state_dict(saved)
        self._begun = time.perf_counter() - state["elapsed_s"]
        torch.set_rng_state(state["random"]["cpu"])
        random.setstate(state["random"]["python"])
        kind, keys, *rest = state["random"]["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        if "cuda" in state["random"]:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.flat.parameters.device)

    def _frozen(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.flat.model.parameters() if not parameter.requires_grad]

    def _random_states(self) -> dict[str, Any]:
        device = self.flat.parameters.device
        gpu = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
        kind, keys, *rest = cast(tuple, np.random.get_state())
        return {"cpu": torch.get_rng_state(), "python": random.getstate(), "numpy": (kind, keys.tolist(), *rest)} | gpu


def decide(comm: Communicator, yes: bool) -> bool:
    """The value of ``yes`` on rank 0, returned on all processes: for decisions that depend on the clock."""
    decision = torch.tensor([float(yes)], device=comm.device)
    comm.broadcast(decision)
    return bool(decision.item())


def make_method(name: str, options: dict[str, Any]) -> Method:
    """The method in ``methods/<name>.py`` with these parameters."""
    return method_class(name)(**options)


def _means(split: str, sums: Tensor) -> dict[str, float]:
    loss, correct, predictions = sums.tolist()
    return {f"{split}_loss": loss / predictions, f"{split}_accuracy": correct / predictions}
