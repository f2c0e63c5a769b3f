"""Transports: how the requests of a method are answered over a topology.

Sparse messages have a format of ``dlgs_bench.exchange.wire``. A transport counts the bytes (values, indices and
lengths) and the gradient entries that this worker passes to the engine. It also counts the bytes that the engine
returns from other workers: a sum, or their messages. The network may carry more. For example, a ring all-reduce moves
2 (N - 1) / N times the bytes of the tensor in each direction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, collectives
from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange, PeerExchanges
from dlgs_bench.exchange.method import Gather, Max, Request, Sum
from dlgs_bench.exchange.steps import sum_messages
from dlgs_bench.exchange.wire import FORMATS
from dlgs_bench.topology import Topology, Traffic


class Transport:
    """Answers requests; ``start`` passes a request to the engine, ``finish`` returns the answer.

    ``sent_bytes``, ``received_bytes``, ``sent_entries`` and ``traffic`` count what this worker sent and received since
    the last ``reset``. ``sent_entries`` is a tensor of shape (1,) if only the device has the count; to read it waits
    for the device.
    ``gather``: starts an all-gather; by default the engine's.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str = "indices") -> None:
        self.topology, self.comm, self._format = topology, comm, FORMATS[wire]
        self.gather: Callable[..., Pending] = comm.start_allgather
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero."""
        self.sent_bytes = self.received_bytes = 0
        self.sent_entries: int | Tensor = 0
        self.traffic = Traffic()

    def start(self, request: Request) -> Pending:
        """Pass a request to the engine."""
        raise NotImplementedError

    def finish(self, request: Request, pending: Pending) -> Any:
        """Wait for ``pending`` and return the answer to the request."""
        raise NotImplementedError

    def count(self, entries: int | Tensor, sent_bytes: int, **traffic: int) -> None:
        """Count entries and bytes that leave this process, and ``traffic``: bytes by kind, as in ``Traffic``."""
        self.sent_entries = self.sent_entries + entries  # not in place: a caller may hold the old tensor
        self.sent_bytes += sent_bytes
        self.traffic += Traffic(**traffic, sums="summed" in traffic)

    def pack(self, values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The entries of a bucket of ``size`` as one int32 message."""
        return self._format.pack(values, indices, size)

    def add_up(self, out: Tensor, messages: list[Tensor]) -> Tensor:
        """Write the sum of messages, packed (int32) or dense (d,), to ``out``, shape (d,), and return it.

        Messages are added in the given order, which is rank order: all workers get the same bits.
        """
        out.zero_()
        for message in messages:
            if message.dtype == torch.int32:
                self._format.add(out, message)
            else:
                out += message
        return out


class CollectiveTransport(Transport):
    """Answers requests by collectives among equal workers.

    Dense sums are all-reduced, by the engine or by ``collective``; sparse sums are all-gathered. ``streams``: options
    of a collective whose message sizes depend on the tensor's entries.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str, collective: str, streams: Mapping) -> None:
        super().__init__(topology, comm, wire)
        self._dense_sum = _dense_sum(collective, comm.world_size, streams)

    def start(self, request: Request) -> Pending:
        return self._operation(request).start(self, request)

    def finish(self, request: Request, pending: Pending) -> Any:
        return self._operation(request).finish(self, request, pending.wait())

    def _operation(self, request: Request) -> "Operation":
        if isinstance(request, Sum) and request.indices is None:
            return self._dense_sum
        if isinstance(request, Sum):
            return SparseSum() if request.chosen is None else FixedSizeSparseSum()
        if type(request) not in OPERATION_OF:
            raise TypeError(f"{request!r} is not a request; yield a Sum, Max, Gather or PeerExchange")
        return OPERATION_OF[type(request)]


class Operation(ABC):
    """How collectives answer one kind of request."""

    @abstractmethod
    def start(self, transport: CollectiveTransport, request: Any) -> Pending:
        """Count what is sent, and pass it to the engine."""

    @abstractmethod
    def finish(self, transport: CollectiveTransport, request: Any, received: Any) -> Any:
        """Count what was received, and return the answer to the request."""


class EngineSum(Operation):
    """A dense sum by the engine's all-reduce."""

    def start(self, transport: CollectiveTransport, request: Sum) -> Pending:
        values = request.values
        transport.count(values.numel(), values.nbytes, summed=values.nbytes)
        return transport.comm.start_allreduce(values)

    def finish(self, transport: CollectiveTransport, request: Sum, received: Tensor) -> Tensor:
        transport.received_bytes += received.nbytes
        return received


