"""What the ranks of test_world do."""

import os
import signal
import time

import torch


def add(comm, number: float) -> float:
    return comm.allreduce(torch.tensor([number + comm.rank])).item()


def fail_on_rank_1(comm) -> None:
    """Raise on rank 1. The other rank waits for a sum that never comes."""
    if comm.rank == 1:
        raise ArithmeticError("broken on purpose")
    comm.barrier()


def die_on_rank_1(comm) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def sleep_on_rank_1(comm) -> None:
    if comm.rank == 1:
        time.sleep(600)
