"""Checks of messages beyond the codec's limits, made before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from graphlib import CycleError, TopologicalSorter
from operator import lt

from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.ids import function_fault, session_of
from scaler_protocol.messages import Done, Functions, Inputs, Status, Submit
from scaler_protocol.objects import Reference

CYCLE_SHOWN = 10
"""Most tasks of a cycle that an error names."""


def check_submit(event: Submit) -> None:
    """Raises ProtocolError for tasks of several sessions, wrong functions, invalid references and cycles."""
    check_functions(event)
    check_stored("Submit.stored", event.stored, event.calls)
    if event.tasks and session_of(min(event.tasks)) != session_of(max(event.tasks)):
        raise ProtocolError("a Submit holds tasks of one session")
    if event.dependents:
        _check_needs(event)


def _check_needs(event: Submit) -> None:
    """Raises ProtocolError if tasks of this Submit need each other in a cycle: none of them could ever run."""
    tasks = list(map(event.tasks.__getitem__, event.dependents))
    if all(map(lt, event.needs, tasks)):  # the usual order, without cycles
        return
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for need, task in zip(event.needs, tasks, strict=True):
        sorter.add(task, need)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [f"{task:#x}" for task in error.args[1][:CYCLE_SHOWN]]
        raise ProtocolError(f"tasks need each other in a cycle: {', '.join(cycle)}") from None


def check_functions(event: Submit | Functions) -> None:
    """Raises ProtocolError for function ids that are not the hash of what they stand for, and for invalid references.

    A function is shared by all sessions, so no peer may define another function's id.
    """
    where, stored = type(event).__name__, set(event.bodies_stored)
    for position, (function, name, body) in enumerate(zip(event.functions, event.names, event.bodies, strict=True)):
        if fault := function_fault(function, name, body, stored=position in stored):
            raise ProtocolError(f"{where}.functions: {fault}")
    check_stored(f"{where}.bodies_stored", event.bodies_stored, event.bodies)


def check_done(event: Done) -> None:
    """Raises ProtocolError for a report without a run and a profile for each task, and for invalid references."""
    if not len(event.runs) == len(event.tasks) == len(event.statuses) or (event.tasks and not event.profiles):
        raise ProtocolError("a Done of an agent has a run and a profile for every task")
    check_stored("Done.stored", event.stored, event.results)


def check_inputs(event: Inputs) -> None:
    """Raises ProtocolError for statuses that a client never receives, and for invalid references."""
    if max(event.statuses, default=0) > Status.CANCELLED:
        raise ProtocolError(f"{max(event.statuses)} is no status of an input: the greatest is {Status.CANCELLED}")
    check_stored("Inputs.stored", event.stored, event.results)


def check_stored(where: str, positions: Collection[int], payloads: Sequence[bytes]) -> None:
    """Raises ProtocolError if a payload at these positions is not a reference."""
    for position in positions:
        try:
            Reference.unpack(payloads[position])
        except MalformedMessageError as error:
            raise ProtocolError(f"{where}: {error}") from None
