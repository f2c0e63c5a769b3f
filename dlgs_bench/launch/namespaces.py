"""Namespaces, and the one way into those of a testbed's host; a file of its own, which runs from any folder.

python namespaces.py <namespaces> <command ...>   becomes the command in them, given as open files
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

MARK = "TESTBED_OF"  # in the environment of everything that runs in a testbed: its maker
NEWNET, NEWUTS, NEWUSER = 0x40000000, 0x04000000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def born(pid: int) -> str:
    """When a process started, in the kernel's ticks since the machine did, or nothing if it is gone: tells it from a
    later one with its number, whatever becomes of the clock."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def unshare(what: int) -> None:
    """Leave namespaces for new ones. OSError if the kernel does not let this process."""
    _check(_libc.unshare(what))


def join(descriptor: int) -> None:
    """Enter a namespace. Who enters a user namespace does not come back."""
    _check(_libc.setns(descriptor, 0))


def current(kind: str) -> int:
    """The namespace of this process, as an open file; ``kind``: "net", "uts" or "user"."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def own_network() -> list[int]:
    """Move to a network of this process's own; return the user namespace, where one was needed, and the network's."""
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
    """Have the kernel kill this process as soon as ``parent``, which started it, is gone."""
    PR_SET_PDEATHSIG = 1
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone already
        os._exit(1)


def numbers(text: str) -> list[int]:
    """Open files as a program's argument names them."""
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
