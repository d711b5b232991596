"""Exceptions that Python raises and catches like any other, and that cannot be handled as most can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets none of its attributes be set."""

    code: int


class GuardedError(Exception):
    """Lets none of its attributes be set, in its own way."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError("immutable")


class NotedError(Exception):
    """Makes its notes when it is asked for them, and fails to."""

    @property
    def __notes__(self) -> NoReturn:
        raise ValueError("no notes")


class MuteError(Exception):
    """Cannot be shown."""

    def __str__(self) -> NoReturn:
        raise SystemExit("no words")


class ShadowedError(Exception):
    """Has attributes of its own in place of those that Python keeps in an exception."""

    __cause__ = __context__ = __traceback__ = property(lambda self: 1 / 0)


ODD: Final[dict[str, Callable[[], Exception]]] = {
    "frozen": lambda: FrozenError(404),
    "guarded": lambda: GuardedError("x"),
    "noted": lambda: NotedError("x"),
    "mute": lambda: MuteError("x"),
    "shadowed": lambda: ShadowedError("x"),
    "syntax": lambda: SyntaxError("bad", ("f.py", 1, 1, 5)),  # type: ignore[arg-type]
}


def fail_oddly(name: str) -> NoReturn:
    """Raise one of them."""
    raise ODD[name]()


async def fail_oddly_later(name: str) -> Any:
    """Raise one of them in an event loop."""
    raise ODD[name]()
