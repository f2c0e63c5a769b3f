"""Starts one worker on each host of a testbed, as the engines' launchers do through ssh. No torch.

python -m dlgs_bench.launch.hosts <engine> <Mb/s of every link, with commas> <latency in ms> <command ...>

The workers' output is printed as horovodrun prints it, [rank]<stdout>:line. If one worker fails, all are stopped.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial

from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import supervise
from dlgs_bench.testbed import link_rates
from dlgs_bench.testbed.namespaces import die_with_parent
from dlgs_bench.testbed.network import LINK
from dlgs_bench.testbed.testbed import Testbed, TestbedError

PORT = 29500  # of the first host, where nothing else listens


def run(testbed: Testbed, engine: str, command: list[str]) -> int:
    """Run ``command`` on every host until all have ended or one has failed, and return the status."""
    measured = {  # the workers write these to their run.json
        "TESTBED_MEASURED_MBIT": f"{testbed.measure_mbit():.0f}",
        "TESTBED_ROUND_TRIP_MS": f"{testbed.measure_round_trip_ms():.3g}",
    }
    addresses = [testbed.address(host) for host in range(len(testbed.rates_mbit))]
    workers = []
    server, client = socket.socketpair()
    threading.Thread(target=link_rates.serve, args=(testbed, server), daemon=True).start()
    variables = ENGINES[engine].on_hosts(addresses, LINK, PORT, partial(_first_line, testbed))
    for rank, own in enumerate(variables):
        environment = os.environ | measured | own | {link_rates.SOCKET: f"{client.fileno()}"}
        workers.append(testbed.popen(rank, command, env=environment, pass_fds=[client.fileno()], **supervise.LINES))
    client.close()
    return supervise.wait(workers, "rank", testbed.stop)


def _first_line(testbed: Testbed, command: list[str]) -> str:
    """Start ``command`` on the first host, until the testbed ends, and return its first line of output."""
    return testbed.popen(0, command, stdout=subprocess.PIPE, text=True).stdout.readline()


def main(engine: str, rates_mbit: str, latency_ms: str, *command: str) -> int:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # closes the testbed
    try:
        with Testbed([float(rate) for rate in rates_mbit.split(",")], float(latency_ms)) as testbed:
            return run(testbed, engine, list(command))
    except TestbedError as error:
        sys.exit(f"error: no testbed here: {error}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
