"""A world: the ranks of an engine, started once, that call the functions which tests send them.

Functions, arguments and results travel as pickles. So a function must be at the top of a module of this folder, and a
result is a copy. As a program, this file is one rank; its arguments are the engine and the socket of the tests.
"""

import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench.launch import processes
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec

START_S, CALL_S = 180, 180
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
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(self.size)
            server.settimeout(1)
            spec = RunSpec("exchanges", cluster=Cluster(self.engine, self.size))
            program = [sys.executable, __file__, self.engine, str(path)]
            self._process = processes.start(spec, LaunchSettings(), program, self._folder / "log", [])
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


def serve(engine: str, path: str) -> None:
    """Be a rank: call what the tests send, until they close the connection."""
    import torch

    from dlgs_bench import comm as engines

    torch.set_num_threads(1)
    comm = engines.connect(engine, torch.device("cpu"))
    with Client(path) as tests, suppress(EOFError):
        answer = comm.rank
        while True:
            tests.send_bytes(pickle.dumps(answer))
            work, arguments = pickle.loads(tests.recv_bytes())
            answer = called(work, comm, arguments)
    comm.close()


def called(work: Callable, comm, arguments: tuple) -> tuple:
    """The result and no error, or no result and the traceback."""
    try:
        return work(comm, *arguments), ""
    except Exception:
        return None, traceback.format_exc()


if __name__ == "__main__":
    serve(*sys.argv[1:])
