"""Methods in anybody's training script: ``ddp``, ``fsdp``, ``horovod_hook`` for gradients, ``local_steps`` for weights.

numba stores compiled code next to the package or in the home folder, and raises RuntimeError if neither is writable.
The code is then stored in a temporary folder until the process ends.
"""

import os
import tempfile

import numba


def _probe() -> None:
    """Stands for the functions that this package compiles."""


try:
    numba.njit(_probe, cache=True)
except RuntimeError:
    _folder = tempfile.TemporaryDirectory(prefix="dlgs-bench-numba-", ignore_cleanup_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = _folder.name
    numba.config.reload_config()
