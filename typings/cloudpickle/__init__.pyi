import pickle
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any

__version__: str

class Pickler(pickle.Pickler):
    def __init__(
        self,
        file: IO[bytes],
        protocol: int | None = None,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None: ...

CloudPickler = Pickler

def dump(
    obj: object,
    file: IO[bytes],
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None: ...
def dumps(
    obj: object,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes: ...

load = pickle.load
loads = pickle.loads

def register_pickle_by_value(module: ModuleType) -> None: ...
def unregister_pickle_by_value(module: ModuleType) -> None: ...
