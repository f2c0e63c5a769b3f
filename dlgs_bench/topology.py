"""Topologies as values: who adds up what, what travels on the busiest link, who owns the optimizer. No torch.

How requests are answered over a topology is in ``dlgs_bench.exchange.transport``. This is the one place that tells
topologies apart by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

DENSE = 4.0  # bytes of a float32


@dataclass(frozen=True)
class Traffic:
    """Bytes that one worker hands over: to dense sums, to gathers (sparse sums too), to messages between peers."""

    summed: float = 0.0
    gathered: float = 0.0
    messages: float = 0.0

    @property
    def sent(self) -> float:
        return self.summed + self.gathered + self.messages

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.summed + other.summed, self.gathered + other.gathered, self.messages + other.messages)


def ring_rounds(workers: int) -> int:
    """Of an all-reduce among so many in a ring, which every engine's own is taken for."""
    return 2 * (workers - 1)


PeerExchanges = Callable[[int], int]  # of a dense sum, by the number of workers


@dataclass(frozen=True)
class Topology:
    """``servers``: processes that train nothing; they are the last ranks. ``owner``: whose optimizer makes the
    new weights. ``title``: what tables call it.

    This one is collectives among equals: dense sums by all-reduce, sparse sums by all-gather.
    """

    name: str
    title: str
    servers: int = 0
    owner: Literal["worker", "server"] = "worker"

    def answers(self, sum_kind: str | None) -> bool:
        """Whether it can answer a method whose ``Method.one_sum`` is ``sum_kind``."""
        return True

    def serves(self, rank: int, workers: int) -> bool:
        """Whether the process of this rank is a server."""
        return rank >= workers

    def link_bytes(self, traffic: Traffic, entries: float, workers: int) -> float:
        """Bytes that the busiest link carries one after the other for a bucket of ``entries``: the least that an
        all-reduce can send, as a ring and halving-doubling do, and ring all-gather."""
        return (
            2 * (workers - 1) / workers * traffic.summed
            + (workers - 1) * traffic.gathered
            + traffic.messages
        )  # fmt: skip

    def steps(self, traffic: Traffic, workers: int, sum_rounds: PeerExchanges = ring_rounds) -> int:
        """How many messages of an exchange a worker handles one after the other."""
        return max(1, sum_rounds(workers) if traffic.summed else workers - 1)

    def waits(self, traffic: Traffic, workers: int, sum_rounds: PeerExchanges = ring_rounds) -> int:
        """How often an exchange waits for the network: once where messages go to all others at a time, as gathers do
        on torch.distributed; Horovod's go around a ring."""
        return self.steps(traffic, workers, sum_rounds) if traffic.summed else 1


@dataclass(frozen=True)
class ParameterServer(Topology):
    """A server adds up what the workers push; they pull the weights that its optimizer makes of the sum, or the
    sum in the form in which it was pushed."""

    def answers(self, sum_kind: str | None) -> bool:
        return sum_kind is not None

    def link_bytes(self, traffic: Traffic, entries: float, workers: int) -> float:
        """The server's link takes in one push of each worker, then gives out as many answers, one bucket at a time;
        a sparse answer is at most what all pushed."""
        dense = DENSE * entries
        sparse = self.owner == "worker" and not traffic.summed
        answer = min(dense, workers * traffic.sent) if sparse else dense
        return workers * (traffic.sent + answer)

    def steps(self, traffic: Traffic, workers: int, sum_rounds: PeerExchanges = ring_rounds) -> int:
        return 2

    waits = steps


ALL_GATHER = Topology("allgather", "all-gather")
TOPOLOGIES = {
    topology.name: topology
    for topology in (
        ALL_GATHER,
        ParameterServer("ps-weights", "server, weights", servers=1, owner="server"),
        ParameterServer("ps-sparse", "server, sums", servers=1),
    )
}
