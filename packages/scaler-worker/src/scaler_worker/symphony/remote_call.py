"""The input and the output of the Symphony task that runs a call.

The input is the pickle of `(fn, *args)`, and the output the pickle of `fn(*args)`, as the service expects it. `fn` is
always `run_call`, by value, and its only argument is the pickle of function, arguments and keywords.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import cloudpickle

from scaler_worker.symphony import host_call
from scaler_worker.symphony.host_call import Answer, run_call

PROTOCOL: Final = 5


def _by_value(function: Callable[..., Any]) -> bytes:
    cloudpickle.register_pickle_by_value(host_call)
    try:
        written: bytes = cloudpickle.dumps(function, PROTOCOL)
    finally:
        cloudpickle.unregister_pickle_by_value(host_call)
    return written


class _PickledCode:
    """Represents a function that is pickled already, so that its code is not pickled again for each task."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


_RUN_CALL: Final = _PickledCode(_by_value(run_call))


def task_input(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The input of the Symphony task that runs a call; raises what pickling raises."""
    call = cloudpickle.dumps((function, tuple(args), dict(kwargs)), PROTOCOL)
    return pickle.dumps((_RUN_CALL, call), PROTOCOL)


def read_answer(output: bytes) -> Answer:
    """Read the output of a Symphony task; raises ValueError if the service has not returned what `run_call` did."""
    try:
        return Answer(*pickle.loads(output))
    except Exception as error:
        raise ValueError(f"the service's output is not the pickled result of the function: {error}") from error
