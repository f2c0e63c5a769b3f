"""Rows of tables that several kinds of runs write: the buckets, the entries sent, and a trace of one iteration."""

from collections.abc import Callable
from typing import Any

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.exchange import async_device
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.training.clock import PARTS, Clock


def sent_row(exchange: Exchange, **metadata: Any) -> dict:
    """A row with the columns ``metadata``, and by index of a bucket the number of its entries sent in the last step."""
    return metadata | {str(bucket): n for bucket, n in enumerate(async_device.read(exchange.sent_entries))}


def over_workers(rows: list[dict], comm: Communicator, workers: int) -> list[dict]:
    """The iterations with their parts, bytes and density averaged over the workers.

    Every process calls it with its own rows, in the same order. Workers can send unlike bytes, as with CLT-k. A worker
    that computes faster than another worker waits for it before they can communicate. This part of its communication
    becomes ``waiting_s``: the computing time of the slowest worker minus the computing time of this worker, but at most
    the communication.
    """
    columns = [*(f"{part}_s" for part in (*PARTS, "iteration")), "sent_bytes", "received_bytes", "density"]
    parts = dict(zip(columns, _of_workers(rows, columns, comm, workers).unbind(dim=2), strict=True))
    computing = parts["iteration_s"] - parts["communication_s"]
    waiting = torch.minimum(parts["communication_s"], computing.max(dim=0).values - computing)
    parts |= {"communication_s": parts["communication_s"] - waiting, "waiting_s": waiting}
    means = {column: values.mean(dim=0).tolist() for column, values in parts.items()}
    return [row | {column: means[column][i] for column in means} for i, row in enumerate(rows)]


def joined(rows: list[dict], how: dict[str, Callable], comm: Communicator, workers: int) -> list[dict]:
    """The rows with some columns reduced over the workers: ``how`` maps a column to its reduction.

    Every process calls it with its own rows, in the same order. One worker's times are not enough, since a server
    answers the workers one after the other.
    """
    columns = _of_workers(rows, list(how), comm, workers).unbind(dim=2)
    reduced = {
        name: reduce(values, dim=0).tolist() for (name, reduce), values in zip(how.items(), columns, strict=True)
    }
    return [row | {name: reduced[name][i] for name in how} for i, row in enumerate(rows)]


def _of_workers(rows: list[dict], columns: list[str], comm: Communicator, workers: int) -> torch.Tensor:
    """The columns of every worker's rows, float64, shape (workers, rows, columns). Rows of a server are left out."""
    own = torch.tensor([[row[column] for column in columns] for row in rows], dtype=torch.float64)
    every = torch.zeros(comm.world_size, *own.shape, dtype=torch.float64)
    every[comm.rank] = own
    return comm.allreduce(every.view(-1).to(comm.device)).view_as(every).cpu()[:workers]


def group_rows(variant: str, exchange: Exchange) -> list[dict]:
    """One row per bucket: its layers, from ``start`` to ``stop`` - 1, and its number of entries."""
    return [
        {"variant": variant, "bucket": bucket.index, "start": start, "stop": stop, "entries": bucket.size}
        for (start, stop), bucket in zip(exchange.groups, exchange.buckets, strict=True)
    ]


def trace_rows(variant: str, clock: Clock, exchange: Exchange) -> list[dict]:
    """The last iteration as intervals, in seconds from its start.

    ``row``: "compute" for the parts of the main thread, "communication" for the buckets.
    """
    rows = [{"row": "compute", "name": part, "begin_s": b, "end_s": e} for part, b, e in clock.intervals()]
    for bucket, began, ended in exchange.communications:
        begin_s, end_s = began - clock.started_at, ended - clock.started_at
        rows.append({"row": "communication", "name": f"bucket {bucket}", "begin_s": begin_s, "end_s": end_s})
    return [{"variant": variant} | row for row in rows]