class PlainSum(EngineSum):
    """A dense sum by a plain collective of this package, such as a ring."""

    def __init__(self, collective: ModuleType) -> None:
        self._collective = collective

    def start(self, transport: CollectiveTransport, request: Sum) -> Pending:
        values, comm = request.values, transport.comm
        _, sent = self._collective.cost(comm.rank, comm.world_size, values.numel())
        sent = sent * values.itemsize // 4  # the cost is of float32
        transport.count(values.numel(), sent, summed=values.nbytes)
        return comm.start_rounds(self._collective.all_reduce(comm.rank, comm.world_size, values))


class StreamedSum(Operation):
    """A dense sum by a collective with streams. Their counts are known when they have ended."""

    def __init__(self, collective: ModuleType, options: Mapping) -> None:
        self._collective, self._options = collective, options

    def start(self, transport: CollectiveTransport, request: Sum) -> Pending:
        comm = transport.comm
        streams = self._collective.streams(comm.rank, comm.world_size, request.values, **self._options)
        return comm.start_streams([_counted(stream) for stream in streams])

    def finish(self, transport: CollectiveTransport, request: Sum, received: list[tuple[int, int, int]]) -> Tensor:
        for entries, sent, received_bytes in received:
            transport.count(entries, sent, messages=sent)
            transport.received_bytes += received_bytes
        return request.values


class SparseSum(Operation):
    """A sparse sum by an all-gather of messages of any length."""

    def start(self, transport: CollectiveTransport, request: Sum) -> Pending:
        message = transport.pack(request.values, request.indices, request.out.numel())
        return _start_gather(transport, message, request.entries)

    def finish(self, transport: CollectiveTransport, request: Sum, received: list[Tensor]) -> Tensor:
        _count_gathered(transport, received)
        return transport.add_up(request.out, received)


class FixedSizeSparseSum(Operation):
    """A sparse sum by an all-gather of messages of one length. A message starts with the number of chosen entries."""

    def start(self, transport: CollectiveTransport, request: Sum) -> Pending:
        message = torch.cat([request.chosen.int(), request.values.view(torch.int32), request.indices.int()])
        transport.count(request.entries, message.nbytes, gathered=message.nbytes)
        return transport.gather(message, equal=True)

    def finish(self, transport: CollectiveTransport, request: Sum, received: list[Tensor]) -> Tensor:
        transport.received_bytes += _bytes_of_others(received, transport.comm.rank)
        request.chosen.copy_(torch.cat([message[:1] for message in received]).amax(0, keepdim=True))
        return sum_messages((message[1:] for message in received), request.out)


class Maximum(Operation):
    """An elementwise maximum by the engine. It counts as a sum, but as no entries of the gradient."""

    def start(self, transport: CollectiveTransport, request: Max) -> Pending:
        transport.count(0, request.values.nbytes, summed=request.values.nbytes)
        return transport.comm.start_max(request.values)

    def finish(self, transport: CollectiveTransport, request: Max, received: Tensor) -> Tensor:
        transport.received_bytes += received.nbytes
        return received


class GatherAll(Operation):
    """An all-gather of tensors of any length."""

    def start(self, transport: CollectiveTransport, request: Gather) -> Pending:
        entries = request.tensor.numel() if request.entries is None else request.entries
        return _start_gather(transport, request.tensor, entries)

    def finish(self, transport: CollectiveTransport, request: Gather, received: list[Tensor]) -> list[Tensor]:
        _count_gathered(transport, received)
        return received


class PeerMessages(Operation):
    """One round of messages between peers."""

    def start(self, transport: CollectiveTransport, request: PeerExchange) -> Pending:
        transport.count(request.entries, request.sent_bytes, messages=request.sent_bytes)
        return transport.comm.start_round(request)

    def finish(
        self, transport: CollectiveTransport, request: PeerExchange, received: dict[int, Tensor]
    ) -> dict[int, Tensor]:
        header = HEADER_BYTES if request.headers else 0
        transport.received_bytes += sum(message.nbytes + header for message in received.values())
        return received


OPERATION_OF: dict[type, Operation] = {Max: Maximum(), Gather: GatherAll(), PeerExchange: PeerMessages()}


def _dense_sum(collective: str, world: int, streams: Mapping) -> Operation:
    """The operation of dense sums: by the engine, or by a collective of this package."""
    if collective == "engine":
        return EngineSum()
    module = collectives.load(collective, world)
    return PlainSum(module) if collectives.is_plain(module) else StreamedSum(module, streams)


def _start_gather(transport: Transport, message: Tensor, entries: int | Tensor) -> Pending:
    """Start an all-gather of a message whose length other workers do not have yet, so its length is sent, too."""
    sent = message.nbytes + HEADER_BYTES
    transport.count(entries, sent, gathered=sent)
    return transport.gather(message)


