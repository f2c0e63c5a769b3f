"""What a communication would cost on other links: a pure function. No torch.

The bytes on the busiest link take their time at the link's rate. Whatever else the measured cost holds is the
processors' and stays. A collective of N workers makes its steps one after the other, and each step waits for
the network once.
"""

from dataclasses import replace

from harness.timemodel.costs import Fit
from harness.topology import Rounds, Topology, Traffic, ring_rounds


def elsewhere(
    fit: Fit, topology: Topology, traffic: Traffic, here: tuple, there: tuple, sum_rounds: Rounds = ring_rounds
) -> Fit:
    """``fit``, measured ``here``, as it would be ``there``; both (workers, Mbit/s of every link).

    ``traffic``: what one worker hands over for each entry of a bucket. ``sum_rounds``: of its dense sums.
    """
    (workers, rate), (other_workers, other_rate) = here, there
    on_link, other_on_link = (topology.link_bytes(traffic, 1, n) * 8e-6 for n in (workers, other_workers))
    processors = max(0.0, fit.beta - on_link / rate)
    waits, other_waits = (topology.waits(traffic, n, sum_rounds) for n in (workers, other_workers))
    longer = fit.once / waits * (other_waits - waits)
    return replace(fit, alpha=fit.alpha + max(0.0, longer), beta=processors + other_on_link / other_rate)
