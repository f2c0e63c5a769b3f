"""Plans cover all layers in order; the exact planner is as good as trying everything."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from dlgs_bench.buckets import assign_buckets, fill, merge_all, merge_up_to, per_layer, split_evenly
from dlgs_bench.timemodel.planner import TOLERANCE, _pareto, adaptive_ratios, exact, mg_wfbp, omgs, paper, planners
from dlgs_bench.timemodel.timeline import Costs, schedule

pytestmark = pytest.mark.unit

positive = st.floats(0, 10)
SHAPES = {
    "linear": lambda a, b: lambda d: b * d,
    "affine": lambda a, b: lambda d: a + b * d,
    "n log n": lambda a, b: lambda d: a + b * d * np.log2(d + 1),
}


@st.composite
def chains(draw, longest: int):
    sizes = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=longest))
    backward = draw(st.lists(positive, min_size=len(sizes), max_size=len(sizes)))
    shapes = [draw(st.sampled_from(sorted(SHAPES))) for _ in range(3)]
    of_groups = (SHAPES[s](draw(positive), draw(st.floats(0, 0.01))) for s in shapes)
    contention_s = draw(st.one_of(st.just(0.0), positive))
    a, b = draw(st.one_of(st.just((0.0, 0.0)), st.tuples(positive, st.floats(0, 0.01))))
    interference = SHAPES["affine"](a, b)
    return sizes, Costs(draw(positive), backward, *of_groups, contention_s, interference, per_layer=draw(st.booleans()))


def every_plan(layers: int):
    for cuts in itertools.product([False, True], repeat=layers - 1):
        edges = [0, *(i + 1 for i, assign_buckets in enumerate(cuts) if assign_buckets), layers]
        yield list(itertools.pairwise(edges))


@given(chains(longest=30), st.integers(1, 3000))
def test_every_plan_covers_all_layers_once_and_in_order(chain, most):
    sizes, costs = chain
    for planner in planners(most).values():
        plan = planner(sizes, costs)
        assert [layer for start, stop in plan for layer in range(start, stop)] == list(range(len(sizes)))


@given(chains(longest=9))
@examples(3)
def test_exact_equals_brute_force(chain):
    sizes, costs = chain
    best = min(schedule(sizes, costs, plan).iteration_s for plan in every_plan(len(sizes)))
    found = schedule(sizes, costs, exact(sizes, costs)).iteration_s
    assert math.isclose(found, best, rel_tol=TOLERANCE if costs.contention_s else 1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_equals_brute_force_on_twelve_layers(shape):
    numbers = np.random.default_rng(0)
    for _ in range(2):
        sizes = numbers.integers(1, 1000, 12).tolist()
        costs = Costs(1.0, numbers.random(12).tolist(), SHAPES[shape](0.1, 1e-4), SHAPES[shape](0.3, 2e-3))
        best = min(schedule(sizes, costs, plan).iteration_s for plan in every_plan(12))
        assert schedule(sizes, costs, exact(sizes, costs)).iteration_s == pytest.approx(best)


@given(chains(longest=15))
def test_the_papers_planner_is_algorithm_2_written_out(chain):
    sizes, costs = chain
    plan, group = [(layer, layer + 1) for layer in range(len(sizes))], 0
    while group + 1 < len(plan):
        merged = [*plan[:group], (plan[group][0], plan[group + 1][1]), *plan[group + 2 :]]
        if schedule(sizes, costs, merged).iteration_s < schedule(sizes, costs, plan).iteration_s:
            plan = merged
        else:
            group += 1
    assert paper(sizes, costs) == plan


def test_the_papers_planner_merges_only_if_the_iteration_gets_shorter():
    """If selection and communication cost nothing, merging changes nothing. If each message takes 1 s to start, it
    does."""
    sizes, backward = [10, 20, 30], [0.5, 0.5, 0.5]
    assert paper(sizes, Costs(1.0, backward, lambda d: 0.0 * d, lambda d: 0.0 * d)) == [(0, 1), (1, 2), (2, 3)]
    assert len(paper(sizes, Costs(1.0, backward, lambda d: 0.0 * d, lambda d: 1.0 + 0.0 * d))) < 3


@given(chains(longest=20))
def test_no_planner_beats_exact_and_the_papers_never_loses_to_no_merging(chain):
    sizes, costs = chain
    times = {name: schedule(sizes, costs, p(sizes, costs)).iteration_s for name, p in planners(500).items()}
    assert times["exact"] <= min(times.values()) * (1 + (TOLERANCE if costs.contention_s else 1e-9))
    assert times["paper"] <= times["layer"]


@given(chains(longest=20))
def test_the_breakdown_adds_up_and_nothing_overlaps_that_may_not(chain):
    sizes, costs = chain
    for plan in (per_layer(sizes), merge_all(sizes), omgs(sizes, costs)):
        s = schedule(sizes, costs, plan)
        parts = s.forward_s + s.backward_s + s.sparsify_s + s.communication_s
        assert parts == pytest.approx(s.iteration_s)
        computing = [i for pair in zip(s.backward, s.sparsify, strict=True) for i in pair]
        for intervals in (computing, s.communicate):
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(intervals))
        assert all(c[0] >= sparsified[1] for c, sparsified in zip(s.communicate, s.sparsify, strict=True))


def test_the_model_by_hand():
    """Two layers take 2 + 3 in backward, 1 each to sparsify, 4 each to communicate, and 1 in the forward pass."""
    costs = Costs(1, [2, 3], lambda d: 1, lambda d: 4)
    apart = schedule([5, 5], costs, [(0, 1), (1, 2)])
    assert apart.communicate == [(4, 8), (8, 12)] and apart.iteration_s == 12 and apart.communication_s == 4
    merged = schedule([5, 5], costs, [(0, 2)])
    assert merged.communicate == [(7, 11)] and merged.iteration_s == 11
    assert paper([5, 5], costs) == exact([5, 5], costs) == [(0, 2)]


@pytest.mark.parametrize("planner", [mg_wfbp, omgs])
@pytest.mark.parametrize("wait_s, merges", [(4, True), (6, False)])
def test_layers_are_merged_if_waiting_for_the_next_one_costs_less_than_a_start_up(planner, wait_s, merges):
    """There are two layers and no selection. A communication takes 5 to start and 1 per entry."""
    costs = Costs(1, [2, wait_s], lambda d: 0 * d, lambda d: 5 + d)
    assert planner([3, 3], costs) == ([(0, 2)] if merges else [(0, 1), (1, 2)])


@pytest.mark.parametrize("planner", [mg_wfbp, omgs])
@pytest.mark.parametrize("first, plan", [(1, [(0, 1), (1, 2), (2, 3)]), (10, [(0, 1), (1, 3)])])
def test_a_layer_that_waits_for_the_link_anyway_is_merged(planner, first, plan):
    """The third gradient comes 12 after the second. If the first has 10 entries, the second waits 9 of that."""
    assert planner([first, 3, 3], Costs(1, [2, 6, 12], lambda d: 0 * d, lambda d: 5 + d)) == plan


@pytest.mark.parametrize("planner", [mg_wfbp, omgs])
@pytest.mark.parametrize("contention_s, plan", [(0, [(0, 1), (1, 2)]), (3, [(0, 2)])])
def test_a_start_up_includes_the_wait_for_a_core(planner, contention_s, plan):
    """The second gradient comes 6 after the first. A communication takes 5 to start, after the wait for a core."""
    costs = Costs(1, [2, 6], lambda d: 0 * d, lambda d: 5 + d, contention_s=contention_s)
    assert planner([3, 3], costs) == plan


@pytest.mark.parametrize("start_s, ends, plan", [(0, [17, 18], [(0, 1), (1, 2)]), (2, [21, 20], [(0, 2)])])
def test_omgs_counts_the_start_up_of_a_selection_that_merging_saves(start_s, ends, plan):
    """The second gradient comes 6 after the first, and a start-up on the link is 5. Merging saves one selection."""
    costs = Costs(1, [2, 6], lambda d: start_s + 0 * d, lambda d: 5 + d)
    assert [schedule([1, 3], costs, one).iteration_s for one in ([(0, 1), (1, 2)], [(0, 2)])] == ends
    assert omgs([1, 3], costs) == plan


def test_selecting_layer_by_layer_costs_the_same_however_layers_are_merged():
    costs = Costs(1, [2, 3], lambda d: 1 + d, lambda d: 4, per_layer=True)
    for plan in ([(0, 1), (1, 2)], [(0, 2)]):
        assert schedule([5, 7], costs, plan).sparsify_s == 14


def test_adaptive_ratios_hide_communication_where_they_can():
    """Communication takes 1 + d/10 at ratio 0.1, so 1 + d * ratio; selecting takes 1. The next backwards take 12, 2,
    200, 0."""
    costs = Costs(1, [9, 12, 2, 200], lambda d: 1, lambda d: 1 + d / 10)
    assert adaptive_ratios([20, 20, 20, 20], costs, 0.1) == pytest.approx([0.5, 0.1, 1.0, 0.1])


def test_only_the_last_communications_latency_is_waited_for():
    costs = Costs(1, [2, 3], lambda d: 1, lambda d: 4, latency=lambda d: 2 * d)
    times = schedule([5, 5], costs, [(0, 1), (1, 2)])
    assert (times.iteration_s, times.communication_s) == (22, 14) and times.communicate == [(4, 8), (8, 12)]


def test_a_communication_waits_for_a_core_only_while_the_workers_compute():
    """The layers are those above, waiting 3. The first waits from 4 to 7; the second starts at 11, after computing
    ended. A wait of 6 ends at 8."""
    plan = [(0, 1), (1, 2)]
    times = {wait: schedule([5, 5], Costs(1, [2, 3], lambda d: 1, lambda d: 4, contention_s=wait), plan)
             for wait in (3, 6)}  # fmt: skip
    assert times[3].communicate == [(4, 11), (11, 15)] and times[3].communication_s == 7
    assert times[6].communicate == [(4, 12), (12, 16)] and times[6].iteration_s == 16


def test_the_next_message_of_a_group_is_sent_when_a_layer_is_ready():
    """The layers end backward at 3, 9 and 10. The first group's first message takes from 3 to 5; its second one waits
    for the second layer. The last group's messages follow each other, since nothing is computed any more."""
    costs = Costs(1, [2, 6, 1], lambda d: 0 * d, lambda d: 4, requests=2)
    times = schedule([5, 5, 5], costs, [(0, 1), (1, 3)])
    assert times.communicate == [(3, 11), (11, 15)] and times.communication_s == 5


