"""The kernel's lock on a file. No torch."""

import errno
import fcntl
from typing import IO


def locked(file: IO | int) -> bool:
    """Try to take the kernel's lock on an open file or file descriptor; return False if another process holds it.

    The lock is released when the file is closed or the process ends. If the file system does not support locks, return
    True, since no other process can be detected.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return True
