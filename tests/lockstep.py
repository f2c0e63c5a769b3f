"""Runs the rounds of all ranks in one process, in lockstep: what a collective computes and sends, without an engine.

It raises an error for what would hang or get lost on a real network, as ``mismatch`` describes it. Tensors on the
device "meta" have lengths but no data; this is enough for the counts and the time of 1,024 ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange, PeerExchanges
from dlgs_bench.comm.local import mismatch


@dataclass
class Outcome:
    """What each rank's coroutine returned, and the messages and bytes that the rank sent.

    ``rounds``, ``time_s``: the number of all rounds, and their time.
    """

    results: list[Any]
    messages: list[int]
    bytes: list[int]
    rounds: int = 0
    time_s: float = 0.0


def run(coroutines: Sequence[PeerExchanges | None], alpha_s: float = 0.0, beta_s: float = 0.0) -> Outcome:
    """Run one coroutine per rank to its end; None stands for a rank that does not take part.

    A rank that sends or receives in a round needs ``alpha_s``, and ``beta_s`` for each byte in its busier direction. A
    round takes as long as its slowest rank. ValueError names the round and the ranks whose messages do not match.
    """
    world = len(coroutines)
    outcome = Outcome([None] * world, [0] * world, [0] * world)
    received_by_rank: list = [None] * world
    while True:
        steps = [_resume(coroutine, answer) for coroutine, answer in zip(coroutines, received_by_rank, strict=True)]
        ended = [rank for rank, step in enumerate(steps) if isinstance(step, StopIteration)]
        if len(ended) == world - coroutines.count(None):
            outcome.results = [getattr(end, "value", None) for end in steps]
            return outcome
        if ended:
            running = next(rank for rank in range(world) if rank not in ended and coroutines[rank] is not None)
            raise ValueError(f"round {outcome.rounds}: rank {ended[0]} has ended, but rank {running} has not")
        rounds = [step for step in steps if isinstance(step, PeerExchange)]
        if complaint := mismatch(rounds):
            raise ValueError(f"round {outcome.rounds}: {complaint}")
        # The messages are cloned, because their senders may overwrite them afterwards.
        received_by_rank = [
            {peer: rounds[peer].sends[rank].clone() for peer in r.receives} for rank, r in enumerate(rounds)
        ]
        _count(rounds, received_by_rank, outcome, alpha_s, beta_s)


def _resume(coroutine: PeerExchanges | None, answer: dict[int, Tensor] | None) -> PeerExchange | StopIteration:
    try:
        return PeerExchange() if coroutine is None else coroutine.send(answer)
    except StopIteration as end:
        return end


def _count(
    rounds: list[PeerExchange],
    received_by_rank: list[dict[int, Tensor]],
    outcome: Outcome,
    alpha_s: float,
    beta_s: float,
) -> None:
    """Add a round's messages, bytes and time to the outcome."""
    slowest_s = 0.0
    for rank, (peer_exchange, received) in enumerate(zip(rounds, received_by_rank, strict=True)):
        sent = peer_exchange.sent_bytes
        outcome.messages[rank] += peer_exchange.sent_messages
        outcome.bytes[rank] += sent
        header = HEADER_BYTES if peer_exchange.headers else 0
        busier = max(sent, sum(t.nbytes + header for t in received.values()))
        if busier:
            slowest_s = max(slowest_s, alpha_s + beta_s * busier)
    outcome.rounds += 1
    outcome.time_s += slowest_s
