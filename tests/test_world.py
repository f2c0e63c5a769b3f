"""Worlds of ranks: results of every rank, or why there are none; and a world that failed starts again."""

import psutil
import pytest
import world_parts
from support import every_engine
from world import World

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@every_engine
def test_a_rank_that_fails_dies_or_hangs_is_named_and_the_next_call_starts_new_ranks(engine):
    with World(engine, 2) as world:
        assert world.run(world_parts.add, 3.0) == [7.0, 7.0]
        for work, timeout_s, said in (
            (world_parts.fail_on_rank_1, 20, "(?s)rank 1: Traceback.*ArithmeticError: broken on purpose"),
            (world_parts.die_on_rank_1, 20, "rank 1: the process has ended"),
            (world_parts.sleep_on_rank_1, 2, "rank 1: no answer in time"),
        ):
            with pytest.raises(RuntimeError, match=said):
                world.run(work, timeout_s=timeout_s)
        assert world.run(world_parts.add, 4.0) == [9.0, 9.0]
    below = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert not [command for command in below if "world.py" in command]
