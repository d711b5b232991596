"""The order of calls: heights by a walk and by sparse algebra, and how many results are held at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from graphlib import CycleError
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_client.graphs import ordering
from scaler_client.graphs.ordering import depth_first, heights, python_heights
from scaler_client.graphs.planner import plan

Needs = list[list[int]]
MOST = 40
ORDERS = [st.permutations(range(size)) for size in range(MOST + 1)]
SOME = [st.lists(st.sampled_from(range(count)), max_size=4, unique=True) for count in range(1, MOST + 1)]
"""Strategies for some of so many calls, from 1 on; one that is made with each draw is checked with each draw."""


@st.composite
def graphs(draw: st.DrawFn, *, cycles: bool) -> tuple[Needs, list[int]]:
    """What each of some calls needs, in numbers that say nothing of the order; all of them are wanted."""
    size = draw(st.integers(0, MOST))
    number = draw(ORDERS[size])
    needs: Needs = [[] for _ in range(size)]
    for at in range(size):
        others = size if cycles else at
        chosen = draw(SOME[others - 1]) if others else []
        needs[number[at]] = [number[need] for need in chosen]
    return needs, draw(ORDERS[size])


def slow_heights(needs: Sequence[Sequence[int]]) -> list[int]:
    found = [0] * len(needs)
    for _ in needs:
        found = [1 + max((found[need] for need in each), default=-1) for each in needs]
    return found


@settings(deadline=None)
@given(graphs(cycles=False))
def test_a_walk_and_algebra_find_the_same_heights(case: tuple[Needs, list[int]]) -> None:
    algebra = pytest.importorskip("scaler_client.graphs.ordering_graphblas")
    needs, wanted = case
    expected = slow_heights(needs)
    assert python_heights(needs, wanted) == expected
    assert algebra.graphblas_heights(needs) == expected
    order = depth_first(needs, wanted, expected)
    places = {call: place for place, call in enumerate(order)}
    assert sorted(order) == list(range(len(needs)))
    assert all(places[need] < places[call] for call, each in enumerate(needs) for need in each)


@settings(deadline=None)
@given(graphs(cycles=True))
def test_a_walk_and_algebra_find_the_same_graphs_cyclic(case: tuple[Needs, list[int]]) -> None:
    algebra = pytest.importorskip("scaler_client.graphs.ordering_graphblas")
    needs, wanted = case
    found = algebra.graphblas_heights(needs)
    try:
        assert python_heights(needs, wanted) == found
    except CycleError as error:
        cycle = error.args[1]
        assert found is None and cycle[0] == cycle[-1]
        assert all(need in needs[call] for call, need in pairwise(cycle)), "each needs the next one"


@settings(deadline=None)
@given(st.one_of(graphs(cycles=False), graphs(cycles=True)), st.data())
def test_both_ways_plan_the_same(case: tuple[Needs, list[int]], data: st.DataObject) -> None:
    pytest.importorskip("scaler_client.graphs.ordering_graphblas")
    needs, names = case
    graph = {name: (max, *(names[need] for need in needs[at])) for at, name in enumerate(names)}
    keys = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    found: list[object] = []
    for least in (1, sys.maxsize):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ordering, "GRAPHBLAS_CALLS", least)
            try:
                planned = plan(graph, keys)
                found.append((planned.keys, planned.needs, planned.consumers, planned.positions))
            except CycleError as error:
                found.append(error.args)
    assert found[0] == found[1]


def wide(calls: int, width: int) -> Needs:
    """Layers of which each call takes two of the one before."""
    draw = Random(calls)
    layers = [range(first - width, first) for first in range(width, calls, width)]
    return [[] for _ in range(width)] + [draw.sample(layer, 2) for layer in layers for _ in range(width)]


def test_algebra_is_chosen_by_size_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    algebra = pytest.importorskip("scaler_client.graphs.ordering_graphblas")
    calls: list[list[int] | None] = []

    def counted(needs: Needs) -> list[int] | None:
        calls.append(algebraic(needs))
        return calls[-1]

    algebraic: Callable[[Needs], list[int] | None] = algebra.graphblas_heights
    monkeypatch.setattr(algebra, "graphblas_heights", counted)
    monkeypatch.setattr(ordering, "GRAPHBLAS_CALLS", 20_000)
    broad: Needs = wide(40_000, 2_000)
    narrow: Needs = [[], *([call] for call in range(29_999))]
    for needs, found in ((wide(10_000, 2_000), []), (broad, [True]), (narrow, [False])):
        calls.clear()
        assert heights(needs, range(len(needs))) == python_heights(needs, range(len(needs)))
        assert [result is not None for result in calls] == found


def most_held(needs: Sequence[Sequence[int]], wanted: Sequence[int]) -> int:
    """Results that are there at a time, at most, in our order: each from its call on to the last that takes it."""
    order = depth_first(needs, wanted, python_heights(needs, wanted))
    left = [0] * len(needs)
    for call in order:
        for need in needs[call]:
            left[need] += 1
    held = most = 0
    for call in order:
        most = max(most, held + 1)
        held += left[call] > 0
        for need in needs[call]:
            left[need] -= 1
            held -= not left[need]
    return most


def test_a_reduction_holds_few_results() -> None:
    leaves = 1024
    needs: Needs = [[] for _ in range(leaves)] + [[2 * pair, 2 * pair + 1] for pair in range(leaves - 1)]
    assert most_held(needs, [2 * leaves - 2]) == 12, "one of each of ten levels, two leaves, and the sum of them"


def test_layers_hold_few_results() -> None:
    width, calls = 200, 20_000
    pairs: Needs = [[] for _ in range(width)]
    pairs += [[call - width - call % 2, call - width - call % 2 + 1] for call in range(width, calls)]
    assert most_held(pairs, range(calls - width, calls)) <= 5, "two by two, from the first layer to the last"
    mixed: Needs = [*wide(calls, width), list(range(calls - width, calls))]
    assert most_held(mixed, [calls]) < 2 * width, "two layers are what has to be held where all depends on all"


def test_a_shuffle_holds_one_row_of_it() -> None:
    size = 50
    needs: Needs = [[] for _ in range(size)] + [[number // size] for number in range(size * size)]
    needs += [[size + row * size + column for row in range(size)] for column in range(size)]
    assert most_held(needs, range(size + size * size, len(needs))) <= 2 * size + 1


def test_the_longest_chain_is_begun_first() -> None:
    leaves = 100
    needs: Needs = [[] for _ in range(leaves)] + [[]] + [[leaves + i] for i in range(50)]
    needs.append([*range(leaves), len(needs) - 1])
    last = len(needs) - 1
    order = depth_first(needs, [last], python_heights(needs, [last]))
    assert order[:51] == list(range(leaves, last)) and order[51:-1] == list(range(leaves))
