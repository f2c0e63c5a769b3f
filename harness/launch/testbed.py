"""Hosts and links on one machine: processes that talk real TCP over links of a known rate.

Every host is a network namespace; a bridge in one more namespace, the switch, joins them, and a token
bucket at both ends of each link shapes it. Nothing of it has a name or a file: the namespaces belong to
the process that made the ``Testbed`` and to those it started in them, and the kernel removes them with
the last of these, however it ended. So testbeds exist side by side and all use the same addresses.
Root may make them, and so may others where the kernel lets them have user namespaces.

python -m harness.launch.testbed check   says whether it works here, and the rate of a 1000 Mbit/s link
python -m harness.launch.testbed clean   ends processes in the testbeds of processes that are gone
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import psutil

LINK = "eth0"  # what a host calls its end
MTU = 9000  # with 1500, headers would take 4.4 % of the rate, and handling the packets would keep a core busy
QUEUE_S = 0.1  # what waits for longer is dropped
MARK = "TESTBED_OF"  # in the environment of everything that runs in a testbed: its maker
NEWNET, NEWUTS, NEWUSER = 0x40000000, 0x04000000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


class TestbedError(Exception):
    """Why there is no testbed here; the message is one line for a person."""

    __test__ = False  # no test class, whatever pytest thinks of its name


class Testbed:
    """Hosts 0, 1, ... on links of ``rates_mbit`` (Mbit/s, both directions), while the context is open."""

    __test__ = False

    def __init__(self, rates_mbit: list[float]):
        self.rates_mbit = list(rates_mbit)
        self._user: list[int] = []  # the user namespace, where one was needed
        self._hosts: list[list[int]] = []
        self._open: list[int] = []
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> "Testbed":
        ours, theirs = socket.socketpair()
        with ours, theirs:
            call = _self("build", str(theirs.fileno()), *map(str, self.rates_mbit))
            built = subprocess.run(call, pass_fds=[theirs.fileno()], capture_output=True, text=True)
            if built.returncode:
                raise TestbedError(built.stderr.strip().splitlines()[-1])
            count = 2 + 2 * len(self.rates_mbit)
            _, self._open, _, _ = socket.recv_fds(ours, 1, count)
        hosts = self._open[-2 * len(self.rates_mbit) :]
        self._hosts = [hosts[i : i + 2] for i in range(0, len(hosts), 2)]
        self._user = self._open[: -len(hosts) - 1]
        return self

    def __exit__(self, *_) -> None:
        self.stop()
        for descriptor in self._open:
            os.close(descriptor)

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def popen(self, host: int, command: list[str], **settings) -> subprocess.Popen:
        """Start ``command`` on ``host``, as the leader of a group; it dies with this process.

        Call it from the main thread: the kernel takes the end of a thread for that of the process.
        """
        owner = os.getpid()
        environment = settings.pop("env", os.environ) | {MARK: f"{owner} {_birth(owner)}"}
        spaces = self._user + self._hosts[host]
        call = _self("enter", ",".join(map(str, spaces)), *map(str, command))
        process = subprocess.Popen(call, pass_fds=spaces, env=environment, start_new_session=True, **settings)
        self._started.append(process)
        return process

    def stop(self) -> None:
        """Kill everything that was started on the hosts, and what that started."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def measure_mbit(self, sender: int | None = None, receiver: int | None = None) -> float:
        """Mbit/s of payload of one TCP stream; from the host with the slowest link to the next if not said."""
        hosts = range(len(self._hosts))
        sender = min(hosts, key=lambda host: self.rates_mbit[host]) if sender is None else sender
        receiver = (sender + 1) % len(hosts) if receiver is None else receiver
        # The first burst passes at once, which says nothing about the rate: counting begins after it.
        rate_mbit = min(self.rates_mbit[sender], self.rates_mbit[receiver])
        settle_s = 0.2 + 2 * _burst(rate_mbit) / _bytes_s(rate_mbit)
        spaces = [*self._user, self._hosts[receiver][0], self._hosts[sender][0]]
        call = _self("stream", ",".join(map(str, spaces)), self.address(receiver), f"{settle_s}")
        done = subprocess.run(call, pass_fds=spaces, capture_output=True, text=True)
        if done.returncode:
            raise TestbedError(f"no stream from host {sender} to {receiver}: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout)


@cache
def available() -> str:
    """Empty if this process can have testbeds, else why not, in one line."""
    try:
        with Testbed([1000, 1000]):
            return ""
    except TestbedError as error:
        return str(error)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as ``parent``, which started it, is gone."""
    PR_SET_PDEATHSIG = 1
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone already
        os._exit(1)


def clean() -> list[str]:
    """Kill what still runs in the testbed of a process that is gone; return what was killed, in words."""
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            owner, _, birth = process.environ().get(MARK, "").partition(" ")
            if owner and _birth(int(owner)) != birth:
                killed.append(f"{process.pid} {' '.join(process.cmdline())}")
                process.kill()
    return killed


def _birth(pid: int) -> str:
    """When a process started, in the kernel's ticks: tells it from a later one with its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


# What follows runs in processes of its own: whoever enters a user namespace does not come back.


def _self(*arguments: str) -> list[str]:
    """This file as a program; -P: no neighbour of it may hide an installed package of the same name."""
    return [sys.executable, "-P", __file__, *arguments]


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unshare(what: int) -> None:
    _check(_libc.unshare(what))


def _join(descriptor: int) -> None:
    _check(_libc.setns(descriptor, 0))


def _space(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def _bytes_s(rate_mbit: float) -> int:
    return int(rate_mbit * 1e6 / 8)


def _burst(rate_mbit: float) -> int:
    """Bytes that may pass at once: a millisecond's, but never less than one of the stack's 64 KiB packets,
    which would be cut up at a core's expense."""
    return max(2**16, _bytes_s(rate_mbit) // 1000)


def _build(rates_mbit: list[float]) -> list[int]:
    """Make the namespaces; return them: the user's (where needed), the switch's, then (net, uts) per host."""
    from pyroute2 import IPRoute

    def link(ip, name: str) -> int:
        return ip.link_lookup(ifname=name)[0]

    def shape(ip, index: int, rate_mbit: float) -> None:
        rate, burst = _bytes_s(rate_mbit), _burst(rate_mbit)
        ip.tc("add", "tbf", index, rate=rate, burst=burst, limit=burst + int(rate * QUEUE_S))

    spaces = []
    try:
        _unshare(NEWNET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _unshare(NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        spaces.append(_space("user"))
        _unshare(NEWNET)
    switch = _space("net")
    spaces.append(switch)
    with IPRoute() as ip:
        ip.link("add", ifname="bridge", kind="bridge", mtu=MTU)
        ip.link("set", index=link(ip, "bridge"), state="up")
    for host, rate_mbit in enumerate(rates_mbit):
        port, address = f"port{host}", Testbed.address(host)
        _unshare(NEWNET | NEWUTS)
        # The host is called by its address: Gloo resolves the machine's own name where it is told no interface.
        socket.sethostname(address)
        spaces += [_space("net"), _space("uts")]
        with IPRoute() as ip:
            ip.link("set", index=link(ip, "lo"), state="up")
            peer = {"ifname": port, "net_ns_fd": switch, "mtu": MTU}
            ip.link("add", ifname=LINK, kind="veth", mtu=MTU, peer=peer)
            ip.addr("add", index=link(ip, LINK), address=address, prefixlen=24)
            ip.link("set", index=link(ip, LINK), state="up")
            shape(ip, link(ip, LINK), rate_mbit)
        _join(switch)
        with IPRoute() as ip:
            ip.link("set", index=link(ip, port), master=link(ip, "bridge"), state="up")
            shape(ip, link(ip, port), rate_mbit)
    return spaces


def _stream(spaces: list[int], address: str, settle_s: float) -> float:
    """Mbit/s of payload from the last of ``spaces`` to the one before, for half a second after ``settle_s``."""
    for space in spaces[:-1]:
        _join(space)
    server = socket.create_server((address, 0))
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


def main(what: str = "", *arguments: str) -> None:
    match what:
        case "check":
            try:
                with Testbed([1000, 1000]) as testbed:
                    print(f"the testbed works: {testbed.measure_mbit():.0f} Mbit/s over links of 1000 Mbit/s")
            except TestbedError as error:
                sys.exit(f"error: no testbed here: {error}")
        case "clean":
            killed = clean()
            print("\n".join(f"killed {process}" for process in killed) or "nothing to clean")
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
            spaces, address, settle_s = arguments
            print(_stream(_numbers(spaces), address, float(settle_s)), flush=True)
            os._exit(0)  # the sender still sends
        case _:
            sys.exit("usage: python -m harness.launch.testbed check|clean")


if __name__ == "__main__":
    main(*sys.argv[1:])
