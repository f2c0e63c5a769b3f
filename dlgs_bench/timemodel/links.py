"""Projects the cost of a communication to other links, and computes lower bounds: pure functions. No torch.

The bytes on the busiest link take their time at the link's rate. The rest of the measured cost is attributed to the
processors: the cost of a very small bucket grows with the number of messages, and what larger buckets cost more grows
with the bytes. A collective makes its steps one after the other, and a method that makes several dense
sums for a bucket makes them one after the other, too. Each step of a dense sum waits for the network once.

A measured cost includes the latency of its links: it is in the time of a very small bucket, which grows with the number
of steps. On Gloo each wait takes a round trip, since the receiver first sends a message that it is ready.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, cast

import numpy as np

from dlgs_bench.timemodel.cost_curve import Curve
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import Growth, RoundCount, Topology, Traffic, ring_rounds


@dataclass(frozen=True)
class Network:
    """A number of workers, the rate of each link, and the latency of a message from host to host."""

    workers: int
    rate_mbit: float
    latency_ms: float = 0.0

    def waiting_s(self, topology: Topology, traffic: Traffic, sum_rounds: RoundCount) -> float:
        """The seconds that latency adds to an exchange: a round trip for each wait."""
        return 2e-3 * self.latency_ms * topology.waits(traffic, self.workers, sum_rounds)


def streamed_bound(workers: int, aggregators: int, dedicated: bool, own: float, union: float) -> float:
    """The largest possible speed-up of OmniReduce against a ring, from the bytes on the busiest full-duplex link.

    ``own``: the share of blocks that are not zero on one worker; ``union``: on at least one worker. With N workers and
    N aggregators on ``dedicated`` hosts, the speed-up is 2 (N - 1) / N divided by ``union`` (Fei et al., SIGCOMM 2021).
    Fewer aggregators have busier links, since each sends its share to all workers. An aggregator that is not dedicated
    shares the link of a worker. What the two exchange with each other does not use the link.
    """
    if dedicated:
        busiest = union * max(1.0, workers / aggregators)
    else:  # results for the other workers, and blocks for the other aggregators
        busiest = ((workers - 1) * union + (aggregators - 1) * own) / aggregators
    return 2 * (workers - 1) / workers / busiest


@cache
def longest_wait(workers: int) -> float:
    """How long a communication waits until all other workers have had a core, in means of one worker's wait.

    The waits run at the same time. We assume that they are independent and exponential, so the longest of n of them has
    the mean 1 + 1/2 + ... + 1/n. We assume the same with a server, which waits for all workers.
    """
    return sum(1 / n for n in range(1, max(2, workers)))


class _Terms(NamedTuple):
    """What an exchange takes on a network.

    Bytes of an entry on the busiest link and their seconds, messages in a row, and seconds of waiting.
    """

    link_bytes: float
    link_s: float
    steps: float
    waiting_s: float


def _terms(topology: Topology, traffic: Traffic, network: Network, rounds: RoundCount) -> _Terms:
    link_bytes = topology.link_bytes(traffic, 1, network.workers)
    link_s = link_bytes * 8e-6 / network.rate_mbit
    steps = topology.steps(traffic, network.workers, rounds)
    return _Terms(link_bytes, link_s, steps, network.waiting_s(topology, traffic, rounds))


def project_costs(
    costs: Costs,
    topology: Topology,
    traffic: Traffic,
    here: Network,
    there: Network,
    sum_rounds: RoundCount = ring_rounds,
    other_rounds: RoundCount | None = None,
    growth: Growth = "N - 1",
) -> Costs:
    """The costs measured on the network ``here``, projected to the network ``there``.

    ``traffic``: the bytes that one worker sends for each entry of a bucket. ``sum_rounds``: the rounds of dense sums by
    number of workers; ``other_rounds``: the rounds there, if they differ. ``growth``: as ``Method.link_growth``. Of the
    latency of the costs, each further step adds as much as the smallest bucket has, and the rest grows with the bytes.
    Contention: see ``longest_wait``.
    """
    own = _terms(topology, traffic, here, sum_rounds)
    other_traffic = traffic.among(there.workers, here.workers, growth)
    other = _terms(topology, other_traffic, there, other_rounds or sum_rounds)
    occupied, latency = cast(Curve, costs.communicate), cast(Curve, costs.latency)
    smallest_s = occupied(0) + latency(0)  # a bucket with hardly any bytes mostly waits for the network
    step_s = max(0.0, smallest_s - own.waiting_s) / own.steps
    entries, seconds = np.array(occupied.entries), np.array(occupied.seconds)
    processors = np.maximum(0.0, seconds - entries * own.link_s)
    # A larger bucket that takes less than a smaller one shows the noise of the smaller one, which would be multiplied.
    by_bytes = np.maximum(0.0, np.minimum.accumulate(processors[::-1])[::-1] - processors[0])
    more, more_bytes = other.steps - own.steps, other.link_bytes / own.link_bytes - 1 if own.link_bytes else 0.0
    handled = processors + by_bytes * more_bytes
    processed = np.maximum(handled + step_s * more, step_s * other.steps if more < 0 else 0.0)
    # A link that lets short messages pass at once hides what the processors take, but it is at least the smallest's.
    projected = np.maximum.accumulate(processed + entries * other.link_s)
    factor = np.divide(handled + entries * other.link_s, seconds, out=np.ones_like(projected), where=seconds > 0)
    with_waiting = np.maximum(0.0, projected + other.waiting_s - own.waiting_s)
    return replace(
        costs,
        communicate=Curve(occupied.entries, tuple(with_waiting)),
        latency=Curve(latency.entries, tuple(factor * latency.seconds)),
        contention_s=costs.contention_s * longest_wait(there.workers) / longest_wait(here.workers),
    )
