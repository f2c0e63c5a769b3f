"""Changes the rates of a running testbed's links: rank 0 sends a factor to the process that made the testbed.

No torch.
"""

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlgs_bench.testbed.testbed import Testbed

SOCKET = "TESTBED_LINKS"  # an environment variable of rank 0: the number of the socket to that process


def scale(factor: float) -> None:
    """Multiply the current rates of all links by ``factor``, and wait until they have changed."""
    with socket.socket(fileno=os.dup(int(os.environ[SOCKET]))) as client:
        client.sendall(f"{factor}".encode())
        if not client.recv(1):
            raise RuntimeError("the testbed could not change its links; see the error above")


def serve(testbed: "Testbed", server: socket.socket) -> None:
    """Change the links at every call of ``scale``, until the ranks have ended."""
    with server:
        while factor := server.recv(64):
            testbed.shape([rate * float(factor) for rate in testbed.rates_mbit])
            server.sendall(b".")
