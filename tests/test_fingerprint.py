"""Reading the code behind runs."""

import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dlgs_bench import fingerprint, plugins

pytestmark = pytest.mark.unit


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
    files = sorted(fingerprint.PACKAGE.rglob("*.py"))[:40] * 10
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(fingerprint.digest.__wrapped__, files))) == 400


def test_what_is_known_of_plug_ins_is_for_all_to_read_and_made_again_where_nobody_can(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "CACHE", tmp_path)
    known = plugins._descriptions()
    described = SimpleNamespace(returncode=0, stdout=json.dumps(known))  # importing every plug-in takes seconds
    monkeypatch.setattr(plugins.subprocess, "run", lambda *_, **__: described)
    assert plugins._descriptions.__wrapped__() == known
    (kept,) = tmp_path.iterdir()
    whole = kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o644 and json.loads(whole) == known
    for half in ("", whole[:100]):
        kept.write_text(half)
        assert plugins._descriptions.__wrapped__() == known and kept.read_text() == whole
