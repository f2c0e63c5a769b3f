"""The links of a running testbed, made slower or faster: rank 0 asks for it, and who made the testbed does it.

No torch."""

import os
import socket

ENDS = "TESTBED_LINKS"  # in rank 0's environment: the open file through which it asks


def scale(times: float) -> None:
    """Have all links ``times`` as fast as the run asked for; they are when this returns."""
    with socket.socket(fileno=int(os.environ[ENDS])) as end:
        end.sendall(f"{times}".encode())
        if not end.recv(1):
            raise RuntimeError("the testbed could not change its links; more above")


def obey(testbed, end: socket.socket) -> None:
    """Do what rank 0 asks for, if it ever does."""
    with end:
        if asked := end.recv(64):
            testbed.shape([rate * float(asked) for rate in testbed.rates_mbit])
            end.sendall(b".")
