"""Starts workers on the hosts of a testbed, one each: what horovodrun and torchrun do through ssh. No torch.

python -m harness.launch.hosts <engine> <Mbit/s of every host's link, with commas> <ms from host to host> <command ...>

Workers' lines come out as horovodrun writes them, [rank]<stdout>:line. If one worker fails, all end.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial

from harness.engines import ENGINES
from harness.launch import links
from harness.launch.namespaces import die_with_parent
from harness.launch.network import LINK
from harness.launch.testbed import Testbed, TestbedError


def run(testbed: Testbed, engine: str, command: list[str]) -> int:
    """Run ``command`` on every host to its end, or until the first failure; return the status."""
    measured = {  # for their run.json
        "TESTBED_MEASURED_MBIT": f"{testbed.measure_mbit():.0f}",
        "TESTBED_ROUND_TRIP_MS": f"{testbed.measure_round_trip_ms():.3g}",
    }
    addresses = [testbed.address(host) for host in range(len(testbed.rates_mbit))]
    workers, readers = [], []
    ours, theirs = socket.socketpair()
    threading.Thread(target=links.obey, args=(testbed, ours), daemon=True).start()
    for rank, own in enumerate(ENGINES[engine].on_hosts(addresses, LINK, partial(_first_line, testbed))):
        worker = testbed.popen(
            rank,
            command,
            env=os.environ | measured | own | {links.ENDS: f"{theirs.fileno()}"},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        workers.append(worker)
        readers.append(threading.Thread(target=_forward, args=(rank, worker), daemon=True))
        readers[-1].start()
    theirs.close()
    ended = [None]
    while None in ended and not any(ended):
        time.sleep(0.1)
        ended = [worker.poll() for worker in workers]
    for rank, status in enumerate(ended):
        if status:
            readers[rank].join(5)  # print all its lines first: the others write more when they are stopped
            print(f"worker {rank} ended with status {status}, the others are stopped", flush=True)
    testbed.stop()
    for reader in readers:
        reader.join(5)
    return int(any(ended))


def _first_line(testbed: Testbed, command: list[str]) -> str:
    """What ``command`` says first; it runs on the first host as long as the testbed does."""
    return testbed.popen(0, command, stdout=subprocess.PIPE, text=True).stdout.readline()


def _forward(rank: int, worker: subprocess.Popen) -> None:
    for line in worker.stdout:
        sys.stdout.write(f"[{rank}]<stdout>:{line.rstrip()}\n")
        sys.stdout.flush()


def main(engine: str, rates_mbit: str, latency_ms: str, *command: str) -> int:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of the testbed's end
    try:
        with Testbed([float(rate) for rate in rates_mbit.split(",")], float(latency_ms)) as testbed:
            return run(testbed, engine, list(command))
    except TestbedError as error:
        sys.exit(f"error: no testbed here: {error}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
