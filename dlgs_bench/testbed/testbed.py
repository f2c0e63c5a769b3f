"""A testbed: hosts and links on one machine, whose processes use real TCP over links of a known rate.

Every host is a network namespace. A bridge in another namespace, the switch, connects the hosts. A token bucket at both
ends of each link limits its rate. Links may have a latency: by netem, if the kernel has it; otherwise, a program
replaces the bridge (``dlgs_bench.testbed.latency``), which supports some hundred Mb/s.

Namespaces have no name or file. They belong to the process that made the ``Testbed`` and to the processes that it has
started in them, and the kernel removes them when the last of these processes has ended. So several testbeds can exist
at the same time, all with the same addresses. Root can make testbeds. Other users can, if the kernel allows user
namespaces.

Run ``python -m dlgs_bench.testbed.testbed --help`` to see the commands.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dlgs_bench.testbed import latency, namespaces, network
from dlgs_bench.testbed.namespaces import MARK, NUMBERS, start_time

ROOT = Path(__file__).resolve().parents[2]
ROUND_TRIPS = 10  # after which a TCP stream has reached its rate
USAGE = """usage: python -m dlgs_bench.testbed.testbed check|clean

check   make a testbed, and print the rate of one link and the latency of another (the same: dlgs-bench check-testbed)
clean   end the processes of testbeds whose launcher has ended"""


class TestbedError(Exception):
    """A testbed cannot be made or used; the message is one line."""

    __test__ = False  # pytest would collect the class by its name


class Testbed:
    """Hosts 0, 1, ... on links of ``rates_mbit`` (Mb/s, both directions), while the context is open.

    ``latency_ms``: the one-way latency from host to host.
    """

    __test__ = False

    def __init__(self, rates_mbit: list[float], latency_ms: float = 0.0) -> None:
        self.rates_mbit, self.latency_ms = list(rates_mbit), latency_ms
        self._user: list[int] = []  # the user namespace, if one was needed
        self._hosts: list[list[int]] = []
        self._open: list[int] = []
        self._started: list[subprocess.Popen] = []
        self._stopping = threading.Lock()
        self._carrier: subprocess.Popen | None = None  # the program that delays packets, if one is needed

    def __enter__(self) -> "Testbed":
        receiver, sender = socket.socketpair()
        hosts = 2 * len(self.rates_mbit)
        with receiver, sender:
            links = [f"{self.latency_ms / 1e3}", *map(str, self.rates_mbit)]
            _run("network", "build", str(sender.fileno()), *links, pass_fds=[sender.fileno()])
            count, files, _, _ = socket.recv_fds(receiver, 10, 2 + 2 * hosts)
        devices, self._open = files[: int(count)], files[int(count) :]
        self._hosts = [self._open[i : i + 2] for i in range(0, hosts, 2)]
        self._user = self._open[hosts:-1]
        if devices:
            self._carry(devices)
        if devices and max(self.rates_mbit) > latency.MOST_MBIT:
            self.__exit__()
            most = f"links with latency carry up to {latency.MOST_MBIT} Mb/s where the kernel has no netem"
            raise TestbedError(f"{most}, not {max(self.rates_mbit):g}")
        return self

    def _carry(self, devices: list[int]) -> None:
        """Start the program that delays packets. It ends when this process has ended."""
        ends = [f"{network.bytes_s(rate)},{device}" for rate, device in zip(self.rates_mbit, devices, strict=True)]
        call = [sys.executable, latency.__file__, f"{self.latency_ms / 1e3}", *ends]
        self._carrier = self._start(call, devices, os.environ, stdin=subprocess.PIPE)
        for device in devices:
            os.close(device)

    def __exit__(self, *_: object) -> None:
        self.stop()
        for descriptor in self._open:
            os.close(descriptor)

    def shape(self, rates_mbit: list[float]) -> None:
        """Set the rates of the links; processes may use the links at the same time."""
        spaces = [*self._user, *(host[0] for host in self._hosts), self._open[-1]]
        links = ["0" if self._carrier else f"{self.latency_ms / 1e3}", *map(str, rates_mbit)]
        _run("network", "shape", ",".join(map(str, spaces)), *links, pass_fds=spaces)
        if self._carrier:
            self._carrier.stdin.write((" ".join(str(network.bytes_s(rate)) for rate in rates_mbit) + "\n").encode())
            self._carrier.stdin.flush()
        self.rates_mbit = list(rates_mbit)

    @staticmethod
    def address(host: int) -> str:
        return network.address(host)

    def popen(self, host: int, command: list[str], **settings: Any) -> subprocess.Popen:
        """Start ``command`` on ``host``, in a new process group. The kernel kills it when this process ends.

        Call this from the main thread: the kernel also kills it when the thread that started it ends.
        """
        environment = settings.pop("env", os.environ)
        spaces, more = self._user + self._hosts[host], settings.pop("pass_fds", [])
        call = [sys.executable, namespaces.__file__, ",".join(map(str, spaces)), *map(str, command)]
        return self._start(call, [*spaces, *more], environment, **settings)

    def _start(
        self, call: list[str], files: list[int], environment: Mapping[str, str], **settings: Any
    ) -> subprocess.Popen:
        """Start a program with the open files ``files``, and mark it as part of this testbed."""
        owner = os.getpid()
        marked = {**environment, MARK: f"{owner} {start_time(owner)}"}
        process = subprocess.Popen(call, pass_fds=files, env=marked, start_new_session=True, **settings)
        self._started.append(process)
        return process

    def stop(self) -> None:
        """Kill all processes that were started on the hosts, and their process groups."""
        with self._stopping:  # another thread may stop them, too
            while self._started:  # a process group is killed once, since its number may be reused afterwards
                process = self._started.pop()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def measure_mbit(self, sender: int | None = None, receiver: int | None = None) -> float:
        """Mb/s of payload of one TCP stream, by default from the host with the slowest link to the next host."""
        sender, receiver = self._pair(sender, receiver)
        # The first burst passes immediately, and TCP needs some round trips to reach the rate. Both are not measured.
        rate_mbit = min(self.rates_mbit[sender], self.rates_mbit[receiver])
        burst_s = network.burst(rate_mbit) / network.bytes_s(rate_mbit)
        warm_up_s = 0.2 + 2 * burst_s + ROUND_TRIPS * self.latency_ms / 500
        return self._measure("stream", sender, receiver, f"{warm_up_s}")

    def measure_round_trip_ms(self, sender: int | None = None, receiver: int | None = None) -> float:
        """The round-trip time of a small message in ms, by default between the same hosts as in ``measure_mbit``."""
        return self._measure("round_trip", *self._pair(sender, receiver))

    def _pair(self, sender: int | None, receiver: int | None) -> tuple[int, int]:
        hosts = range(len(self._hosts))
        sender = min(hosts, key=lambda host: self.rates_mbit[host]) if sender is None else sender
        return sender, (sender + 1) % len(hosts) if receiver is None else receiver

    def _measure(self, what: str, sender: int, receiver: int, *how: str) -> float:
        spaces = [*self._user, self._hosts[receiver][0], self._hosts[sender][0]]
        arguments = [what, ",".join(map(str, spaces)), self.address(receiver), *how]
        try:
            return float(_run("measure", *arguments, pass_fds=spaces))
        except TestbedError as error:
            raise TestbedError(f"nothing came from host {sender} to {receiver}: {error}") from error


def _run(program: str, *arguments: str, **settings: Any) -> str:
    """The output of a program in this folder; TestbedError with the last line of its errors if it fails."""
    call = [sys.executable, "-m", f"dlgs_bench.testbed.{program}", *arguments]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, **settings)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{program} ended with status {done.returncode}"]
        raise TestbedError(lines[-1])
    return done.stdout


@cache
def why_unavailable(latency_ms: float = 0.0, rate_mbit: float = 1000.0) -> str | None:
    """The reason, in one line, why this process cannot make testbeds with such links; None if it can."""
    try:
        with Testbed([rate_mbit, rate_mbit], latency_ms):
            return None
    except TestbedError as error:
        return str(error)


def clean() -> list[str]:
    """Kill processes in testbeds whose maker is gone; return a description of each killed process.

    Processes of containers stay, because their makers have other numbers there.
    """
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not Path(f"/proc/{process.pid}/ns/pid").samefile(NUMBERS):
                continue
            owner, _, started = process.environ().get(MARK, "").partition(" ")
            if owner and start_time(int(owner)) != started:
                killed.append(f"{process.pid} {' '.join(process.cmdline())}")
                process.kill()
    return killed


def main(arguments: list[str]) -> None:
    match arguments:
        case ["check"]:
            try:
                with Testbed([1000, 1000]) as testbed:
                    print(f"the testbed works: {testbed.measure_mbit():.0f} Mb/s over links of 1000 Mb/s")
                with Testbed([100, 100], 5) as testbed:
                    print(f"links with latency work: {testbed.measure_round_trip_ms():.1f} ms there and back at 5 ms")
            except TestbedError as error:
                sys.exit(f"error: no testbed here: {error}")
        case ["clean"]:
            killed = clean()
            print("\n".join(f"killed {process}" for process in killed) or "nothing to clean")
        case [*_, "-h" | "--help"]:
            print(USAGE)
        case ["check", *others]:
            sys.exit(f"error: {others[0]!r} is not an option of check-testbed; give no option")
        case _:
            sys.exit(USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
