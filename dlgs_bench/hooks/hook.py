"""The common part of hooks, which exchange the gradients of a user's training loop by a method."""

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dlgs_bench import plugins
from dlgs_bench.buckets import assign_buckets
from dlgs_bench.comm import Communicator
from dlgs_bench.errors import listed, meant, wrong_options
from dlgs_bench.exchange import LocalSteps, Method, StepContext
from dlgs_bench.exchange.async_device import is_async
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.exchange.plugin import class_info, method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.hooks.callers import refuse_compiled_autograd, refuse_inner_backward, stepping_scaler
from dlgs_bench.hooks.groups import agreement, refuse_destroyed
from dlgs_bench.hooks.optimizers import (
    JoinedDecay,
    coupled_decays,
    listed_optimizers,
    momentum_of,
    rate_of,
    refuse_stranger,
)
from dlgs_bench.hooks.states import HELD, arguments_of, global_rank, identity_of, loaded_state, saved_state
from dlgs_bench.hooks.wrappers import before_forward, refuse_outer
from dlgs_bench.topology import ALL_GATHER

MOST_ENTRIES = 2**30  # of a bucket: indices have 32 bits, of which one can be a sign
INTERRUPTED = "the last backward pass was interrupted, so the workers' exchanges no longer match; restart the job"


class Removable(Protocol):
    """An effect of a hook that ends with it, such as torch's handle of a registered function."""

    def remove(self) -> None: ...


