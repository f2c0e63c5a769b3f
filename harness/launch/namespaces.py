"""The inside of a testbed: a program for what must happen in namespaces, since who enters them does not come back.

build <socket> <Mbit/s of every link ...>     makes the namespaces and links, and gives them to the socket
enter <namespaces> <command ...>              becomes the command in them
stream <namespaces> <address> <seconds>       says the rate of a TCP stream between two of them

It imports nothing of this project, so that it runs from any folder. Namespaces are given as open files.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

LINK = "eth0"  # what a host calls its end
MTU = 9000  # with 1500, headers would take 4.4 % of the rate, and handling the packets would keep a core busy
QUEUE_S = 0.1  # what waits for longer is dropped
MARK = "TESTBED_OF"  # in the environment of everything that runs in a testbed: its maker
NEWNET, NEWUTS, NEWUSER = 0x40000000, 0x04000000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def bytes_s(rate_mbit: float) -> int:
    return int(rate_mbit * 1e6 / 8)


def burst(rate_mbit: float) -> int:
    """Bytes that may pass at once: a millisecond's, but never less than one of the stack's 64 KiB packets,
    which would be cut up at a core's expense."""
    return max(2**16, bytes_s(rate_mbit) // 1000)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as ``parent``, which started it, is gone."""
    PR_SET_PDEATHSIG = 1
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone already
        os._exit(1)


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unshare(what: int) -> None:
    _check(_libc.unshare(what))


def _join(descriptor: int) -> None:
    _check(_libc.setns(descriptor, 0))


def _space(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def _build(rates_mbit: list[float]) -> list[int]:
    """Make the namespaces; return them: the user's (where needed), the switch's, then (net, uts) per host."""
    from pyroute2 import IPRoute

    spaces = _own_network()
    switch = spaces[-1]
    with IPRoute() as ip:
        ip.link("add", ifname="bridge", kind="bridge", mtu=MTU)
        ip.link("set", index=_index(ip, "bridge"), state="up")
    for host, rate_mbit in enumerate(rates_mbit):
        port = f"port{host}"
        _unshare(NEWNET | NEWUTS)
        # The host is called by its address: Gloo resolves the machine's own name where it is told no interface.
        socket.sethostname(address(host))
        spaces += [_space("net"), _space("uts")]
        with IPRoute() as ip:
            ip.link("set", index=_index(ip, "lo"), state="up")
            peer = {"ifname": port, "net_ns_fd": switch, "mtu": MTU}
            ip.link("add", ifname=LINK, kind="veth", mtu=MTU, peer=peer)
            ip.addr("add", index=_index(ip, LINK), address=address(host), prefixlen=24)
            ip.link("set", index=_index(ip, LINK), state="up")
            _shape(ip, LINK, rate_mbit)
        _join(switch)
        with IPRoute() as ip:
            ip.link("set", index=_index(ip, port), master=_index(ip, "bridge"), state="up")
            _shape(ip, port, rate_mbit)
    return spaces


def _own_network() -> list[int]:
    """Move to a network of this process's own; return the user namespace, where one was needed, and the network's."""
    try:
        _unshare(NEWNET)
        return [_space("net")]
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    _unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _unshare(NEWNET)
    return [_space("user"), _space("net")]


def _index(ip, name: str) -> int:
    return ip.link_lookup(ifname=name)[0]


def _shape(ip, name: str, rate_mbit: float) -> None:
    """Limit what leaves by this interface."""
    rate, most = bytes_s(rate_mbit), burst(rate_mbit)
    ip.tc("add", "tbf", _index(ip, name), rate=rate, burst=most, limit=most + int(rate * QUEUE_S))


def _stream(spaces: list[int], where: str, settle_s: float) -> float:
    """Mbit/s of payload from the last of ``spaces`` to the one before, for half a second after ``settle_s``."""
    for space in spaces[:-1]:
        _join(space)
    server = socket.create_server((where, 0))
    _join(spaces[-1])
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


def _enter(spaces: list[int], command: list[str]) -> None:
    """Become ``command`` in the namespaces."""
    for space in spaces:
        _join(space)
        os.close(space)
    die_with_parent(int(os.environ[MARK].split()[0]))
    os.execvp(command[0], command)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main(what: str, *arguments: str) -> None:
    match what:
        case "build":
            try:
                spaces = _build([float(rate) for rate in arguments[1:]])
            except OSError as error:
                sys.exit(f"the kernel allows no network namespaces: {error.strerror}")
            except Exception as error:
                sys.exit(f"the kernel lacks a part of the network (veth, bridge, tbf): {error!r}")
            socket.send_fds(socket.socket(fileno=int(arguments[0])), [b"."], spaces)
        case "enter":
            _enter(_numbers(arguments[0]), list(arguments[1:]))
        case "stream":
            spaces, where, settle_s = arguments
            print(_stream(_numbers(spaces), where, float(settle_s)), flush=True)
            os._exit(0)  # the sender still sends


if __name__ == "__main__":
    main(*sys.argv[1:])
