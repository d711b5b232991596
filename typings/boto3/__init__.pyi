from typing import Any

class Session:
    def __init__(
        self,
        aws_access_key_id: str | None = ...,
        aws_secret_access_key: str | None = ...,
        *,
        region_name: str | None = ...,
        profile_name: str | None = ...,
    ) -> None: ...
    def client(self, service_name: str, *, config: object = ..., endpoint_url: str = ...) -> Any: ...
