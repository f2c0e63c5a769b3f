"""What a communication would cost on other links, and what it could at best: pure functions. No torch.

The bytes on the busiest link take their time at the link's rate. Whatever else the measured cost holds is the
processors' and stays. A collective of N workers makes its steps one after the other; those of a dense sum each wait
for the network once.

What a calibration measures holds the latency of its links already: in the time of a bucket of hardly any bytes, which
grows with the steps. On Gloo each wait takes a round trip, since a receiver first tells the sender that it is ready.
"""

from dataclasses import dataclass, replace

import numpy as np

from dlgs_bench.timemodel.curves import Curve
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import PeerExchanges, Topology, Traffic, ring_rounds


@dataclass(frozen=True)
class Network:
    """So many workers, each on a link of ``rate_mbit``; from host to host a message takes ``latency_ms`` beside the
    time of its bytes."""

    workers: int
    rate_mbit: float
    latency_ms: float = 0.0

    def waiting_s(self, topology: Topology, traffic: Traffic, sum_rounds: PeerExchanges) -> float:
        """What the latency of the links adds to an exchange: a round trip each time that it waits."""
        return 2e-3 * self.latency_ms * topology.waits(traffic, self.workers, sum_rounds)


def streamed_bound(workers: int, aggregators: int, apart: bool, own: float, anybodys: float) -> float:
    """How many times as fast as a ring OmniReduce can sum, if only the bytes on the busiest full-duplex link count.

    ``own``, ``anybodys``: the part of the blocks that one worker has and that any has. With as many aggregators as
    workers, ``apart``, it is what Fei et al. (SIGCOMM 2021) state: 2 (N - 1) / N by ``anybodys``. Fewer have a busier
    link, as each sends its share to all workers. Beside a worker, an aggregator shares its link, and spares it what
    they have for each other.
    """
    if apart:
        busiest = anybodys * max(1.0, workers / aggregators)
    else:  # results for the others, and blocks for the other aggregators
        busiest = ((workers - 1) * anybodys + (aggregators - 1) * own) / aggregators
    return 2 * (workers - 1) / workers / busiest


def project_costs(
    costs: Costs,
    topology: Topology,
    traffic: Traffic,
    here: Network,
    there: Network,
    sum_rounds: PeerExchanges = ring_rounds,
    other_rounds: PeerExchanges | None = None,
) -> Costs:
    """``costs``, measured ``here``, as they would be ``there``.

    ``traffic``: what one worker hands over for each entry of a bucket. ``sum_rounds``: of its dense sums here, and
    there unless ``other_rounds`` says otherwise. A latency of the costs stays the same part of its turn.
    """
    on_link, other_on_link = (topology.link_bytes(traffic, 1, n.workers) * 8e-6 / n.rate_mbit for n in (here, there))
    places = tuple(zip((here, there), (sum_rounds, other_rounds or sum_rounds), strict=True))
    steps, other_steps = (topology.steps(traffic, n.workers, sums) for n, sums in places)
    waiting_s, other_waiting_s = (n.waiting_s(topology, traffic, sums) for n, sums in places)
    turn, latency = costs.communicate, costs.latency
    smallest_s = turn(0) + latency(0)  # hardly any bytes: it waits for the network, and for little else
    of_a_step_s = max(0.0, smallest_s - waiting_s) / steps
    entries, seconds = np.array(turn.entries), np.array(turn.seconds)
    processors = np.maximum(0.0, seconds - entries * on_link)
    moved = processors + of_a_step_s * max(0, other_steps - steps) + entries * other_on_link
    factor = np.divide(moved, seconds, out=np.ones_like(moved), where=seconds > 0)
    waited = np.maximum(0.0, moved + other_waiting_s - waiting_s)
    return replace(
        costs,
        communicate=Curve(turn.entries, tuple(waited)),
        latency=Curve(latency.entries, tuple(factor * latency.seconds)),
    )
