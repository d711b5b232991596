"""Permissions: which messages a peer may send to the scheduler, by its role."""

from __future__ import annotations

from typing import Final

from scaler_io.links.admission import Permissions
from scaler_protocol import messages
from scaler_protocol.capacity import ListProcesses, ListWorkers, ManagerStatus, ProcessList
from scaler_protocol.handshake import Role
from scaler_protocol.operations import AskWhy, Drain, Dump, ProfilePart, Resized, TakeProfile
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, ListTasks
from scaler_protocol.storage import DeleteObjects

PERMITTED: Final[Permissions] = {
    Role.CLIENT: frozenset(
        {
            messages.Submit,
            messages.Cancel,
            messages.Release,
            messages.Functions,
            messages.Inputs,
            messages.Reconcile,
            ListWorkers,
            ListProcesses,
            ListTasks,
            LabelTask,
            EndSession,
            ConfirmTasks,
            messages.Shutdown,
        }
    ),
    Role.AGENT: frozenset(
        {
            messages.Submit,
            messages.Cancel,
            messages.Release,
            messages.Functions,
            messages.Inputs,
            messages.Reconcile,
            messages.Done,
            messages.Returned,
            messages.Blocked,
            messages.NeedFunctions,
            messages.Output,
            messages.AgentStatus,
            DeleteObjects,
            Resized,
            ProcessList,
            ProfilePart,
        }
    ),
    Role.OPERATOR: frozenset({messages.Cancel, Drain, Dump, AskWhy, TakeProfile, ListTasks, EndSession}),
    Role.MANAGER: frozenset({ManagerStatus}),
}
"""Messages that peers of each role may send to the scheduler. An agent also relays those of clients in its tasks."""
