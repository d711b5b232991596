from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

def install(
    *exc_classes_or_instances: BaseException | type[BaseException],
    get_locals: Callable[[FrameType], dict[str, Any]] | None = None,
) -> Any: ...
def pickle_traceback(
    tb: TracebackType, *, get_locals: Callable[[FrameType], dict[str, Any]] | None = None
) -> tuple[Callable[..., TracebackType], tuple[Any, ...]]: ...
def unpickle_traceback(tb_frame: Any, tb_lineno: int, tb_next: Any) -> TracebackType: ...
