from typing import Any

class ParallelBackendBase:
    nesting_level: int | None
    parallel: Any
    def __init__(self, nesting_level: int | None = ..., **options: Any) -> None: ...

class AutoBatchingMixin:
    _smoothed_batch_duration: float
    def batch_completed(self, batch_size: int, duration: float) -> None: ...

class SequentialBackend(ParallelBackendBase): ...

class FallbackToBackend(Exception):
    def __init__(self, backend: ParallelBackendBase) -> None: ...
