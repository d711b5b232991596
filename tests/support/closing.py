"""A context that checks at its end what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="CheckedClosing")


class CheckedClosing(ABC):
    """Calls `close` at the end; if that asserts after an error in the context, the error says so, and is raised."""

    @abstractmethod
    def close(self) -> None:
        """End everything, and assert that nothing is left."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except AssertionError as problem:
            if error is None:
                raise
            error.args = (f"{error}; and then: {problem}",)
