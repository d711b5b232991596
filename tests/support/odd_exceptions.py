"""Valid exceptions that break usual assumptions: read-only attributes, failing notes, no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn


@dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses to set attributes."""

    code: int


class GuardedError(Exception):
    """Refuses to set attributes with an error of its own."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError("immutable")


class NotedError(Exception):
    """Computes its notes on access, which fails."""

    @property
    def __notes__(self) -> NoReturn:
        raise ValueError("no notes")


class MuteError(Exception):
    """Has no text: `str` and `repr` fail."""

    def __str__(self) -> NoReturn:
        raise SystemExit("no words")


class ShadowedError(Exception):
    """Replaces the attributes that Python keeps in an exception."""

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