class Hook:
    """One worker's part in the exchanges of a method. Subclasses deliver the gradients of a framework.

    The method's ``scope`` decides the buckets: one for the model, one per layer, or layers merged up to
    ``bucket_cap_mb`` MiB. The scope "plan" merges by size too, since a hook has no calibration. ``ends``: layers, in
    the order in which backward finishes them, before which a bucket ends in any case.

    ``step``: the number of backward passes exchanged so far. The method gets the first learning rate above 0
    of the optimizers' groups. Residuals are float32 and unscaled: ``scaler`` is the GradScaler that scales the loss.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, Parameter], optimizer: Optimizer | Sequence[Optimizer],
        comm: Communicator, method: str | type[Method], options: dict[str, Any], bucket_cap_mb: float,
        scaler: torch.amp.GradScaler | None = None, ends: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._model, self._comm, self._scaler, self._scale = model, comm, scaler, 1.0
        self._handles: list[Removable] = []
        self._finalizer = released_with(self, comm, self._handles)
        with agreement(comm, "give every worker the same arguments") as same:
            self.name, self.method = _made(method, options)
            self.step = 0
            self._optimizers = listed_optimizers(optimizer)
            for one in self._optimizers:
                refuse_stranger(one, model)
                self._refuse_momentum(one)
            if not (scaler is None or isinstance(scaler, torch.amp.GradScaler)):
                raise ValueError(
                    f"scaler: {type(scaler).__qualname__} is not a torch.amp.GradScaler; give the loss's scaler"
                )
            self._flat = FlatGradients(usable(parameters), torch.float32)
            groups = self._grouped(bucket_cap_mb, ends)
            buckets, untimed = self._flat.buckets(groups), lambda label: nullcontext()
            self._sizes = [bucket.size for bucket in buckets]
            refuse_large(self.name, self.method, self._sizes)
            same |= arguments_of(self.name, self.method) | {"buckets": self._sizes, "scaler": scaler is not None}
            same |= {f"parameter {n}": name for n, name in enumerate(parameters)}
        self._decay = JoinedDecay(self._optimizers, _joined) if self.method.decay_joins_gradient else None
        self._decays: dict[Tensor, float] = {}
        self._held: dict[Tensor, Tensor] = {}  # aggregates that wait for a use of the layer, not scaled
        self._idle: set[Any] = set()  # unused layers whose gradient is nothing but an update by the method's momentum
        kind = WorkerExchange if self.method.uncompressed else FiniteExchange
        self._exchange = kind(self.method, groups, buckets, transport(ALL_GATHER, comm), untimed)
        self._exchanged = {id(parameter) for parameter, _ in self._flat.views}
        self._loaded = self._begun = self._stepped_before = self._has_optimizers = False
        self._passing = False  # whether a pass has begun to exchange, and not ended
        self._dropped: dict[Any, Any] = {}  # layer -> the update that a pass has discarded
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # on parameters of the model
        self._handles += [_watch_steps(self), *filter(None, [self._decay])]

    def _grouped(self, bucket_cap_mb: float, ends: Sequence[int]) -> list[tuple[int, int]]:
        """The range of layers in each bucket."""
        if not isinstance(bucket_cap_mb, int | float) or not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb: {bucket_cap_mb!r} is not a positive number; give a size in MiB")
        groups, most = [], int(min(bucket_cap_mb * 2**20 / 4, sum(self._flat.sizes)))
        bounds = [0, *(ends if self.method.scope != "model" else ()), len(self._flat.sizes)]
        for start, stop in pairwise(bounds):
            within = assign_buckets(self._flat.sizes[start:stop], self.method.scope, "size", most)
            groups += [(start + first, start + last) for first, last in within]
        return groups

    @property
    def rank(self) -> int:
        """The rank of this process among all processes."""
        return global_rank(self._comm)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Release threads, sockets and process groups. The model can train on without the hook.

        All workers call it. The end of a ``with`` block and the garbage collector call it too.
        """
        self._finalizer()
        _HOOKS.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        return type(None), ()  # a copy of a module that holds its hook has no hook

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs of this worker, under a key of its rank: residuals differ between workers.

        Every worker saves its own. Tensors are on the CPU; tensors of a CPU are the method's own, not copies. If the
        last backward pass was interrupted, it is the state before this pass.
        """
        self._restore()
        held = {layer: self._held[p].cpu() for layer, p in enumerate(self._trained()) if p in self._held}
        step, kept = self.step - self._passing, self.method.state_dict()
        if self._passing and isinstance(self._exchange, FiniteExchange):
            kept = self._exchange.before
        return saved_state(self._comm, self._identity, step, kept, held)

    def load_state_dict(self, state: dict[str, Any], redistribute: bool = False) -> None:
        """Continue from ``state``, which is copied; ValueError in one line if it is of another method or other buckets.

        ``redistribute``: ``state`` holds the saved states of all workers, however many they were. The sum of all
        residuals is kept, and ``step`` goes back to the beginning of the method's cycle.
        """
        self._restore()
        self.step, kept = loaded_state(state, self._comm, self._identity, self.method, redistribute)
        held = kept.pop(HELD, {})
        self._held = {p: held[layer] for layer, p in enumerate(self._trained()) if layer in held}
        self.method.load_state_dict(kept)
        self._loaded = True

    @property
    def _identity(self) -> dict[str, Any]:
        return identity_of(self.name, self.method, self._comm, self._sizes, self._flat.shapes)

    def _refuse_momentum(self, optimizer: Optimizer) -> None:
        """ValueError in one line if momentum would be applied twice. It is checked in each step, since schedulers may
        set momentum at any time."""
        if self.method.owns_momentum and (given := momentum_of(optimizer)):
            why = f"{self.name} applies momentum itself, and the optimizer has {given}"
            raise ValueError(f"optimizer: {why}; give an optimizer without momentum")

    def _begin(self) -> None:
        """Begin a step, at the first gradient of a backward pass."""
        refuse_destroyed(self._comm, self.name)
        for optimizer in self._optimizers:
            self._refuse_momentum(optimizer)
        if not self._begun:
            with agreement(self._comm, "load the hook's state on every worker, or on none") as same:
                same |= {"hook.step": self.step, "loaded state": self._loaded}
            self._begun = True
        self._warn_of_forgotten_state()
        self._warn_of_layers_without_optimizer()
        self._restore()
        if self._scaler is not None and not self.method.rounds_to_16_bits:
            self._scale = self._scaler.get_scale()
        if self._decay is not None:
            self._decays = self._decay.by_parameter()
        self.step += 1
        self._passing = True
        context = StepContext(self.step, self._comm.rank, self._comm.world_size, rate_of(self._optimizers))
        self._exchange.begin(context)

    def _warn_of_forgotten_state(self) -> None:
        """Warn once, in the first step, if the optimizer was resumed and the hook was not.

        A step before the first pass makes state too, as in hvd.broadcast_optimizer_state.
        """
        if self._loaded or self._stepped_before:
            return
        self._loaded = True
        trained = (p for o in self._optimizers for group in o.param_groups for p in group["params"] if o.state.get(p))
        resumed = any(id(p) in self._exchanged for p in trained)
        if resumed and self.method.state_dict():
            warnings.warn(
                f"the optimizer has made steps before, and {self.name} starts without its state; if this run resumes, "
                "load hook.state_dict() of this worker, otherwise its residuals are lost",
                stacklevel=2,
            )

    def _warn_of_layers_without_optimizer(self) -> None:
        """Warn once, in the first pass after a step, of a layer whose aggregate nobody applies."""
        if self._has_optimizers or not self._stepped or self.method.uncompressed:
            return
        self._has_optimizers = True
        if layers := self._without_optimizer():
            warnings.warn(self._wastes(layers[-1]), stacklevel=2)  # the first of the model

    def _without_optimizer(self) -> list[Tensor]:
        """The layers that require a gradient, and are in no optimizer of the hook and in none that has stepped."""
        groups = [group for one in (*self._optimizers, *self._stepped) for group in one.param_groups]
        known = {id(p) for group in groups for p in group["params"]}
        return [p for p in self._trained() if p.requires_grad and id(p) not in known]

    def _wastes(self, parameter: Tensor) -> str:
        """What is wrong with a layer without an optimizer."""
        return (
            f"{self._name_of(parameter)}: it is in no optimizer that {self.name} was given, so its gradient takes part "
            "in exchanges and is not applied; freeze it, or give the hook its optimizer"
        )

    def _put(self, gradient: Tensor, view: Tensor) -> None:
        """Write a gradient into its view of the buckets, unscaled and divided by the number of workers."""
        factor = 1 / (self._comm.world_size * self._scale)
        if gradient.dtype == view.dtype:
            torch.mul(gradient, factor, out=view)
        else:
            view.copy_(gradient).mul_(factor)

    def _trained(self) -> Iterable[Tensor]:
        """The parameters that the optimizers have, of the layers that this hook exchanges."""
        return (parameter for parameter, _ in self._flat.views)

    def _add_decay(self, layer: int, gradient: Tensor) -> None:
        """Add the weight decay of a layer to its flat gradient, if the method applies weight decay."""
        parameter = self._flat.views[layer][0]
        if parameter.requires_grad and (decay := self._decays.get(parameter)):
            # The memory format of the parameter may have changed since the hook was made.
            strides = self._flat.views[layer][1].stride()
            shaped = gradient.as_strided(parameter.shape, strides, gradient.storage_offset())
            shaped.add_(parameter.detach(), alpha=decay / self._comm.world_size)

    def _ready(self, layer: int, used: bool) -> None:
        """Exchange the bucket of a layer once it is full. ``used``: whether this worker has a gradient of the layer."""
        if used and isinstance(self._exchange, FiniteExchange):
            self._exchange.used.add(layer)
        self._exchange.ready(layer)

    def _unused(self) -> set[int]:
        """The layers that no worker has used. Without compression, nothing is sent of them."""
        return self._exchange.unused() if isinstance(self._exchange, FiniteExchange) else set()

    def _hold(self, parameter: Tensor, aggregate: Tensor) -> None:
        """Keep the aggregate of a layer that is frozen or not used: workers have cleared the residuals that they sent.

        A method that applies momentum itself makes updates also of a gradient of zeros. They are dropped.
        """
        if not self.method.owns_momentum and aggregate.any():
            finite = aggregate.float().nan_to_num(0.0, 0.0, 0.0) / self._scale
            held = self._held.get(parameter)
            self._held[parameter] = finite if held is None else held.add_(finite)

    def _hold_unused(self, parameter: Tensor, aggregate: Tensor) -> None:
        """Keep the aggregate of a layer that is not used, and leave zeros. An aggregate that is NaN stays NaN.

        The optimizer of the layer may not step now, and its zero_grad would discard the aggregate.
        """
        if not self.method.owns_momentum:
            self._hold(parameter, aggregate)
            aggregate.mul_(0)

    def _note_idle(self, parameter: Any, unused: bool, earlier: Any) -> None:
        """Note whether the gradient of a layer is nothing but an update by the method's momentum.

        ``earlier``: what passes before have left in it for the optimizer.
        """
        if self.method.owns_momentum and unused and not is_not_zero(earlier):
            self._idle.add(parameter)
        else:
            self._idle.discard(parameter)

    def _drop_idle(self, parameter: Any) -> None:
        """Discard an update that ``_note_idle`` noted, before the next gradient of the layer."""
        if parameter in self._idle:
            self._idle.discard(parameter)
            self._dropped[parameter], parameter.grad = parameter.grad, None

    def _return_dropped(self) -> None:
        """Return the updates that a pass of torch.autograd.grad has discarded, which leaves no gradients."""
        for parameter, update in self._dropped.items():
            if parameter.grad is None:
                parameter.grad = update
                self._idle.add(parameter)
        self._dropped.clear()

    def _deliver_held(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add the aggregates of passes in which the layer was frozen or not used to its finite gradient."""
        held = self._held.get(parameter)
        if held is not None and gradient.isfinite().all():
            gradient.add_(held, alpha=self._scale)
            del self._held[parameter]

    def _finish(self) -> None:
        """Wait for the exchanges after backward, and scale the aggregates as the gradients were scaled."""
        self._exchange.finish()
        if self._scale != 1:
            for bucket in self._exchange.buckets[: len(self._sizes)]:
                bucket.gradient.mul_(self._scale)

    def _conclude(self, delivered: list[Tensor], shards: dist.ProcessGroup | None = None) -> None:
        """Replace ``delivered``, the gradients that the script gets, by NaN on all workers if one is not finite.

        ``shards``: the ranks that hold the other shards of these gradients.
        """
        self._passing = False
        if isinstance(self._exchange, FiniteExchange):
            self._exchange.conclude(delivered, shards)
            if not is_async(self._flat.gradients):
                self._restore()

    def _restore(self) -> None:
        """Undo the last pass if it was not finite."""
        if isinstance(self._exchange, FiniteExchange) and self._exchange.restore():
            self.step -= 1

    def _updates_model(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates a parameter that this hook exchanges, or that the model has by now."""
        own = self._exchanged | set(map(id, self._model.parameters()))
        return any(id(p) in own for group in optimizer.param_groups for p in group["params"])

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        """ValueError in one line if a step of ``optimizer`` would let the weights of workers diverge."""
        self._stepped_before |= not self._begun
        self._stepped.add(optimizer)
        if torch._C._current_graph_task_id() >= 0:
            raise ValueError(
                f"{type(optimizer).__qualname__}.step: it is called within a backward pass, before {self.name} has "
                "exchanged the gradients; call it after backward"
            )
        follows = not (self.method.uncompressed or self.method.rounds_to_16_bits)
        if follows and stepping_scaler() not in (None, self._scaler):
            raise ValueError(
                f"scaler: a GradScaler that the hook does not have scales the loss, so the state of {self.name} would "
                "follow its scale; give the hook scaler=scaler"
            )
        if optimizer not in self._optimizers:
            self._refuse_momentum(optimizer)
            if self._decay is not None and any(coupled_decays(optimizer)):
                raise ValueError(
                    f"{self.name} takes the weight decay of the optimizers that it is given, and "
                    f"{type(optimizer).__qualname__} is not among them; give the hook a list of all optimizers"
                )
        for number, group in enumerate(optimizer.param_groups):
            for p in group["params"]:
                if optimizer not in self._optimizers and id(p) in self._exchanged and p in self._decays:
                    raise ValueError(
                        f"{self._name_of(p)}: {self.name} adds the weight decay of its own optimizer, and "
                        f"{type(optimizer).__qualname__}, which it was not given, steps; give the hook the optimizer "
                        "that steps"
                    )
                if p.grad is not None and p.requires_grad and p.numel() and not self._is_exchanged(p):
                    raise ValueError(
                        f"{self._name_of(p) or f'a parameter of shape {tuple(p.shape)} in group {number}'} has a "
                        f"gradient that the hook does not exchange by {self.name}, so workers would drift apart; make "
                        "the hook, and the wrapper around the model, after the parameter is in the model and unfrozen, "
                        "or give it to another optimizer"
                    )

    def _is_exchanged(self, parameter: Tensor) -> bool:
        """Whether this hook or another hook exchanges the gradient of ``parameter``."""
        return id(parameter) in self._exchanged or any(id(parameter) in hook._exchanged for hook in _HOOKS)

    def _name_of(self, parameter: Tensor) -> str | None:
        return next((name for name, p in self._model.named_parameters() if p is parameter), None)

    def _accumulates(self, parameter: Any) -> str:
        """What is wrong if a method with momentum gets gradients that a pass adds to aggregates of the pass before."""
        if any(layer is parameter for layer in self._without_optimizer()):
            return self._wastes(parameter)
        return (
            f"{self.name} applies momentum in every backward pass, and gradients of the pass before are still there; "
            "call zero_grad after every step, and add up losses to accumulate, or use no_sync"
        )


class ParameterHook(Hook):
    """Base of hooks that autograd calls for single parameters, and not for buckets.

    ``_arrived``: the layers whose gradients have arrived in this pass. ``_earlier``: the gradients of earlier passes
    that the script accumulates, by layer.
    """

    def _listen(self, parameters: Sequence[Any]) -> None:
        """Call ``_arrive`` when autograd has written a gradient. ``parameters``: in the order of layers."""
        self._parameters = parameters
        self._arrived: set[int] = set()
        self._earlier: dict[int, Any] = {}
        self._ending: Callable[[], Any] = lambda: None  # a weak reference to the callback of the pass
        arrived = weakly(self._arrive)
        for layer, parameter in enumerate(parameters):
            arrive = torch.compiler.disable(partial(arrived, layer))
            self._handles.append(parameter.register_post_accumulate_grad_hook(arrive))
        self._handles.append(before_forward(self._model, weakly(self._check_forward)))

    def _check_forward(self) -> None:
        """ValueError in one line if somebody else exchanges the gradients of the forward pass that begins."""
        refuse_outer(self._parameters)

    def _arrive(self, layer: int, parameter: Any) -> None:
        """Exchange a gradient."""
        raise NotImplementedError

    def _end(self) -> None:
        """Deliver the aggregates at the end of a backward pass in which gradients have arrived."""
        raise NotImplementedError

    def _starts_pass(self) -> bool:
        """Whether a backward pass starts. ``_end`` is then called at its end.

        If an error interrupts the pass, autograd drops the callback without a call, and the script gets back the
        gradients of earlier passes.
        """
        if self._ending() is not None:
            return False
        self._refuse_interrupted()
        refuse_compiled_autograd()
        refuse_inner_backward()
        self._earlier.clear()
        end = torch.compiler.disable(self._end_pass)
        self._ending = weakref.ref(end, partial(_give_back, self._earlier, self._parameters))
        self._at_the_end(end)
        return True

    def _at_the_end(self, end: Callable[[], None]) -> None:
        """Let autograd call ``end`` at the end of the backward pass."""
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _refuse_interrupted(self) -> None:
        """RuntimeError in one line if exchanges of an interrupted pass are open. Its callback no longer exists."""
        if self._arrived and self._ending() is None:
            raise RuntimeError(INTERRUPTED)

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        self._refuse_interrupted()
        super()._check_step(optimizer, positional, named)

    def _end_pass(self) -> None:
        try:
            with plain_context(self._comm.device):
                if self._arrived:
                    self._end()
                else:
                    self._end_without_gradients()
        finally:
            self._ending = lambda: None
            self._arrived.clear()
            self._earlier.clear()
            self._dropped.clear()

    def _end_without_gradients(self) -> None:
        """End a pass whose gradients torch.autograd.grad returned, or in which nothing is exchanged."""
        _give_back(self._earlier, self._parameters, None)
        self._return_dropped()

    def _check_arrival(self, layer: int) -> None:
        """ValueError in one line if the gradient of a layer must not be exchanged."""
        self._refuse_parts(layer)
        if self.method.owns_momentum and is_not_zero(self._earlier.get(layer)):
            raise ValueError(self._accumulates(self._parameters[layer]))

    def _refuse_parts(self, layer: int) -> None:
        """ValueError in one line if backward computes the gradient of a layer in several parts: one was exchanged."""
        if layer in self._arrived:
            raise ValueError(
                f"{self._name_of(self._parameters[layer]) or 'a layer'}: backward computes its gradient in several "
                "parts, as checkpoint with use_reentrant=True does for a shared layer; give use_reentrant=False"
            )


def _give_back(earlier: dict[int, Any], parameters: Sequence[Any], _: object) -> None:
    """Return gradients of earlier passes to the script, unless the pass has written other gradients."""
    for layer, gradient in earlier.items():
        if parameters[layer].grad is None:
            parameters[layer].grad = gradient
    earlier.clear()


_HOOKS: "weakref.WeakSet[Hook]" = weakref.WeakSet()


def _joined() -> set[int]:
    """The ids of parameters to whose gradients a hook adds their weight decay."""
    return {id(p) for hook in _HOOKS if hook._decay is not None for p in hook._trained()}


def _watch_steps(hook: Hook) -> RemovableHandle:
    """Check every step of an optimizer that updates parameters of ``hook``, as long as the hook exists."""
    weak = weakref.ref(hook)

    def before_step(optimizer: Optimizer, positional: tuple, named: dict) -> None:
        alive = weak()
        if alive is not None and (optimizer in alive._optimizers or alive._updates_model(optimizer)):
            alive._check_step(optimizer, positional, named)

    _HOOKS.add(hook)
    return register_optimizer_step_pre_hook(before_step)


def released_with(owner: object, comm: Communicator, handles: Sequence[Removable]) -> weakref.finalize:
    """A call that removes the handles and releases ``comm``. It is made when the owner is collected, if not before.

    The owner may fail to be constructed, so this comes right after the communicator is made.
    """
    finalizer = weakref.finalize(owner, _release, comm, handles)
    finalizer.atexit = False  # the end of the process releases everything
    return finalizer


def _release(comm: Communicator, handles: Sequence[Removable]) -> None:
    for handle in handles:
        handle.remove()
    comm.release()


@contextmanager
def plain_context(device: torch.device) -> Iterator[None]:
    """Switch off autograd and autocast, which may be active around the script's backward pass."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _made(method: str | type[Method], options: dict[str, Any]) -> tuple[str, Method]:
    """A method's name, and the method; ValueError in one line if it does not exchange gradients."""
    name, made = checked_method(method, options)
    if isinstance(made, LocalSteps):
        raise ValueError(
            f"method: {name} exchanges weights, and a hook exchanges gradients; use "
            "dlgs_bench.hooks.local_steps.LocalSteps"
        )
    if made.ratios_from_plan:
        raise ValueError(
            f"method: {name} takes the ratio of each layer from a plan, and a hook has no plan; give a method with one "
            "ratio, such as lags"
        )
    return name, made


def checked_method(method: str | type[Method], options: dict[str, Any]) -> tuple[str, Method]:
    """A method's name, and the method with these parameters; ValueError in one line if either is invalid.

    ``method``: the name of a file in ``methods/``, or a class.
    """
    if isinstance(method, type) and issubclass(method, Method):
        name, kind = method.__name__, method
    else:
        name, known = str(method), plugins.names("methods")
        if name not in known:
            raise ValueError(f"method: {name!r} is not a method{meant(name, known)}; {listed(known)}")
        kind = method_class(name)
    if wrong := wrong_options(name, class_info(kind, name)["fields"], options):
        raise ValueError(wrong)
    # numpy's numbers would make the saved state unreadable
    plain = {key: float(value) if isinstance(value, float) else value for key, value in options.items()}
    try:
        return name, kind(**plain)
    except ValueError as error:  # it begins with the name of the parameter
        raise ValueError(f"{name}.{error}") from None


def open_hooks() -> list["Hook"]:
    """The hooks that are not closed."""
    return list(_HOOKS)


def refuse_second_hook(parameters: Mapping[str, Tensor]) -> None:
    """ValueError in one line if another hook exchanges one of these parameters already."""

    def find() -> list[str]:
        others = {id(p) for hook in _HOOKS for p in hook._trained()}
        return [name for name, p in parameters.items() if id(p) in others]

    if taken := still(find):
        raise ValueError(f"{taken[0]}: another hook exchanges its gradient already; call close of that hook first")


def still(find: Callable[[], list]) -> list:
    """What ``find`` finds, without objects that the script has deleted and Python has not collected yet."""
    if not find():
        return []
    gc.collect()
    return find()


def weakly(method: Callable) -> Callable:
    """Call a bound method without keeping its object: tensors hide their hooks from the garbage collector."""
    # Not a WeakMethod: at the end of Python, its object may be collected after the names that it uses.
    function, owner = method.__func__, weakref.ref(method.__self__)  # type: ignore[attr-defined]
    return torch.compiler.disable(lambda *arguments: function(owner(), *arguments))


def is_not_zero(gradient: Any) -> bool:
    return gradient is not None and bool(getattr(gradient, "_local_tensor", gradient).any())


def refuse_sparse(model: torch.nn.Module) -> None:
    """ValueError in one line if a layer has sparse gradients, which do not fit into a bucket."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{name or 'the model'}: sparse=True gives sparse gradients; give sparse=False")


def refuse_large(name: str, method: Method, sizes: Sequence[int]) -> None:
    """ValueError in one line if a bucket has more entries than the 32 bits of indices and signs can count."""
    if not method.elementwise and max(sizes) >= MOST_ENTRIES:
        raise ValueError(
            f"model: {name} would have a bucket of {max(sizes):,} entries, and at most {MOST_ENTRIES - 1:,} are "
            "possible; use a method that selects from each layer, such as lags, or give a smaller bucket_cap_mb"
        )


def usable(parameters: Mapping[str, Parameter]) -> list[Parameter]:
    """The parameters that have entries; ValueError in one line unless they have 16 or 32 bits and share a device."""
    usable = {name: p for name, p in parameters.items() if p.numel()}
    if not usable:
        raise ValueError("model: it has no parameter that requires a gradient; unfreeze a layer first")
    first = next(iter(usable.values()))
    for name, p in usable.items():
        if hasattr(p, "to_local"):
            raise ValueError(
                f"{name}: the parameter is sharded; use dlgs_bench.hooks.fsdp.FSDPHook, or give a model that is not "
                "sharded"
            )
        if p.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"{name}: {p.dtype} is not float32, bfloat16 or float16; convert the parameter")
        if p.device != first.device:
            raise ValueError(f"{name}: {p.device} is not {first.device}; put all parameters on one device")
    return list(usable.values())
