"""Clients as arguments of calls: what a pickled client becomes where it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from scaler_client.task_context import current_task, forwarding_to, runtime

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")


class ForwardedClient:
    """Stands for a client in a call that an agent forwards to another system, where the client connects anew.

    It takes the keys of the worker there.
    """

    def __init__(self, make: Callable[..., Any], settings: dict[str, Any]) -> None:
        self._make, self._settings = make, settings

    def __reduce__(self) -> tuple[Any, ...]:
        task = current_task()
        return _nested, (self._make, self._settings, task._run if task is not None else 0)


def _nested(make: Callable[..., Any], settings: dict[str, Any], parent: int) -> Any:
    """Unpickle a forwarded client: its tasks are nested in this run."""
    client = make(**settings)
    client._calls.nest(parent)
    return client


def unpickled(make: Callable[..., C], settings: dict[str, Any], scheduler: int) -> C | ForwardedClient:
    """The client of these settings, which belonged to this incarnation of a scheduler.

    Inside a task of the same cluster it shares the connection of the task; elsewhere it connects anew.
    """
    if (address := forwarding_to()) is not None:
        return ForwardedClient(make, {**settings, "address": address(settings["address"]), "keys": None})
    inside = runtime()
    if inside is None or (scheduler != inside.scheduler and settings["address"] is not None):
        return make(**settings)  # which finds out whether that is the task's cluster, started again
    client: Any = make(**{**settings, "address": None})
    client._settings = settings
    return client  # type: ignore[no-any-return]
