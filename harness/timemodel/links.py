"""What a communication puts on a link, and what it would cost on other links: pure functions. No torch.

From costs measured at one rate and one number of workers: bytes on the busiest link take their time at the
link's rate, whatever else the measured cost holds is the processors' and stays. A collective of N
workers makes its steps one after the other, and each step waits for the network once.
"""

from dataclasses import replace

from harness.timemodel.costs import Fit

DENSE, SPARSE = 4.0, 8.0  # bytes an entry: float32, and an int32 index beside it


def link_bytes(topology: str, density: float | None, workers: int) -> float:
    """Bytes on the busiest link, in its busier direction, per entry of a bucket before sparsification.

    ``density``: the part of the entries that is sent, None where the sum is dense. Ring all-reduce and ring
    all-gather; a parameter server's link takes in one push of each worker and gives out as many answers,
    of which a sparse one is at most what all pushed.
    """
    sent = DENSE if density is None else SPARSE * density
    match topology:
        case "allgather":
            return 2 * (workers - 1) / workers * DENSE if density is None else (workers - 1) * sent
        case "ps-weights":
            return workers * max(sent, DENSE)
        case "ps-sparse":
            union = DENSE if density is None else min(DENSE, workers * sent)
            return workers * max(sent, union)
    raise ValueError(f"no links for topology {topology!r}")


def steps(topology: str, density: float | None, workers: int) -> int:
    """How often a collective waits for the network."""
    if topology != "allgather":
        return 2
    return max(1, (workers - 1) * (2 if density is None else 1))


def elsewhere(fit: Fit, topology: str, density: float | None, here: tuple, there: tuple) -> Fit:
    """``fit``, measured ``here``, as it would be ``there``; both (workers, Mbit/s of every link)."""
    (workers, rate), (other_workers, other_rate) = here, there
    on_link, other_on_link = (link_bytes(topology, density, n) * 8e-6 for n in (workers, other_workers))
    processors = max(0.0, fit.beta - on_link / rate)
    waits, other_waits = (steps(topology, density, n) for n in (workers, other_workers))
    longer = fit.once / waits * (other_waits - waits)
    return replace(fit, alpha=fit.alpha + max(0.0, longer), beta=processors + other_on_link / other_rate)
