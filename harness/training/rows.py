"""Rows that several kinds of runs leave: what was exchanged together, what was sent, how one iteration went."""

from harness.exchange.driver import Exchange
from harness.training.clock import Clock


def sent_row(exchange: Exchange, **about) -> dict:
    """How many entries of each bucket were sent in the last step; column: the bucket's index."""
    return about | {str(bucket): n for bucket, n in enumerate(exchange.sent_entries)}


def group_rows(variant: str, exchange: Exchange) -> list[dict]:
    """Which layers are exchanged together: bucket by bucket (start, stop) and their entries."""
    return [
        {"variant": variant, "bucket": bucket.index, "start": start, "stop": stop, "entries": bucket.size}
        for (start, stop), bucket in zip(exchange.groups, exchange.buckets, strict=True)
    ]


def trace_rows(clock: Clock, exchange: Exchange) -> list[dict]:
    """The last iteration as intervals in seconds from its start: what the main thread did (``compute``),
    and what each bucket's communication took (``communication``)."""
    rows = [{"row": "compute", "name": part, "begin_s": b, "end_s": e} for part, b, e in clock.intervals()]
    for bucket, begun, ended in exchange.communications:
        begin_s, end_s = begun - clock.started_at, ended - clock.started_at
        rows.append({"row": "communication", "name": f"bucket {bucket}", "begin_s": begin_s, "end_s": end_s})
    return rows
