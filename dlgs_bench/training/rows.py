"""Rows that several kinds of runs leave: what was exchanged together, what was sent, how one iteration went."""

from collections.abc import Callable

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.exchange import async_device
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.training.clock import PARTS, Clock


def sent_row(exchange: Exchange, **about) -> dict:
    """How many entries of each bucket were sent in the last step; column: the bucket's index."""
    return about | {str(bucket): n for bucket, n in enumerate(async_device.read(exchange.sent_entries))}


def over_workers(rows: list[dict], comm: Communicator, workers: int) -> list[dict]:
    """Iterations whose parts are means over the workers; every process calls it with its own, in the same order.

    A worker that computes faster than another one waits for it before they can communicate. That part of its
    communication is called ``waiting_s``; it is as long as the slowest computes longer than the worker.
    """
    columns = [f"{part}_s" for part in (*PARTS, "iteration")]
    parts = dict(zip(columns, _of_workers(rows, columns, comm, workers).unbind(dim=2), strict=True))
    computing = parts["iteration_s"] - parts["communication_s"]
    waiting = torch.minimum(parts["communication_s"], computing.max(dim=0).values - computing)
    parts |= {"communication_s": parts["communication_s"] - waiting, "waiting_s": waiting}
    means = {column: values.mean(dim=0).tolist() for column, values in parts.items()}
    return [row | {column: means[column][i] for column in means} for i, row in enumerate(rows)]


def joined(rows: list[dict], how: dict[str, Callable], comm: Communicator, workers: int) -> list[dict]:
    """Rows of which some columns are reduced over the workers, each as ``how`` says; every process calls it with its
    own, in the same order.

    A server answers one worker after the other: what the first has received says little of the last.
    """
    values = _of_workers(rows, list(how), comm, workers).unbind(dim=2)
    reduced = {column: f(own, dim=0).tolist() for (column, f), own in zip(how.items(), values, strict=True)}
    return [row | {column: reduced[column][i] for column in how} for i, row in enumerate(rows)]


def _of_workers(rows: list[dict], columns: list[str], comm: Communicator, workers: int) -> torch.Tensor:
    """The columns of every worker's rows, float64, (workers, rows, columns); a server's are left out."""
    own = torch.tensor([[row[column] for column in columns] for row in rows], dtype=torch.float64)
    every = torch.zeros(comm.world_size, *own.shape, dtype=torch.float64)
    every[comm.rank] = own
    return comm.allreduce(every.view(-1).to(comm.device)).view_as(every).cpu()[:workers]


def group_rows(variant: str, exchange: Exchange) -> list[dict]:
    """Which layers are exchanged together: bucket by bucket (start, stop) and their entries."""
    return [
        {"variant": variant, "bucket": bucket.index, "start": start, "stop": stop, "entries": bucket.size}
        for (start, stop), bucket in zip(exchange.groups, exchange.buckets, strict=True)
    ]


def trace_rows(variant: str, clock: Clock, exchange: Exchange) -> list[dict]:
    """The last iteration as intervals in seconds from its start: what the main thread did (``compute``),
    and what each bucket's communication took (``communication``)."""
    rows = [{"row": "compute", "name": part, "begin_s": b, "end_s": e} for part, b, e in clock.intervals()]
    for bucket, begun, ended in exchange.communications:
        begin_s, end_s = begun - clock.started_at, ended - clock.started_at
        rows.append({"row": "communication", "name": f"bucket {bucket}", "begin_s": begin_s, "end_s": end_s})
    return [{"variant": variant} | row for row in rows]
