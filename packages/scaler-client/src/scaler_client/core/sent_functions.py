"""SentFunctions: the functions a scheduler was sent and may request again. Pure, no IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import CallGroup, FunctionBody, OutstandingCall
from scaler_client.objects.handles import StoredPayload, stored_positions
from scaler_protocol.messages import Functions, Message, NeedFunctions, Submit
from scaler_protocol.payloads import Payloads

KEPT_FUNCTIONS: Final = 4096
KEPT_FUNCTION_BYTES: Final = 64 * 1024 * 1024


class SentFunctions:
    """The latest functions, bounded by KEPT_FUNCTIONS and KEPT_FUNCTION_BYTES."""

    def __init__(self) -> None:
        self._bodies: dict[bytes, FunctionBody] = {}
        self._bytes = 0

    def new(self, groups: Iterable[CallGroup]) -> list[FunctionBody]:
        """The functions of these groups that were not sent yet; notes them as sent."""
        bodies = {body.id: body for group in groups for body in group.bodies if body.id not in self._bodies}
        for body in bodies.values():
            self._remember(body)
        return list(bodies.values())

    def _remember(self, body: FunctionBody) -> None:
        if type(body.body) is StoredPayload:
            return  # a reference is cheap to resend, and its object must be freed with its last call
        self._bodies[body.id] = body
        self._bytes += len(body.body)
        while len(self._bodies) > KEPT_FUNCTIONS or (self._bytes > KEPT_FUNCTION_BYTES and len(self._bodies) > 1):
            oldest = self._bodies.pop(next(iter(self._bodies)))
            self._bytes -= len(oldest.body)

    def forget(self, message: Message) -> None:
        """This message was not sent: neither were its functions."""
        for function in message.functions if isinstance(message, Submit | Functions) else ():
            if (body := self._bodies.pop(function, None)) is not None:
                self._bytes -= len(body.body)

    def clear(self) -> None:
        """Forget all: the scheduler was restarted."""
        self._bodies, self._bytes = {}, 0

    def answer(self, message: NeedFunctions, outstanding: Iterable[OutstandingCall]) -> Functions | None:
        """The requested functions, from those sent or from outstanding calls; None if all are unknown."""
        wanted = set(message.functions) - self._bodies.keys()
        found = {function: self._bodies[function] for function in message.functions if function not in wanted}
        if wanted:
            for call in dict.fromkeys(outstanding):
                for group in call.groups if isinstance(call, GraphPiece) else (call._group,):
                    found.update((body.id, body) for body in group.bodies if body.id in wanted)
        if not found:
            return None
        bodies = list(found.values())
        written = [body.body for body in bodies]
        return Functions(list(found), [body.name for body in bodies], Payloads(written), stored_positions(written))
