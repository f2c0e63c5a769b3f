"""How pytest runs the tests: tiers, their order, and the processes. What tests share is in ``support.py``.

The process that distributes the tests runs none, so it does not import ``support``, which takes seconds.
"""

import gc
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from world import RARELY
from xdist.scheduler import LoadFileScheduling

# Tests run at the same time: no launch is repeated because of other work. Read by dlgs_bench/launch/disturbance.py.
os.environ["DLGS_BENCH_MAX_OTHER_WORK"] = "2"

# An example may take as long as a busy machine needs, and so may drawing it: speed lives in bench/.
# What ``measured`` notes of several examples is one list.
unchecked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
for profile, examples in (("quick", 8), ("thorough", 30)):  # `pytest --hypothesis-profile=thorough`
    settings.register_profile(profile, deadline=None, max_examples=examples, suppress_health_check=unchecked)
settings.load_profile("quick")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
gc.disable()  # until the tests begin: nothing that is imported or collected before is garbage
# Tests that a shell started in the background, and all that they start, would ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
TIERS = ("workflow", "root", "engine", "unit")  # the slowest first
SHARE_WORLDS = (
    "test_hook_lifecycle",
    "test_comm",
    "test_engines",
    "test_hooks",
    "test_hook_precision",
    "test_hook_properties",
    "test_hook_scripts",
    "test_hook_states",
    "test_hook_wrappers",
    "test_local_steps_script",
    "test_probe",
    "test_rehearse",
)
# Unit tests of 15 s and more, which begin before the others, so that no process is left with them at the end.
LONG = ("test_config", "test_methods", "test_model_files", "test_report")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") and not find_spec("horovod"):
        raise pytest.UsageError("CI is set, where no test is skipped for want of Horovod, and Horovod is not installed")
    distributes = config.option.dist != "no" and not hasattr(config, "workerinput")
    if not distributes:
        config.pluginmanager.import_plugin("support")


def tier_of(item: pytest.Item) -> str:
    tiers = {mark.name for mark in item.iter_markers()} & set(TIERS)
    if len(tiers) != 1:
        raise pytest.UsageError(f"{item.nodeid}: tiers {sorted(tiers)} are not one of {', '.join(TIERS)}; mark one")
    return tiers.pop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests without a tier or with two; sort the others by how long their process is busy with them.

    All tests that share the ranks of an engine go to one process, so they come first, then the slowest tiers.
    """
    first: dict[Path, int] = {}
    for item in items:
        first[item.path] = min(first.get(item.path, len(TIERS)), TIERS.index(tier_of(item)))

    def order(item: pytest.Item) -> tuple:
        file = item.path.stem
        return file not in SHARE_WORLDS, world_of(item.nodeid), first[item.path], file not in LONG

    items.sort(key=order)


def world_of(nodeid: str) -> str:
    """The engine whose ranks a test calls; "" if it shares none. Tests without ranks are next to those of Gloo."""
    file, _, parameters = nodeid.partition("[")
    if Path(file.partition("::")[0]).stem not in SHARE_WORLDS:
        return ""
    return "horovod" if "horovod" in parameters else "torch_dist"


class ByFile(LoadFileScheduling):
    """All tests of a file go to one process, and so do all tests that share the ranks of an engine."""

    def _split_scope(self, nodeid: str) -> str:
        return world_of(nodeid) or super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByFile:
    config.option.loadscopereorder = False  # files keep the order that they have
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exclude imported objects from garbage collection: each collection would scan them for a good part of a second."""
    gc.freeze()
    gc.set_threshold(*RARELY)
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores, since tests of whole runs often wait; at most eight, for their memory."""
    return min(len(os.sched_getaffinity(0)) + 1, 8)
