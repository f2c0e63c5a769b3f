"""A world: the ranks of an engine, started once, that call the functions which tests send them.

Functions, arguments and results travel as pickles. So a function must be at the top of a module of this folder, and a
result is a copy. As a program, this file imports torch once and forks the ranks; its arguments are the engine, the
number of ranks and the socket of the tests. The project's launcher starts a new Python for every rank: test_launch and
the tests of whole runs use it.
"""

import gc
import importlib
import multiprocessing
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import processes
from dlgs_bench.launch.one_machine import reserved_port

START_S, CALL_S = 180, 180
RARELY = (50_000, 20, 20)  # thresholds of garbage collection; with Python's it takes a tenth of the time of all tests
GRACE_S = 5  # once a rank has failed, the others may still answer for this long


class World:
    """``size`` processes of ``engine`` on this machine; they start with the first call."""

    def __init__(self, engine: str, size: int):
        self.engine, self.size = engine, size

    def run(self, work: Callable, *arguments, timeout_s: float = CALL_S) -> list:
        """Call ``work(comm, *arguments)`` on every rank and return the results by rank.

        If a rank fails or does not answer in time, stop all of them and raise RuntimeError with their tracebacks; the
        next call starts new ones.
        """
        call = pickle.dumps((work, arguments))
        try:
            for rank in self._ranks:
                with suppress(OSError):  # the process has ended, which ``_results`` says
                    rank.send_bytes(call)
            return self._results(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        """End the processes, if there are any."""
        if "_ranks" in self.__dict__:
            for rank in self.__dict__.pop("_ranks"):
                rank.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
            processes.stop(self._process)
            shutil.rmtree(self._folder)

    @cached_property
    def _ranks(self) -> list[Connection]:
        """A connection to each rank."""
        self._folder = Path(tempfile.mkdtemp())
        path, joined, end = self._folder / "socket", {}, time.monotonic() + START_S
        with socket.socket(socket.AF_UNIX) as server, (self._folder / "log").open("w") as log:
            server.bind(str(path))
            server.listen(self.size)
            server.settimeout(1)
            self._process = subprocess.Popen(
                [sys.executable, __file__, self.engine, str(self.size), str(path)],
                # Horovod's threads poll less often than in timed runs: idle ranks leave the cores to other tests.
                env=os.environ | ENGINES[self.engine].environment(threads=1, timed=False),
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            while len(joined) < self.size:
                with suppress(TimeoutError):
                    rank = Connection(server.accept()[0].detach())
                    joined[pickle.loads(rank.recv_bytes())] = rank
                if self._process.poll() is not None or time.monotonic() > end:
                    processes.stop(self._process)
                    raise RuntimeError(f"{self.engine} did not start {self.size} ranks:\n{self._log()}")
        return [joined[rank] for rank in range(self.size)]

    def _results(self, end: float) -> list:
        waiting = {connection: rank for rank, connection in enumerate(self._ranks)}
        results, errors = {}, {}
        while waiting and (ready := wait(list(waiting), max(0.0, end - time.monotonic()))):
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    results[rank], error = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    error = f"the process has ended:\n{self._log()}"
                if error:
                    errors[rank] = error
                    end = min(end, time.monotonic() + GRACE_S)
        errors |= dict.fromkeys(waiting.values(), "no answer in time\n")
        if errors:
            raise RuntimeError("".join(f"{self.engine}, rank {rank}: {errors[rank]}" for rank in sorted(errors)))
        return [results[rank] for rank in range(self.size)]

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]


def main(engine: str, size: int, path: str) -> None:
    """Fork the ranks, and wait until all have ended or one has failed."""
    gc.disable()  # nothing that is imported is garbage
    # What most ranks would import otherwise: torch imports _dynamo with the first optimizer.
    for module in ("torch._dynamo", "dlgs_bench.exchange.driver"):
        importlib.import_module(module)
    communicator = importlib.import_module(f"dlgs_bench.comm.{engine}_engine")
    if engine == "horovod":
        communicator.POLL_INTERVAL_S = 1e-3  # ranks that wait leave the cores to other tests
    fork = multiprocessing.get_context("fork")
    with reserved_port() as port, ExitStack() as servers:

        def first_line(command: list[str]) -> str:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            servers.callback(server.kill)
            return server.stdout.readline()

        variables = ENGINES[engine].on_hosts(["127.0.0.1"] * size, "lo", port, first_line)
        ranks = [fork.Process(target=serve, args=(engine, path, own)) for own in variables]
        gc.freeze()  # the ranks do not examine what was imported
        gc.set_threshold(*RARELY)
        gc.enable()
        for rank in ranks:
            rank.start()
        while running := [rank for rank in ranks if rank.is_alive()]:
            wait([rank.sentinel for rank in running])
            if any(rank.exitcode for rank in ranks):
                for rank in running:
                    rank.kill()


def serve(engine: str, path: str, own: dict[str, str]) -> None:
    """Be a rank, whose environment variables are ``own``: call what the tests send, until they close the connection."""
    import torch

    from dlgs_bench.comm import connect

    os.environ.update(own)
    torch.set_num_threads(1)
    comm = connect(engine, torch.device("cpu"))
    with Client(path) as tests, suppress(EOFError):
        answer = comm.rank
        while True:
            tests.send_bytes(pickle.dumps(answer))
            work, arguments = pickle.loads(tests.recv_bytes())
            torch.manual_seed(comm.rank)  # whatever ran before; and ranks draw different weights
            answer = called(work, comm, arguments)
    comm.close()


def called(work: Callable, comm, arguments: tuple) -> tuple:
    """The result and no error, or no result and the traceback."""
    try:
        return work(comm, *arguments), ""
    except Exception:
        return None, traceback.format_exc()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
