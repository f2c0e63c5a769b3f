"""Measures the links of a testbed, in one process that enters the namespace of one host and then of the other.

python -m dlgs_bench.testbed.measure stream <namespaces> <address> <seconds>   prints Mb/s of a TCP stream's payload
python -m dlgs_bench.testbed.measure round_trip <namespaces> <address>         prints the round-trip time in ms

The last namespace is the sender's network, and the second to last is the receiver's. The address is the receiver's.
"""

import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

from dlgs_bench.testbed.namespaces import join, numbers

SAMPLES = 7  # round trips
TIMEOUT_S = 20


def connected(spaces: list[int], where: str) -> tuple[socket.socket, socket.socket]:
    """The sender's and the receiver's end of a TCP stream. Afterwards, this process is in the sender's network."""
    for space in spaces[:-1]:
        join(space)
    server = socket.create_server((where, 0))
    join(spaces[-1])
    sender = socket.create_connection(server.getsockname())
    return sender, server.accept()[0]


def stream(spaces: list[int], where: str, warm_up_s: float) -> float:
    """Mb/s during half a second, after a warm-up of ``warm_up_s``."""
    out, into = connected(spaces, where)

    def send() -> None:
        while True:
            out.sendall(bytes(2**18))

    threading.Thread(target=send, daemon=True).start()
    buffer = bytearray(2**20)
    warm_up_end = time.monotonic() + warm_up_s
    while time.monotonic() < warm_up_end:
        into.recv_into(buffer)
    begun, received = time.monotonic(), 0
    while (now := time.monotonic()) < begun + 0.5:
        received += into.recv_into(buffer)
    return received * 8e-6 / (now - begun)


def round_trip(spaces: list[int], where: str) -> float:
    """The round-trip time in ms, the median of ``SAMPLES``. It uses TCP, which retransmits lost packets."""
    sender, receiver = connected(spaces, where)
    for end in (sender, receiver):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times_ms = []
    for _ in range(SAMPLES):
        begun = time.monotonic()
        sender.sendall(b".")
        receiver.sendall(receiver.recv(1))
        sender.recv(1)
        times_ms.append((time.monotonic() - begun) * 1e3)
    return statistics.median(times_ms)


def main(what: str, spaces: str, where: str, *seconds: str) -> None:
    socket.setdefaulttimeout(TIMEOUT_S)
    programs: dict[str, Callable[..., float]] = {"stream": stream, "round_trip": round_trip}
    print(programs[what](numbers(spaces), where, *map(float, seconds)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
