"""Creates the hosts and links of a testbed, and changes the rates of links.

python -m dlgs_bench.testbed.network build <socket> <seconds> <Mb/s of every link ...>
python -m dlgs_bench.testbed.network shape <namespaces> <seconds> <Mb/s of every link ...>

These are programs of their own, because a process cannot leave the namespaces that it has entered. ``build`` sends the
namespaces to the socket. If the kernel cannot delay packets, it also sends TUN devices. ``seconds`` is the latency from
host to host. ``shape`` enters the user namespace, if there is one, then the namespace of each host, and then the
namespace of the switch.
"""

import fcntl
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

from dlgs_bench.testbed.namespaces import NEWNET, NEWUTS, current, join, numbers, own_network, unshare

if TYPE_CHECKING:
    from pyroute2 import IPRoute

LINK = "eth0"  # the name of a host's end of its link
MTU = 9000  # with 1500, headers would take 4.4 % of the rate, and the packets would occupy a core
BURST_S = 0.002  # at most, unless links are so slow that two packets take longer
QUEUE_S = 0.1  # packets that would wait longer are dropped
WAITING = 100_000  # the limit of netem's queue in packets, more than the links ever have in flight
DEVICE = "/dev/net/tun"
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN, NO_PACKET_INFORMATION, WITH_HEADER = 0x0001, 0x1000, 0x4000  # flags of TUNSETIFF
CHECKSUMS, LARGE_PACKETS = 1, 2  # flags of TUNSETOFFLOAD: work that the device leaves to the receiver


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def bytes_s(rate_mbit: float) -> int:
    return int(rate_mbit * 1e6 / 8)


def burst(rate_mbit: float) -> int:
    """The burst of a token bucket in bytes, which an idle link carries at once.

    It is 64 KiB, the size of the network stack's largest packets: with a smaller burst, the kernel splits them, which
    takes processor time. Slow links carry less at once, the bytes of ``BURST_S`` or two packets, and fast links more.
    """
    return max(2 * MTU, min(2**16, int(bytes_s(rate_mbit) * BURST_S)), bytes_s(rate_mbit) // 1000)


def build(rates_mbit: list[float], latency_s: float) -> tuple[list[int], list[int]]:
    """Create hosts and links; return their namespaces and their devices, both as open files.

    The namespaces are (net, uts) of each host, the user namespace, if one was needed, and the network of the switch.
    There is one device per host if ``dlgs_bench.testbed.latency`` delays packets, and otherwise none.
    """
    from pyroute2 import IPRoute

    own = own_network()
    with IPRoute() as ip:
        ip.link("add", ifname="bridge", kind="bridge", mtu=MTU)
        ip.link("set", index=_index(ip, "bridge"), state="up")
        by_program = latency_s > 0 and not _has_netem(ip)
    hosts, devices = [], []
    for host, rate_mbit in enumerate(rates_mbit):
        port = _port(host)
        unshare(NEWNET | NEWUTS)
        # The host's name is its address, because Gloo resolves the host name if it is given no interface.
        socket.sethostname(address(host))
        hosts += [current("net"), current("uts")]
        with IPRoute() as ip:
            ip.link("set", index=_index(ip, "lo"), state="up")
            if by_program:
                devices.append(_device())
            else:
                ip.link("add", ifname=LINK, kind="veth", peer={"ifname": port, "net_ns_fd": own[-1], "mtu": MTU})
            ip.link("set", index=_index(ip, LINK), mtu=MTU)
            ip.addr("add", index=_index(ip, LINK), address=address(host), prefixlen=24)
            ip.link("set", index=_index(ip, LINK), state="up")
            _shape(ip, "add", LINK, rate_mbit, 0.0 if by_program else latency_s)
        join(own[-1])
        if not by_program:
            with IPRoute() as ip:
                ip.link("set", index=_index(ip, port), master=_index(ip, "bridge"), state="up")
                _shape(ip, "add", port, rate_mbit)
    return hosts + own, devices


def shape(spaces: list[int], latency_s: float, rates_mbit: list[float]) -> None:
    """Set the rates of the links, in both directions. This does not reach a program that delays packets."""
    from pyroute2 import IPRoute

    for space in spaces[: -len(rates_mbit) - 1]:
        join(space)
    for space, rate_mbit in zip(spaces[-len(rates_mbit) - 1 : -1], rates_mbit, strict=True):
        join(space)
        with IPRoute() as ip:
            _shape(ip, "change", LINK, rate_mbit, latency_s)
    join(spaces[-1])
    with IPRoute() as ip:
        for host, rate_mbit in enumerate(rates_mbit):
            if ip.link_lookup(ifname=_port(host)):
                _shape(ip, "change", _port(host), rate_mbit)


def _port(host: int) -> str:
    """The name of the switch's end of a host's link."""
    return f"port{host}"


def _index(ip: "IPRoute", name: str) -> int:
    return ip.link_lookup(ifname=name)[0]


def _shape(ip: "IPRoute", how: str, name: str, rate_mbit: float, latency_s: float = 0.0) -> None:
    """Limit the rate of what leaves by this interface, after a delay of ``latency_s``; ``how``: "add" or "change"."""
    index, rate, burst_bytes = _index(ip, name), bytes_s(rate_mbit), burst(rate_mbit)
    parent = {"parent": "1:1"} if latency_s else {}
    if latency_s and how == "add":
        ip.tc("add", "netem", index, handle="1:0", delay=latency_s * 1e6, limit=WAITING)
    limit = burst_bytes + int(rate * QUEUE_S)
    ip.tc(how, "tbf", index, handle="10:0", rate=rate, burst=burst_bytes, limit=limit, **parent)


def _has_netem(ip: "IPRoute") -> bool:
    """Whether the kernel has netem, which delays packets; tested on the switch's loopback, which carries none."""
    from pyroute2 import NetlinkError

    try:
        ip.tc("add", "netem", _index(ip, "lo"), handle="1:0", delay=0)
    except NetlinkError:
        return False
    return True


def _device() -> int:
    """A host's interface whose other end is an open file. It does not split large packets or compute checksums."""
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
        asked = struct.pack("16sH22x", LINK.encode(), TUN | NO_PACKET_INFORMATION | WITH_HEADER)
        fcntl.ioctl(device, TUNSETIFF, asked)
        fcntl.ioctl(device, TUNSETOFFLOAD, CHECKSUMS | LARGE_PACKETS)
        return device
    except OSError as error:
        sys.exit(f"links with latency need netem in the kernel, or {DEVICE}: {error.strerror}")


def main(what: str, where: str, latency_s: str, *rates_mbit: str) -> None:
    rates = [float(rate) for rate in rates_mbit]
    if what == "shape":
        shape(numbers(where), float(latency_s), rates)
        return
    try:
        spaces, devices = build(rates, float(latency_s))
    except OSError as error:
        sys.exit(f"the kernel allows no network namespaces: {error.strerror}")
    except Exception as error:
        sys.exit(f"the kernel lacks a part of the network (veth, bridge, tbf): {error!r}")
    socket.send_fds(socket.socket(fileno=int(where)), [b"%d" % len(devices)], devices + spaces)


if __name__ == "__main__":
    main(*sys.argv[1:])
