"""Starts the ranks of an engine on this machine, until all have ended or one has failed. No torch.

python -m dlgs_bench.launch.one_machine <engine> <number of ranks> <command ...>
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import supervise
from dlgs_bench.testbed.namespaces import die_with_parent


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that the kernel gives to no other program while the context is open.

    A server that gets the port can listen on it: this socket does not listen, and both set SO_REUSEADDR.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def main(engine: str, ranks: str, *command: str) -> int:
    die_with_parent(os.getppid())
    with reserved_port() as port, ExitStack() as servers:

        def first_line(program: list[str]) -> str:
            bind_life = partial(die_with_parent, os.getpid())
            server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, preexec_fn=bind_life)
            servers.callback(server.wait)  # its processor time counts as work of the run
            servers.callback(server.kill)
            return server.stdout.readline()

        variables = ENGINES[engine].on_hosts(["127.0.0.1"] * int(ranks), "lo", port, first_line)
        own = [[f"{name}={value}" for name, value in one.items()] for one in variables]
        return supervise.run([["env", *values, *command] for values in own], "rank")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
