"""Creates and enters Linux namespaces. This file imports no other file of this project, so it runs from any folder.

python namespaces.py <namespaces> <command ...>   enters the namespaces, given as open files, and executes the command
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

MARK = "TESTBED_OF"  # an environment variable of all processes in a testbed: the process that made the testbed
NEWNET, NEWUTS, NEWUSER = 0x40000000, 0x04000000, 0x10000000
NUMBERS = Path("/proc/self/ns/pid")  # differs between containers, in which a process id means different processes
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> str:
    """The start time of a process, in kernel ticks since the machine started, or "" if the process is gone.

    A process id may be reused, but the pair of process id and start time is unique, even if the clock is changed.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def unshare(what: int) -> None:
    """Move this process to new namespaces of these kinds. OSError if the kernel does not allow it."""
    _check(_libc.unshare(what))


def join(descriptor: int) -> None:
    """Enter a namespace. A process cannot leave a user namespace again."""
    _check(_libc.setns(descriptor, 0))


def current(kind: str) -> int:
    """The namespace of this process, as an open file; ``kind``: "net", "uts" or "user"."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def own_network() -> list[int]:
    """Move this process to a new network namespace.

    Return the namespaces as open files: the user namespace, if one was needed, and the network namespace.
    """
    try:
        unshare(NEWNET)
        return [current("net")]
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
    unshare(NEWNET)
    return [current("user"), current("net")]


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when ``parent``, which started it, has ended."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        os._exit(1)


def numbers(text: str) -> list[int]:
    """The numbers of open files in an argument such as "3,4"."""
    return [int(number) for number in text.split(",")]


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(spaces: str, *command: str) -> None:
    for space in numbers(spaces):
        join(space)
        os.close(space)
    die_with_parent(int(os.environ[MARK].split()[0]))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
