"""What no peer may say, whoever it is, beyond the limits that the codec checks: before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.ids import session_of
from scaler_protocol.messages import Done, Functions, Inputs, Status, Submit
from scaler_protocol.objects import Reference


def check_submit(event: Submit) -> None:
    """Raises ProtocolError for tasks of several sessions, and for references that are none."""
    check_stored("Submit.bodies_stored", event.bodies_stored, event.bodies)
    check_stored("Submit.stored", event.stored, event.calls)
    if event.tasks and session_of(min(event.tasks)) != session_of(max(event.tasks)):
        raise ProtocolError("a Submit holds tasks of one session")


def check_functions(event: Functions) -> None:
    """Raises ProtocolError for references that are none."""
    check_stored("Functions.bodies_stored", event.bodies_stored, event.bodies)


def check_done(event: Done) -> None:
    """Raises ProtocolError for a report that does not say which runs have ended, and for references that are none."""
    if not len(event.runs) == len(event.tasks) == len(event.statuses) or (event.tasks and not event.profiles):
        raise ProtocolError("a Done of an agent has a run and a profile for every task")
    check_stored("Done.stored", event.stored, event.results)


def check_inputs(event: Inputs) -> None:
    """Raises ProtocolError for outcomes that no client is told, and for references that are none."""
    if max(event.statuses, default=0) > Status.CANCELLED:
        raise ProtocolError(f"{max(event.statuses)} is no status of an input: the greatest is {Status.CANCELLED}")
    check_stored("Inputs.stored", event.stored, event.results)


def check_stored(where: str, positions: Collection[int], payloads: Sequence[bytes]) -> None:
    """Raises ProtocolError where what is said to be a reference is none."""
    for position in positions:
        try:
            Reference.unpack(payloads[position])
        except MalformedMessageError as error:
            raise ProtocolError(f"{where}: {error}") from None