def _count_gathered(transport: Transport, messages: list[Tensor]) -> None:
    others = len(messages) - 1
    transport.received_bytes += _bytes_of_others(messages, transport.comm.rank) + HEADER_BYTES * others


def _bytes_of_others(messages: list[Tensor], rank: int) -> int:
    return sum(message.nbytes for message in messages) - messages[rank].nbytes


def _counted(rounds: PeerExchanges) -> PeerExchanges:
    """The same rounds, whose result is (result, bytes sent, bytes received)."""
    sent, received, answer = 0, 0, None
    while True:
        try:
            peer_exchange = rounds.send(answer)
        except StopIteration as end:
            return end.value, sent, received
        sent += peer_exchange.sent_bytes
        answer = yield peer_exchange
        received += sum(message.nbytes for message in answer.values())


class ParameterServerTransport(Transport):
    """Answers sums by a parameter server, the last rank.

    A push is a round in which all workers send to the server. A pull is a round in which the server sends to all
    workers. One bucket is pushed and pulled at a time, as in eq. 5 of the paper: the server's link receives every
    worker's push and then sends one answer to each worker.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str = "indices") -> None:
        super().__init__(topology, comm, wire)
        self._workers = range(comm.world_size - topology.servers)
        self._server = comm.world_size - topology.servers

    def start(self, request: Request) -> Pending:
        """Start a worker's push and, directly after it, its pull."""
        if not isinstance(request, Sum):
            kind = type(request).__name__
            raise TypeError(f"a parameter server cannot answer {kind}, only Sum; use topology allgather")
        sparse, message = request.indices is not None, request.values
        if sparse:
            message = self.pack(request.values, request.indices, request.out.numel())
        sent = _message_bytes(message)
        self.count(request.entries, sent, **{"gathered" if sparse else "summed": sent})
        entries = (request.values if request.out is None else request.out).numel()
        push = self.comm.start_round(PeerExchange({self._server: message}, {}, message.dtype, sparse))
        return PushPull(push, self._receive([self._server], sparse and self.topology.owner == "worker", entries))

    def finish(self, request: Sum, pending: "PushPull") -> Tensor:  # type: ignore[override]  # start refuses others
        """The sum. If the server owns the optimizer, it is the bucket's new weights instead."""
        message = pending.wait()[self._server]
        self.received_bytes += _message_bytes(message)
        out = request.values if request.out is None else request.out
        return self.add_up(out, [message]) if message.dtype == torch.int32 else out.copy_(message)

    def collect(self, sparse: bool, entries: int) -> Pending:
        """The workers' messages of the next bucket on the server, {worker: message}, in rank order.

        ``entries``: the size of the bucket, which is the length of a dense message.
        """
        return self._receive(self._workers, sparse, entries)

    def answer(self, message: Tensor) -> Pending:
        """Send the same message from the server to all workers."""
        packed = message.dtype == torch.int32
        return self.comm.start_round(PeerExchange(dict.fromkeys(self._workers, message), {}, message.dtype, packed))

    def _receive(self, peers: Iterable[int], packed: bool, entries: int) -> Pending:
        """Start a round in which this rank only receives: packed messages (int32), or ``entries`` float32 each."""
        receives = dict.fromkeys(peers, None if packed else entries)
        return self.comm.start_round(PeerExchange({}, receives, torch.int32 if packed else torch.float32, packed))


def _message_bytes(message: Tensor) -> int:
    """The bytes of a message to or from a server: only a packed message has a header, since its length varies."""
    return message.nbytes + HEADER_BYTES if message.dtype == torch.int32 else message.nbytes


class PushPull:
    """A push and a pull in flight; the pull brings the answer."""

    def __init__(self, push: Pending, pull: Pending) -> None:
        self._push, self._pull = push, pull

    @property
    def ended_at(self) -> float | None:
        return self._pull.ended_at

    def done(self) -> bool:
        return self._push.done() and self._pull.done()

    def wait(self) -> dict[int, Tensor]:
        self._push.wait()
        return self._pull.wait()


def transport(
    topology: Topology,
    comm: Communicator,
    wire: str = "indices",
    collective: str = "engine",
    streams: Mapping[str, int] = MappingProxyType({}),
) -> Transport:
    """The transport of a topology; the other arguments are fields of ``dlgs_bench.spec.Scheme``."""
    if topology.servers:
        return ParameterServerTransport(topology, comm, wire)
    return CollectiveTransport(topology, comm, wire, collective, streams)
