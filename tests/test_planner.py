"""Plans cover all layers in order."""

from hypothesis import given
from hypothesis import strategies as st

from harness.planner import merge_all, merge_up_to, per_layer

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=50)


@given(sizes, st.integers(1, 3000))
def test_every_plan_covers_all_layers_once_and_in_order(sizes, most):
    for plan in (per_layer(sizes), merge_all(sizes), merge_up_to(sizes, most)):
        assert [layer for start, stop in plan for layer in range(start, stop)] == list(range(len(sizes)))


@given(sizes, st.integers(1, 3000))
def test_a_group_holds_at_most_the_limit_and_its_neighbour_would_not_have_fitted(sizes, most):
    plan = merge_up_to(sizes, most)
    for start, stop in plan:
        assert sum(sizes[start:stop]) <= most or stop == start + 1
    for (start, stop), (following, _) in zip(plan, plan[1:], strict=False):
        assert sum(sizes[start:stop]) + sizes[following] > most