def test_the_exact_search_takes_the_messages_of_a_group_as_one():
    costs = Costs(1, [2, 6, 1, 3], lambda d: 0 * d, lambda d: 0.1 + 0.3 * d)
    assert exact([5] * 4, replace(costs, requests=2)) == exact([5] * 4, costs)


def test_a_communication_takes_from_what_is_computed_behind_it():
    """The layers are those above. It slows the second layer's backward by 0.1 s per entry; the last one slows
    nothing."""
    costs = Costs(1, [2, 3], lambda d: 1, lambda d: 4, interference=lambda d: d / 10)
    apart = schedule([10, 70], costs, [(0, 1), (1, 2)])
    assert apart.backward == [(1, 3), (4, 8)] and apart.communicate == [(4, 8), (9, 13)]
    assert (apart.backward_s, apart.iteration_s) == (6, 13)
    assert schedule([10, 70], costs, [(0, 2)]) == schedule(
        [10, 70], Costs(1, [2, 3], lambda d: 1, lambda d: 4), [(0, 2)]
    )


def test_the_greedy_pass_is_not_optimal():
    """The paper calls Algorithm 2 optimal. On this chain it is not."""
    numbers = np.random.default_rng(3)
    worst = 1.0
    for _ in range(300):
        sizes = numbers.integers(1, 1000, 8).tolist()
        costs = Costs(0.1, numbers.random(8).tolist(), lambda d: 0.01 + 1e-4 * d, lambda d: 1.0 + 1e-3 * d)
        greedy, best = (schedule(sizes, costs, p(sizes, costs)).iteration_s for p in (paper, exact))
        worst = max(worst, greedy / best)
    assert worst > 1.05


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 3000))
def test_a_group_holds_at_most_the_limit_and_its_neighbour_would_not_have_fitted(sizes, most):
    plan = merge_up_to(sizes, most=most)
    for start, stop in plan:
        assert sum(sizes[start:stop]) <= most or stop == start + 1
    for (start, stop), (following, _) in itertools.pairwise(plan):
        assert sum(sizes[start:stop]) + sizes[following] > most


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 3000), st.integers(1, 3000))
def test_the_buckets_of_ddp_are_those_that_torch_assigns(lengths, first, most):
    tensors = [torch.empty(length, dtype=torch.uint8) for length in lengths]
    buckets, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [first, most])
    assert [list(range(start, stop)) for start, stop in fill(lengths, first, most)] == buckets


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 10))
def test_an_even_split_has_as_many_groups_as_asked_and_none_is_much_larger_than_its_share(sizes, parts):
    if parts > len(sizes):
        with pytest.raises(ValueError, match=f"^fragments: {parts} is more than the {len(sizes)} layers of the model"):
            split_evenly(sizes, parts)
        return
    plan = split_evenly(sizes, parts)
    assert len(plan) == parts and [i for start, stop in plan for i in range(start, stop)] == [*range(len(sizes))]
    assert all(0 < sum(sizes[start:stop]) <= sum(sizes) / parts + max(sizes) for start, stop in plan)


