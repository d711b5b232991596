from collections.abc import Callable
from typing import Any

class BatchedCalls:
    items: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
    def __call__(self) -> list[Any]: ...

def register_parallel_backend(name: str, factory: Callable[..., Any], make_default: bool = ...) -> None: ...
