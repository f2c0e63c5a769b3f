"""Delays the packets between a testbed's hosts, if the kernel does not have netem.

latency <seconds> <bytes/s>,<device> ...   for each host: the rate of its link, and its TUN device as an open file

A packet that comes alone arrives ``seconds`` after it was sent; within a batch, at most a tenth earlier. Packets do not
arrive faster than the rate of the receiving host's link. Token buckets on the hosts limit what they send. A line on
standard input sets new rates of the links, in bytes/s. The program ends when its standard input closes, that is, when
the process that started it has ended. It imports no other file of this project, so it runs from any folder. Packets are
forwarded in batches, because every wake-up costs time.
"""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

MOST_MBIT = 1000  # the largest rate of a link at which this program can forward all packets in time
HEADER = 10  # bytes before each packet: work that is left to the receiver, such as segmentation
PACKET = HEADER + 2**16
MAX_PAUSE_S = 5e-4  # the largest time to collect a batch; at most a tenth of the latency
QUEUE_S = 0.1  # a packet that would wait longer for the link is dropped, as on the sending host


class Way:
    """The packets in flight to one host. They arrive in the order in which they were sent."""

    def __init__(self, latency_s: float, bytes_s: float) -> None:
        self._latency_s, self.bytes_s = latency_s, bytes_s
        self._free = 0.0  # the time at which the link is free for the next packet
        self._packets: deque[tuple[float, bytes]] = deque()

    def send(self, now: float, packet: bytes) -> None:
        there = now + self._latency_s
        arrival = max(there, self._free)
        if arrival - there <= QUEUE_S:
            self._free = arrival + len(packet) / self.bytes_s
            self._packets.append((arrival, packet))

    def next(self) -> float | None:
        """The time at which the next packet arrives; None if there is none."""
        return self._packets[0][0] if self._packets else None

    def arrived(self, now: float) -> list[bytes]:
        """Remove and return the packets that have arrived."""
        packets = []
        while self._packets and self._packets[0][0] <= now:
            packets.append(self._packets.popleft()[1])
        return packets


def receiver(packet: bytes, hosts: int) -> int | None:
    """The number of the host to which an IPv4 packet is addressed; None for other packets."""
    host = packet[HEADER + 19] - 1 if packet[HEADER] >> 4 == 4 else -1  # the last byte of its address
    return host if 0 <= host < hosts else None


def carry(ways: list[Way], devices: list[int], pause_s: float) -> None:
    """Forward packets between the devices until standard input closes."""
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


def _packets(device: int) -> Iterator[bytes]:
    """The packets that wait in a device."""
    with suppress(BlockingIOError):
        while True:
            yield os.read(device, PACKET)


def main(latency_s: str, *links: str) -> None:
    with suppress(PermissionError):  # real-time priority, if it is allowed: a real link does not wait for programs
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    rates, devices = zip(*(link.split(",") for link in links), strict=True)
    ways = [Way(float(latency_s), float(rate)) for rate in rates]
    carry(ways, [int(device) for device in devices], min(MAX_PAUSE_S, float(latency_s) / 10))


if __name__ == "__main__":
    main(*sys.argv[1:])
