"""Reading the code behind runs."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import code


@pytest.fixture
def interrupted():
    """Threads take turns all the time, also while Python makes a tree, in which it collects garbage."""
    before, callback = sys.getswitchinterval(), lambda *_: sum(range(200))
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(callback)
    yield
    gc.callbacks.remove(callback)
    sys.setswitchinterval(before)


def test_threads_may_read_code_at_the_same_time(interrupted):
    files = sorted(code.HARNESS.rglob("*.py"))[:40] * 10
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(code.digest.__wrapped__, files))) == 400
