"""Fetches CIFAR-10: python -m harness.data.fetch data/cifar10.npz."""

import sys
from pathlib import Path

from harness.data.fetch.cifar10 import DataError, fetch

if len(sys.argv) != 2:
    sys.exit("usage: python -m harness.data.fetch <file to write>.npz")
try:
    fetch(Path(sys.argv[1]))
except DataError as error:
    sys.exit(f"error: {error}")
except OSError as error:
    sys.exit(f"error: {error.strerror}: {error.filename or sys.argv[1]}")
