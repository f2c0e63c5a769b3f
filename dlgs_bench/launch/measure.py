"""Measures the links of a testbed, from a process that goes from one host to the other.

python -m dlgs_bench.launch.measure stream <namespaces> <address> <seconds>   says Mbit/s of a TCP stream's payload
python -m dlgs_bench.launch.measure round_trip <namespaces> <address>         says ms for a message there and back

The last of the namespaces is the sender's network, the one before the receiver's, whose address it is.
"""

import os
import socket
import statistics
import sys
import threading
import time

from dlgs_bench.launch.namespaces import join, numbers

SAMPLES = 7  # round trips
MOST_S = 20  # without an answer


def stream(spaces: list[int], where: str, settle_s: float) -> float:
    """Mbit/s for half a second, after ``settle_s``. The sender goes on sending."""
    for space in spaces[:-1]:
        join(space)
    server = socket.create_server((where, 0))
    join(spaces[-1])
    out = socket.create_connection(server.getsockname())
    into, _ = server.accept()

    def send() -> None:
        while True:
            out.sendall(bytes(2**18))

    threading.Thread(target=send, daemon=True).start()
    buffer = bytearray(2**20)
    settled = time.monotonic() + settle_s
    while time.monotonic() < settled:
        into.recv_into(buffer)
    begun, received = time.monotonic(), 0
    while (now := time.monotonic()) < begun + 0.5:
        received += into.recv_into(buffer)
    return received * 8e-6 / (now - begun)


def round_trip(spaces: list[int], where: str) -> float:
    """Milliseconds, the median of ``SAMPLES``. TCP sends again what the machine loses, which a datagram would not."""
    for space in spaces[:-1]:
        join(space)
    server = socket.create_server((where, 0))
    join(spaces[-1])
    here = socket.create_connection(server.getsockname())
    there, _ = server.accept()
    for end in (here, there):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = []
    for _ in range(SAMPLES):
        begun = time.monotonic()
        here.sendall(b".")
        there.sendall(there.recv(1))
        here.recv(1)
        found.append((time.monotonic() - begun) * 1e3)
    return statistics.median(found)


def main(what: str, spaces: str, where: str, *seconds: str) -> None:
    socket.setdefaulttimeout(MOST_S)
    measured = {"stream": stream, "round_trip": round_trip}[what]
    print(measured(numbers(spaces), where, *map(float, seconds)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
