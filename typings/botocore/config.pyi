from collections.abc import Mapping

class Config:
    def __init__(self, *, retries: Mapping[str, object] = ..., connect_timeout: float = ..., read_timeout: float = ...) -> None: ...
