"""The session manager of the model of Symphony: `python session_manager.py PROFILE`, at $SOAM_MODEL_ADDRESS.

The profile is a JSON object: the command of the service, the number of its instances, how often a task is run again
after its service instance has died or has asked for it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from typing import Any

KEY = b"model of soamapi"
"""As in the library."""


@dataclass(eq=False)
class Task:
    """A task of a client's session."""

    session: Session
    id: str
    data: bytes
    runs: int = 0
    instance: int = 0
    """The process id of the service that runs it."""
    killed: bool = False


@dataclass(eq=False)
class Session:
    """A client's session."""

    connection: Connection[Any, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    tasks: dict[str, Task] = field(default_factory=dict)

    def reply(self, task: Task, fault: str | None, data: bytes) -> None:
        """Tell the client, unless it is gone or has been told."""
        with self.lock:
            if self.tasks.pop(task.id, None) is not None:
                try:
                    self.connection.send((task.id, fault, data))
                except OSError:
                    return


class Application:
    """The application of the profile: its queue, and its service instances."""

    def __init__(self, profile: dict[str, Any]) -> None:
        self.name: str = profile["name"]
        self._command: list[str] = profile["command"]
        self._retries: int = profile["retries"]
        self.pending: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for _ in range(profile["instances"]):
            self._start_instance()

    def _start_instance(self) -> None:
        process = subprocess.Popen(self._command, env={**os.environ, "SOAM_MODEL_APPLICATION": self.name})
        threading.Thread(target=process.wait, daemon=True).start()

    def serve(self, connection: Connection[Any, Any], pid: int) -> None:
        """Give tasks to a service instance until it dies; another takes its place."""
        while True:
            task = self.pending.get()
            if task.killed:
                continue
            task.instance, task.runs = pid, task.runs + 1
            try:
                connection.send((task.id, task.data))
                ending, data = connection.recv()
            except (EOFError, OSError):
                self._start_instance()
                self._again(task, f"the service instance (process {pid}) has exited")
                return
            if ending == "again":
                self._again(task, data.decode())
            else:
                task.session.reply(task, None if ending == "done" else data.decode(), data)

    def _again(self, task: Task, reason: str) -> None:
        if task.killed:
            task.session.reply(task, "the task was killed", b"")
        elif task.runs <= self._retries:
            self.pending.put(task)
        else:
            task.session.reply(task, f"{reason}, {task.runs} times", b"")

    def take(self, session: Session) -> None:
        """Read what a client sends until it leaves; its tasks are killed then."""
        try:
            while True:
                what, task_id, data = session.connection.recv()
                if what == "task":
                    task = session.tasks[task_id] = Task(session, task_id, data)
                    self.pending.put(task)
                elif task_id in session.tasks:
                    self._kill(session.tasks[task_id])
        except (EOFError, OSError):
            for task in list(session.tasks.values()):
                self._kill(task)

    @staticmethod
    def _kill(task: Task) -> None:
        task.killed = True
        if task.instance:
            os.kill(task.instance, signal.SIGKILL)


def main() -> None:
    """Accept clients and service instances until this process is ended."""
    listener = Listener(os.environ["SOAM_MODEL_ADDRESS"], authkey=KEY, backlog=64)
    application = Application(json.loads(sys.argv[1]))
    print("the model of Symphony is ready", flush=True)
    while True:
        connection = listener.accept()
        threading.Thread(target=_meet, args=(application, connection), daemon=True).start()


def _meet(application: Application, connection: Connection[Any, Any]) -> None:
    try:
        kind, name, pid = connection.recv()
    except (EOFError, OSError):
        return
    if kind == "service":
        application.serve(connection, pid)
    elif name != application.name:
        connection.send(f"there is no application {name}")
    else:
        connection.send("")
        application.take(Session(connection))


if __name__ == "__main__":
    main()
