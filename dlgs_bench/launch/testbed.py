"""Hosts and links on one machine: processes that talk real TCP over links of a known rate.

Every host is a network namespace; a bridge in one more namespace, the switch, joins them, and a token
bucket at both ends of each link shapes it. Links may have a latency: by netem where the kernel has it; else a program
stands between the hosts in the place of the bridge (``dlgs_bench.launch.latency``), good for some hundred Mbit/s.
Nothing of it has a name or a file: the namespaces belong to the process that made the ``Testbed`` and to those it
started in them, and the kernel removes them with the last of these, however it ended. So testbeds exist side by side
and all use the same addresses. Root may make them, and so may others where the kernel lets them have user namespaces.

python -m dlgs_bench.launch.testbed check   says whether it works here, the rate of a link and the latency of another
python -m dlgs_bench.launch.testbed clean   ends processes in the testbeds of processes that are gone
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil

from dlgs_bench.launch import latency, namespaces, network
from dlgs_bench.launch.namespaces import MARK, born

ROOT = Path(__file__).resolve().parents[2]
ROUND_TRIPS = 10  # after which a TCP stream has reached its rate


class TestbedError(Exception):
    """Why there is no testbed here; the message is one line for a person."""

    __test__ = False  # no test class, whatever pytest thinks of its name


class Testbed:
    """Hosts 0, 1, ... on links of ``rates_mbit`` (Mbit/s, both directions), while the context is open.

    ``latency_ms``: the one-way latency from host to host.
    """

    __test__ = False

    def __init__(self, rates_mbit: list[float], latency_ms: float = 0.0):
        self.rates_mbit, self.latency_ms = list(rates_mbit), latency_ms
        self._user: list[int] = []  # the user namespace, where one was needed
        self._hosts: list[list[int]] = []
        self._open: list[int] = []
        self._started: list[subprocess.Popen] = []
        self._way: subprocess.Popen | None = None  # the program between the hosts, where one is needed

    def __enter__(self) -> "Testbed":
        ours, theirs = socket.socketpair()
        hosts = 2 * len(self.rates_mbit)
        with ours, theirs:
            links = [f"{self.latency_ms / 1e3}", *map(str, self.rates_mbit)]
            _run("network", "build", str(theirs.fileno()), *links, pass_fds=[theirs.fileno()])
            count, found, _, _ = socket.recv_fds(ours, 10, 2 + 2 * hosts)
        devices, self._open = found[: int(count)], found[int(count) :]
        self._hosts = [self._open[i : i + 2] for i in range(0, hosts, 2)]
        self._user = self._open[hosts:-1]
        if devices:
            self._carry(devices)
        if devices and max(self.rates_mbit) > latency.MOST_MBIT:
            self.__exit__()
            most = f"links with latency carry up to {latency.MOST_MBIT} Mbit/s where the kernel has no netem"
            raise TestbedError(f"{most}, not {max(self.rates_mbit):g}")
        return self

    def _carry(self, devices: list[int]) -> None:
        """Leave what the hosts send to a program, which ends with this process, however that ends."""
        ends = [f"{network.bytes_s(rate)},{device}" for rate, device in zip(self.rates_mbit, devices, strict=True)]
        call = [sys.executable, latency.__file__, f"{self.latency_ms / 1e3}", *ends]
        self._way = self._start(call, devices, os.environ, stdin=subprocess.PIPE)
        for device in devices:
            os.close(device)

    def __exit__(self, *_) -> None:
        self.stop()
        for descriptor in self._open:
            os.close(descriptor)

    def shape(self, rates_mbit: list[float]) -> None:
        """Give the links other rates, while processes use them."""
        spaces = [*self._user, *(host[0] for host in self._hosts), self._open[-1]]
        links = ["0" if self._way else f"{self.latency_ms / 1e3}", *map(str, rates_mbit)]
        _run("network", "shape", ",".join(map(str, spaces)), *links, pass_fds=spaces)
        if self._way:
            self._way.stdin.write((" ".join(str(network.bytes_s(rate)) for rate in rates_mbit) + "\n").encode())
            self._way.stdin.flush()
        self.rates_mbit = list(rates_mbit)

    @staticmethod
    def address(host: int) -> str:
        return network.address(host)

    def popen(self, host: int, command: list[str], **settings) -> subprocess.Popen:
        """Start ``command`` on ``host``, as the leader of a group; it dies with this process.

        Call it from the main thread: the kernel takes the end of a thread for that of the process.
        """
        environment = settings.pop("env", os.environ)
        spaces, more = self._user + self._hosts[host], settings.pop("pass_fds", [])
        call = [sys.executable, namespaces.__file__, ",".join(map(str, spaces)), *map(str, command)]
        return self._start(call, [*spaces, *more], environment, **settings)

    def _start(self, call: list[str], files: list[int], environment, **settings) -> subprocess.Popen:
        """Of this project's files, run from any folder; -P: none hides an installed package of the same name."""
        owner = os.getpid()
        marked = environment | {MARK: f"{owner} {born(owner)}"}
        process = subprocess.Popen(call, pass_fds=files, env=marked, start_new_session=True, **settings)
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
        sender, receiver = self._pair(sender, receiver)
        # The first burst passes at once, and TCP takes some round trips to reach the rate: counting begins after them.
        rate_mbit = min(self.rates_mbit[sender], self.rates_mbit[receiver])
        settle_s = 0.2 + 2 * network.burst(rate_mbit) / network.bytes_s(rate_mbit) + ROUND_TRIPS * self.latency_ms / 500
        return self._measure("stream", sender, receiver, f"{settle_s}")

    def measure_round_trip_ms(self, sender: int | None = None, receiver: int | None = None) -> float:
        """Milliseconds for a small message there and back, between the hosts that ``measure_mbit`` takes."""
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


def _run(program: str, *arguments: str, **settings) -> str:
    """What a neighbour of this file says, as a program; TestbedError with the last line of its complaint."""
    call = [sys.executable, "-m", f"dlgs_bench.launch.{program}", *arguments]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, **settings)
    if done.returncode:
        raise TestbedError(done.stderr.strip().splitlines()[-1])
    return done.stdout


@cache
def available(latency_ms: float = 0.0, rate_mbit: float = 1000.0) -> str:
    """Empty if this process can have testbeds with such links, else why not, in one line."""
    try:
        with Testbed([rate_mbit, rate_mbit], latency_ms):
            return ""
    except TestbedError as error:
        return str(error)


def clean() -> list[str]:
    """Kill what still runs in the testbed of a process that is gone; return what was killed, in words."""
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            owner, _, birth = process.environ().get(MARK, "").partition(" ")
            if owner and born(int(owner)) != birth:
                killed.append(f"{process.pid} {' '.join(process.cmdline())}")
                process.kill()
    return killed


def main(arguments: list[str]) -> None:
    match arguments:
        case ["check"]:
            try:
                with Testbed([1000, 1000]) as testbed:
                    print(f"the testbed works: {testbed.measure_mbit():.0f} Mbit/s over links of 1000 Mbit/s")
                with Testbed([100, 100], 5) as testbed:
                    print(f"links with latency work: {testbed.measure_round_trip_ms():.1f} ms there and back at 5 ms")
            except TestbedError as error:
                sys.exit(f"error: no testbed here: {error}")
        case ["clean"]:
            killed = clean()
            print("\n".join(f"killed {process}" for process in killed) or "nothing to clean")
        case _:
            sys.exit("usage: python -m dlgs_bench.launch.testbed check|clean")


if __name__ == "__main__":
    main(sys.argv[1:])
