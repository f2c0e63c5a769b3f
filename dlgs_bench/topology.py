"""Topologies as values: their servers, the traffic of their busiest link, and the owner of the optimizer. No torch.

``dlgs_bench.exchange.transport`` answers requests over a topology. Only this file has the names of topologies.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

FLOAT32_BYTES = 4.0  # bytes of a float32 entry
# How the bytes of gathers and messages on a link grow with the number N of workers; see ``Method.link_growth``.
Growth = Literal["N - 1", "(N - 1) / N", "log2 N"]
GROWTHS: dict[Growth, Callable[[int], float]] = {
    "N - 1": lambda workers: workers - 1,
    "(N - 1) / N": lambda workers: (workers - 1) / workers,
    "log2 N": lambda workers: math.ceil(math.log2(workers)),
}


@dataclass(frozen=True)
class Traffic:
    """Bytes that one worker sends: in dense sums, in gathers (also of sparse sums), and in messages between peers.

    ``sums``: the number of dense sums, which follow each other; 0 counts as 1 if bytes are summed.
    """

    summed: float = 0.0
    gathered: float = 0.0
    messages: float = 0.0
    sums: float = field(default=0.0, compare=False)

    @property
    def sent(self) -> float:
        return self.summed + self.gathered + self.messages

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.summed + other.summed,
            self.gathered + other.gathered,
            self.messages + other.messages,
            self.sums + other.sums,
        )

    def among(self, there: int, here: int, growth: Growth) -> "Traffic":
        """The traffic of the same exchange among ``there`` workers; ``here``: the number that it was counted with."""
        if min(there, here) < 2:
            return self
        on_link = GROWTHS[growth](there) / GROWTHS[growth](here)
        gathered = self.gathered * on_link * (here - 1) / (there - 1)  # ``link_bytes`` counts it N - 1 times
        return replace(self, gathered=gathered, messages=self.messages * on_link)


def ring_rounds(workers: int) -> int:
    """Message rounds of a ring all-reduce. We assume that every engine's all-reduce is a ring."""
    return 2 * (workers - 1)


RoundCount = Callable[[int], int]  # the number of workers -> the number of rounds of a dense sum


@dataclass(frozen=True)
class Topology:
    """A topology. This class is for collectives among equal workers: dense sums by all-reduce, sparse by all-gather.

    ``title``: the name in tables.
    ``servers``: the number of processes that do not train; they are the last ranks.
    ``owner``: the process whose optimizer computes the new weights.
    """

    name: str
    title: str
    servers: int = 0
    owner: Literal["worker", "server"] = "worker"

    def supports(self, sum_kind: str | None) -> bool:
        """Whether the topology supports a method; ``sum_kind``: as in ``Method.sum_kind``."""
        return True

    def serves(self, rank: int, workers: int) -> bool:
        """Whether the process of this rank is a server."""
        return rank >= workers

    def link_bytes(self, traffic: Traffic, entries: float, workers: int) -> float:
        """Bytes that the busiest link carries in one direction for a bucket of ``entries``.

        It assumes the fewest bytes that an all-reduce can send, as a ring and halving-doubling do, and a ring
        all-gather.
        """
        return (
            2 * (workers - 1) / workers * traffic.summed
            + (workers - 1) * traffic.gathered
            + traffic.messages
        )  # fmt: skip

    def steps(self, traffic: Traffic, workers: int, sum_rounds: RoundCount = ring_rounds) -> float:
        """The number of messages that a worker handles one after the other in an exchange."""
        return max(1, max(1, traffic.sums) * sum_rounds(workers) if traffic.summed else workers - 1)

    def waits(self, traffic: Traffic, workers: int, sum_rounds: RoundCount = ring_rounds) -> float:
        """The number of times that an exchange waits for the network's latency.

        It is 1 if messages to all other workers are sent at the same time, as in gathers on torch.distributed. (On
        Horovod, gathers go around a ring.)
        """
        return self.steps(traffic, workers, sum_rounds) if traffic.summed else 1


@dataclass(frozen=True)
class ParameterServer(Topology):
    """A parameter server, which sums what the workers push.

    The workers pull the weights that its optimizer computes from the sum, or the sum in the form in which it was
    pushed.
    """

    def supports(self, sum_kind: str | None) -> bool:
        return sum_kind is not None

    def link_bytes(self, traffic: Traffic, entries: float, workers: int) -> float:
        """Bytes of the server's link for one bucket: one push from each worker, and then one answer to each.

        A sparse answer is at most as large as all pushes together.
        """
        dense = FLOAT32_BYTES * entries
        sparse = self.owner == "worker" and not traffic.summed
        answer = min(dense, workers * traffic.sent) if sparse else dense
        return workers * (traffic.sent + answer)

    def steps(self, traffic: Traffic, workers: int, sum_rounds: RoundCount = ring_rounds) -> float:
        return 2 * max(1, traffic.sums)

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
