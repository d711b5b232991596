"""How many functions a worker keeps, for how long, and which go first."""

from __future__ import annotations

import contextlib
import os
import pickle
import time

import cloudpickle
import pytest

from scaler_protocol.ids import function_id
from scaler_worker.ipc.frames import FUNCTIONS_LIMIT, Definition, pack_definition, pack_tasks
from scaler_worker.worker.coroutines import run_coroutine
from scaler_worker.worker.function_cache import BYTES_LIMIT, FunctionCache
from scaler_worker.worker.ordered_replies import OrderedReplies
from scaler_worker.worker.runner import Runner

MEBI = 1024 * 1024


def invoker(call: object) -> tuple[int, bytes]:
    raise AssertionError("nothing is run here")


def loaded(call: object) -> tuple[int, bytes]:
    raise AssertionError("nor here")


def kept(functions: FunctionCache) -> list[int]:
    return list(functions.invokers)


def test_the_longest_unused_go_first_by_number_and_by_bytes() -> None:
    functions = FunctionCache(count_limit=3, bytes_limit=100)
    for handle in (1, 2, 3):
        functions.add(handle, invoker, 10, "f")
    functions.use([1, 1])
    functions.add(4, invoker, 10, "f")
    assert kept(functions) == [3, 1, 4]
    functions.replace(1, invoker, 85)
    assert kept(functions) == [4, 1]
    functions.replace(4, invoker, 500)
    assert kept(functions) == [4], "the last one stays"
    functions.add(5, invoker, 1, "f")
    assert kept(functions) == [5]


def test_what_is_kept_is_not_replaced_by_being_told_of_again() -> None:
    functions = FunctionCache()
    functions.add(1, invoker, 10, "f")
    functions.replace(1, loaded, 20)
    functions.add(1, invoker, 10, "f")
    assert functions.use([1])[1] is loaded
    functions.replace(2, invoker, 10)
    assert kept(functions) == [1]


def test_what_nobody_uses_goes_and_takes_its_bytes_along() -> None:
    functions = FunctionCache(bytes_limit=100)
    functions.add(1, invoker, 60, "f")
    assert not functions.forget_unused(), "it has just come"
    functions.add(2, invoker, 20, "f")
    assert functions.forget_unused() and kept(functions) == [2]
    functions.use([2, 3])
    assert not functions.forget_unused()
    functions.add(3, invoker, 70, "f")
    assert kept(functions) == [2, 3]


MARK = 0x12345678
"""A constant of the function that distinct functions are made of."""


def memory_after_distinct_functions(count: int) -> tuple[int, int]:
    """Bytes of this process when a worker has run a fifth of so many functions, and all of them."""
    core = Runner(
        name="w",
        host="vm",
        number=0,
        pid=os.getpid(),
        cells=memoryview(bytearray(24)).cast("Q"),
        replies=OrderedReplies(lambda reply: None),
        capture=lambda send: contextlib.nullcontext(),
        finish=run_coroutine,
        clock=time.monotonic_ns,
        cpu_clock=time.process_time_ns,
        peak_memory=lambda: 0,
    )
    body: bytes = cloudpickle.dumps(eval(f"lambda x: x + {MARK}"))
    mark, call = MARK.to_bytes(4, "little"), pickle.dumps(((1,), {}), 5)
    before = 0
    for number in range(1, count + 1):
        own = body.replace(mark, (number + 1000).to_bytes(4, "little"))
        core.take(pack_definition(Definition(number, function_id(own), "f", own, 0, 0)))
        core.take(pack_tasks(number, [number], [number], [number], [call], [1], [0]))
        if number == count // 5:
            before = resident()
    assert len(core._functions.invokers) == FUNCTIONS_LIMIT
    return before, resident()


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_flat_over_thousands_of_distinct_functions() -> None:
    before, after = memory_after_distinct_functions(20_000)
    assert after - before < 4 * MEBI


@pytest.mark.soak
def test_memory_is_flat_over_a_million_distinct_functions() -> None:
    before, after = memory_after_distinct_functions(1_000_000)
    assert after - before < 4 * MEBI


def test_big_functions_are_bounded_together() -> None:
    functions = FunctionCache()
    for handle in range(60):
        functions.add(handle, invoker, 24, "f")
        functions.replace(handle, invoker, 8 * MEBI)
    assert kept(functions) == list(range(60 - BYTES_LIMIT // (8 * MEBI), 60))
