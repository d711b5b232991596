from typing import Any

class BotoCoreError(Exception): ...

class ClientError(Exception):
    response: dict[str, Any]
