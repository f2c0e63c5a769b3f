"""The way between a testbed's hosts where the kernel has no netem: a program that hands packets on later.

latency <seconds> <bytes a second>,<device> ...   the link of each host, and its TUN device as an open file

A packet arrives ``seconds`` after it was sent, and no faster than the link of the host that it is for takes it. The
hosts' own token buckets shape what they send. A line of standard input gives the links other rates, in bytes a second.
The program ends when its standard input closes, as it does with the process that started it, however that ended. It
imports nothing of this project, so that it runs from any folder.
Packets are handed on in batches, since every wake-up costs.
"""

import os
import select
import sys
import time
from collections import deque
from contextlib import suppress

MOST_MBIT = 1000  # of a link; above, packets come faster than this program can be sure to hand them on
HEADER = 10  # bytes before each packet: what is left to do to it, such as to cut it into segments
PACKET = HEADER + 2**16
MOST_PAUSE_S = 5e-4  # to gather a batch; a tenth of the latency if that is less
QUEUE_S = 0.1  # as at the other end: what would wait for the link for longer is dropped


class Way:
    """To one host: packets arrive in the order in which they were sent."""

    def __init__(self, latency_s: float, bytes_s: float):
        self._latency_s, self.bytes_s = latency_s, bytes_s
        self._free = 0.0  # from when on the link takes the next packet
        self._packets: deque[tuple[float, bytes]] = deque()

    def send(self, now: float, packet: bytes) -> None:
        there = now + self._latency_s
        arrival = max(there, self._free)
        if arrival - there <= QUEUE_S:
            self._free = arrival + len(packet) / self.bytes_s
            self._packets.append((arrival, packet))

    def next(self) -> float | None:
        """When the next packet arrives."""
        return self._packets[0][0] if self._packets else None

    def arrived(self, now: float) -> list[bytes]:
        """The packets that are there, each of them once."""
        found = []
        while self._packets and self._packets[0][0] <= now:
            found.append(self._packets.popleft()[1])
        return found


def receiver(packet: bytes, hosts: int) -> int | None:
    """The number of the host that an IPv4 packet is for; None if it is for none of them."""
    host = packet[HEADER + 19] - 1 if packet[HEADER] >> 4 == 4 else -1  # the last byte of its address
    return host if 0 <= host < hosts else None


def carry(ways: list[Way], devices: list[int], pause_s: float) -> None:
    """Take packets from the devices and hand them on, until standard input closes."""
    while True:
        wait_s = min((arrival for way in ways if (arrival := way.next())), default=None)
        if wait_s is not None:
            wait_s = max(0.0, wait_s - pause_s - time.monotonic())
        readable, _, _ = select.select([sys.stdin.fileno(), *devices], [], [], wait_s)
        if sys.stdin.fileno() in readable:
            rates = os.read(sys.stdin.fileno(), PACKET).split()
            if not rates:
                return
            for way, rate in zip(ways, rates, strict=True):
                way.bytes_s = float(rate)
        now = time.monotonic()
        time.sleep(pause_s)
        for device in devices:
            for packet in _packets(device):
                host = receiver(packet, len(ways))
                if host is not None:
                    ways[host].send(now, packet)
        now = time.monotonic()
        for way, device in zip(ways, devices, strict=True):
            for packet in way.arrived(now):
                os.write(device, packet)


def _packets(device: int):
    """What waits in a device."""
    with suppress(BlockingIOError):
        while True:
            yield os.read(device, PACKET)


def main(latency_s: str, *links: str) -> None:
    with suppress(PermissionError):  # a link waits for no program, as far as we may say so
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    rates, devices = zip(*(link.split(",") for link in links), strict=True)
    ways = [Way(float(latency_s), float(rate)) for rate in rates]
    carry(ways, [int(device) for device in devices], min(MOST_PAUSE_S, float(latency_s) / 10))


if __name__ == "__main__":
    main(*sys.argv[1:])
