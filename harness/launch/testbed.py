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
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil

from harness.launch import namespaces
from harness.launch.namespaces import MARK


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
            call = _inside("build", str(theirs.fileno()), *map(str, self.rates_mbit))
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
        return namespaces.address(host)

    def popen(self, host: int, command: list[str], **settings) -> subprocess.Popen:
        """Start ``command`` on ``host``, as the leader of a group; it dies with this process.

        Call it from the main thread: the kernel takes the end of a thread for that of the process.
        """
        owner = os.getpid()
        environment = settings.pop("env", os.environ) | {MARK: f"{owner} {_birth(owner)}"}
        spaces = self._user + self._hosts[host]
        call = _inside("enter", ",".join(map(str, spaces)), *map(str, command))
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
        settle_s = 0.2 + 2 * namespaces.burst(rate_mbit) / namespaces.bytes_s(rate_mbit)
        spaces = [*self._user, self._hosts[receiver][0], self._hosts[sender][0]]
        call = _inside("stream", ",".join(map(str, spaces)), self.address(receiver), f"{settle_s}")
        done = subprocess.run(call, pass_fds=spaces, capture_output=True, text=True)
        if done.returncode:
            raise TestbedError(f"no stream from host {sender} to {receiver}: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout)


def _inside(*arguments: str) -> list[str]:
    """The program for the namespaces; -P: no neighbour of it may hide an installed package of the same name."""
    return [sys.executable, "-P", namespaces.__file__, *arguments]


@cache
def available() -> str:
    """Empty if this process can have testbeds, else why not, in one line."""
    try:
        with Testbed([1000, 1000]):
            return ""
    except TestbedError as error:
        return str(error)


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


def main(what: str = "") -> None:
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
        case _:
            sys.exit("usage: python -m harness.launch.testbed check|clean")


if __name__ == "__main__":
    main(*sys.argv[1:])
