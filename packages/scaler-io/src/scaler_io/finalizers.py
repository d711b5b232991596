"""What is called when an object has been collected.

weakref.finalize takes 340 bytes per object where this takes 200, and its own loop over all of them at exit fails, with
a traceback, if another thread ends one meanwhile.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any


class _Finalizer(weakref.ref[Any]):
    __slots__ = ("arguments", "call")

    call: Callable[..., object]
    arguments: tuple[Any, ...]

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


_FINALIZERS: set[_Finalizer] = set()


def when_collected(value: object, call: Callable[..., object], *arguments: Any) -> None:
    """Run `call`, which must not raise, in any thread once `value` is collected; never while the interpreter ends.

    Unlike in `__del__`, no other weak reference yields the value any more. The arguments are kept alive until then.
    """
    finalizer = _Finalizer(value, _collected)
    finalizer.call, finalizer.arguments = call, arguments
    _FINALIZERS.add(finalizer)


def _collected(finalizer: _Finalizer, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    _FINALIZERS.discard(finalizer)
    if not is_finalizing():
        finalizer.call(*finalizer.arguments)