@pytest.mark.parametrize(
    "scope, expected",
    [("model", [(0, 3)]), ("layer", [(0, 1), (1, 2), (2, 3)]), ("size", [(0, 1), (1, 3)]), ("plan", [(0, 1), (1, 3)])],
)
def test_a_methods_scope_cuts_the_gradient_and_scopes_plan_and_size_take_the_plan(scope, expected):
    assert assign_buckets([2, 3, 9], "size", "paper", most=5) == [(0, 2), (2, 3)]
    assert assign_buckets([2, 3, 9], scope, "paper", most=5, planned=((0, 1), (1, 3))) == expected


def test_without_a_plan_nothing_is_merged_and_a_plan_for_other_layers_is_refused():
    assert assign_buckets([2, 3], "plan", "layer", most=5) == [(0, 1), (1, 2)]
    with pytest.raises(ValueError, match="the plan covers 4 layers, but the model has 2; compute a new plan"):
        assign_buckets([2, 3], "plan", "paper", most=5, planned=((0, 4),))


def test_planners_that_need_no_costs_need_no_plan():
    assert assign_buckets([2, 3, 9], "plan", "size", most=5) == [(0, 2), (2, 3)]
    with pytest.raises(ValueError, match="planner: paper needs a computed plan; pass one, or use one of: layer, all"):
        assign_buckets([2, 3, 9], "plan", "paper", most=5)


def test_the_exact_planner_keeps_its_fronts_small_on_161_layers(monkeypatch):
    """11 searches with at most 23 plans in a front. Without the fronts, a search would try 2^160 plans."""
    numbers = np.random.default_rng(0)
    sizes = (10 ** numbers.uniform(2, 6.5, 161)).astype(int).tolist()
    linear = (lambda d: 1e-4 + 1e-9 * d, lambda d: 5e-4 + 2e-9 * d)
    costs = Costs(0.1, numbers.random(161) * 3e-3, *linear, contention_s=4e-3)
    lengths = []

    def counted(plans, last):
        front = _pareto(plans, last)
        lengths.append(len(front.start))
        assert lengths[-1] <= 50 and len(lengths) <= 20 * len(sizes)  # at once, since the search would go on for hours
        return front

    monkeypatch.setattr("dlgs_bench.timemodel.planner._pareto", counted)
    exact(sizes, costs)
    assert len(lengths) % len(sizes) == 0 < len(lengths)
