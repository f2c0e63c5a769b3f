"""How a method's requests are answered over a topology, on a communicator.

What is sparse travels in a format of ``dlgs_bench.exchange.wire``. What counts is what this worker hands to the engine,
bytes (values, indices and counts) and gradient entries, and the bytes that the engine hands it from others: the
sum, or the others' messages. The network may carry more: a ring moves 2 (N - 1) / N times the bytes of an
all-reduce, each way.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, collectives
from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange, PeerExchanges
from dlgs_bench.exchange.method import Gather, Max, Request, Sum
from dlgs_bench.exchange.steps import added_up
from dlgs_bench.exchange.wire import FORMATS
from dlgs_bench.topology import Topology, Traffic

COUNT_BYTES = 8  # an int64 length travels with every gathered tensor


class Transport:
    """``sent_bytes``, ``received_bytes``, ``sent_entries``, ``traffic``: of this worker, since the last ``reset``.

    ``sent_entries`` is a tensor of shape (1,) where only the device knows how many they are: to read it waits for it.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str = "indices"):
        self.topology, self._comm, self._format = topology, comm, FORMATS[wire]
        self.reset()

    def reset(self) -> None:
        self.sent_bytes = self.received_bytes = 0
        self.sent_entries: int | Tensor = 0
        self.traffic = Traffic()

    def start(self, request: Request) -> Pending:
        """Hand a request to the engine."""
        raise NotImplementedError

    def finish(self, request: Request, pending: Pending):
        """The answer; call when ``pending`` is done, or to wait for it."""
        raise NotImplementedError

    def count(self, entries: int | Tensor, sent_bytes: int, **traffic: int) -> None:
        """Note what is handed over: ``traffic`` says as what, ``sent_bytes`` what of it leaves this process."""
        self.sent_entries = self.sent_entries + entries  # another object: what was read before stays as it was
        self.sent_bytes += sent_bytes
        self.traffic += Traffic(**traffic)

    def pack(self, values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The entries of a bucket of ``size`` as one int32 message."""
        return self._format.pack(values, indices, size)

    def add_up(self, out: Tensor, messages: list[Tensor]) -> Tensor:
        """Write the sum of messages, packed (int32) or dense (d,), to ``out``, shape (d,); return it.

        Added in the order given, rank order: the same bits everywhere.
        """
        out.zero_()
        for message in messages:
            if message.dtype == torch.int32:
                self._format.add(out, message)
            else:
                out += message
        return out


class CollectiveTransport(Transport):
    """Collectives among equals: dense sums by all-reduce, the engine's or one of ours, sparse sums by all-gather.

    ``streams``: options of a collective whose streams' counts are known only once they have ended.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str, collective: str, streams: Mapping):
        super().__init__(topology, comm, wire)
        self._ours = None if collective == "engine" else collectives.load(collective, comm.world_size)
        self._streams = None if self._ours is None or collectives.is_plain(self._ours) else streams

    def start(self, request: Request) -> Pending:
        match request:
            case Sum(values, None):
                return self._start_sum(values)
            case Max(values):
                self.count(0, values.nbytes, summed=values.nbytes)
                return self._comm.start_max(values)
            case PeerExchange():
                self.count(request.entries, request.sent_bytes, messages=request.sent_bytes)
                return self._comm.start_round(request)
            case Sum(chosen=None):
                message, entries = self.pack(request.values, request.indices, request.out.numel()), request.entries
            case Sum():
                message = _padded(request)
                self.count(request.entries, message.nbytes, gathered=message.nbytes)
                return self._comm.start_allgather(message, equal=True)
            case Gather(message):
                entries = message.numel() if request.entries is None else request.entries
            case _:
                raise TypeError(f"{request!r} is no request")
        sent = message.nbytes + COUNT_BYTES
        self.count(entries, sent, gathered=sent)
        return self._comm.start_allgather(message)

    def _start_sum(self, values: Tensor) -> Pending:
        if self._ours is None:
            self.count(values.numel(), values.nbytes, summed=values.nbytes)
            return self._comm.start_allreduce(values)
        rank, world = self._comm.rank, self._comm.world_size
        if self._streams is not None:
            streams = self._ours.streams(rank, world, values, **self._streams)
            return self._comm.start_streams([_counted(stream) for stream in streams])
        _, sent = self._ours.cost(rank, world, values.numel())
        sent = sent * values.itemsize // 4  # the cost is of float32
        self.count(values.numel(), sent, summed=values.nbytes)
        return self._comm.start_rounds(self._ours.all_reduce(rank, world, values))

    def finish(self, request: Request, pending: Pending):
        answer = pending.wait()
        match request:
            case Sum(values, None) if self._streams is not None:
                for entries, sent, received in answer:
                    self.count(entries, sent, messages=sent)
                    self.received_bytes += received
                return values
            case Sum(_, None) | Max():
                self.received_bytes += answer.nbytes
                return answer
            case PeerExchange():
                self.received_bytes += sum(message.nbytes for message in answer.values())
                return answer
            case Sum(chosen=Tensor()):
                self.received_bytes += _from_others(answer, self._comm.rank)
                return _sum_of_padded(request, answer)
        self.received_bytes += _from_others(answer, self._comm.rank) + COUNT_BYTES * (len(answer) - 1)
        return self.add_up(request.out, answer) if isinstance(request, Sum) else answer


def _from_others(messages: list[Tensor], rank: int) -> int:
    return sum(message.nbytes for message in messages) - messages[rank].nbytes


def _padded(request: Sum) -> Tensor:
    """A sum's entries as a message of a length that all workers know: how many were chosen, values, indices."""
    return torch.cat([request.chosen.int(), request.values.view(torch.int32), request.indices.int()])


def _sum_of_padded(request: Sum, messages: list[Tensor]) -> Tensor:
    request.chosen.copy_(torch.cat([message[:1] for message in messages]).amax(0, keepdim=True))
    return added_up((message[1:] for message in messages), request.out)


def _counted(rounds: PeerExchanges) -> PeerExchanges:
    """The same rounds; its result is (result, bytes sent, bytes received)."""
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
    """A parameter server, the last rank, between the workers: a push is a round in which all workers send to the
    server, a pull one in which it sends to all of them.

    One bucket is pushed and pulled at a time, as eq. 5 of the paper has it, so that the server's link first takes in
    every worker's push and then gives out as many answers.
    """

    def __init__(self, topology: Topology, comm: Communicator, wire: str = "indices"):
        super().__init__(topology, comm, wire)
        self._workers = range(comm.world_size - topology.servers)
        self._server = comm.world_size - topology.servers

    def start(self, request: Request) -> Pending:
        """A worker's push, and its pull at once behind it."""
        if not isinstance(request, Sum):
            raise TypeError("a parameter server answers sums only")
        sparse, message = request.indices is not None, request.values
        if sparse:
            message = self.pack(request.values, request.indices, request.out.numel())
        sent = _bytes(message)
        self.count(request.entries, sent, **{"gathered" if sparse else "summed": sent})
        entries = (request.values if request.out is None else request.out).numel()
        push = self._comm.start_round(PeerExchange({self._server: message}, {}, message.dtype, sparse))
        return PushPull(push, self._take([self._server], sparse and self.topology.owner == "worker", entries))

    def finish(self, request: Sum, pending: "PushPull") -> Tensor:  # type: ignore[override]  # start refuses others
        """The answer; where the server owns the optimizer it is no gradient, but the bucket's new weights."""
        message = pending.wait()[self._server]
        self.received_bytes += _bytes(message)
        out = request.values if request.out is None else request.out
        return self.add_up(out, [message]) if message.dtype == torch.int32 else out.copy_(message)

    def collect(self, sparse: bool, entries: int) -> Pending:
        """On the server: the messages of the next bucket of so many entries, {worker: message}, in rank order."""
        return self._take(self._workers, sparse, entries)

    def answer(self, message: Tensor) -> Pending:
        """On the server: give all workers the same message."""
        packed = message.dtype == torch.int32
        return self._comm.start_round(PeerExchange(dict.fromkeys(self._workers, message), {}, message.dtype, packed))

    def _take(self, peers, packed: bool, entries: int) -> Pending:
        """This rank's part in a round in which it only receives: packed messages (int32), or so many entries."""
        receives = dict.fromkeys(peers, None if packed else entries)
        return self._comm.start_round(PeerExchange({}, receives, torch.int32 if packed else torch.float32, packed))


def _bytes(message: Tensor) -> int:
    """Of a message to or from a server; a packed one has a header, a dense one's length is known."""
    return message.nbytes + HEADER_BYTES * (message.dtype == torch.int32)


class PushPull:
    """Two communications under way, of which the second brings the answer."""

    def __init__(self, push: Pending, pull: Pending):
        self._push, self._pull = push, pull

    @property
    def ended_at(self) -> float | None:
        return self._pull.ended_at

    def done(self) -> bool:
        return self._push.done() and self._pull.done()

    def wait(self):
        self._push.wait()
        return self._pull.wait()


def transport(
    topology: Topology,
    comm: Communicator,
    wire: str = "indices",
    collective: str = "engine",
    streams: Mapping[str, int] = MappingProxyType({}),
) -> Transport:
    """What answers requests over ``topology``; the other arguments are fields of ``dlgs_bench.spec.Scheme``."""
    if topology.servers:
        return ParameterServerTransport(topology, comm, wire)
    return CollectiveTransport(topology, comm, wire, collective, streams)
