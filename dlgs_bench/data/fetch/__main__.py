"""Download CIFAR-10 into a file, or copy the 100 classes of ImageNet into a folder."""

import signal
import sys
from pathlib import Path

from dlgs_bench.data.fetch import DataError, cifar10, imagenet100

USAGE = """usage: python -m dlgs_bench.data.fetch <CIFAR-10 to write>.npz
       python -m dlgs_bench.data.fetch <folder of ImageNet> <folder of the copy> <threads>"""

signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # an exit, unlike the signal itself, deletes incomplete files
try:
    match sys.argv[1:]:
        case [target]:
            cifar10.fetch(Path(target))
        case [source, target, threads] if threads.isdecimal():
            imagenet100.copy(Path(source), Path(target), int(threads))
        case _:
            sys.exit(USAGE)
except DataError as error:
    sys.exit(f"error: {error}")
except OSError as error:
    sys.exit(f"error: {error.strerror}: {error.filename or sys.argv[1]}")
