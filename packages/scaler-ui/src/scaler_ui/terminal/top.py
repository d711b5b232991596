"""The program `scaler_top`: the scheduler, its messages and all workers in a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scaler_io.security.keyring import SUBSCRIBER_KEYS
from scaler_io.service import event_loops
from scaler_io.service.cli import Command
from scaler_io.service.options import KEYS, Option, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.listening import Listening
from scaler_ui.model import text_view
from scaler_ui.model.tables import fields
from scaler_ui.model.text_view import View

ONCE_CELLS = 120
"""The maximum of characters in a line of `--once`."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """Options from the command line, the environment and the TOML file."""

    address: Address
    once: bool
    json: bool
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False


COMMAND = Command(
    program="scaler_top",
    description="Show a scheduler, its messages and its workers, like top.",
    section="top",
    config=TopOptions,
    options=(
        Option(
            ("address", "monitor_address"),
            "the monitor: tcp://host:port (the scheduler's port + 2) or ipc://path",
            Address.parse_peer,
        ),
        Option(("--once",), "print one screen and end", default=False, flag=True),
        Option(("--json",), "with --once: print the fields of the screen as JSON", default=False, flag=True),
        Option(
            ("--timeout-seconds", "-t"), "with --once: how long to wait for a status", positive_seconds, default=5.0
        ),
        *KEYS,
    ),
    example="scaler_top tcp://127.0.0.1:2347",
)


def once(listening: Listening, options: TopOptions) -> None:
    """Print one screen; raises NoStatusError."""
    listening.wait_for(lambda model: model.is_complete, options.timeout_seconds)
    shown = fields(listening.model, listening.now)
    if options.json:
        print(json.dumps(shown, indent=2))
        return
    rows = View().rows(shown)
    header, lines = text_view.worker_table(rows, View(), ONCE_CELLS)
    table = [text_view.total(shown, len(rows), ONCE_CELLS), header, *lines]
    sentence = text_view.finding_lines(shown, ONCE_CELLS, len(shown["findings"]) + 2)
    print(
        "\n".join(
            [
                *sentence,
                "",
                *text_view.summary(shown, ONCE_CELLS),
                "",
                *text_view.beside([table, text_view.side(shown)]),
            ]
        )
    )


def run_top() -> None:
    """Show what the command line names, until the reader ends it."""
    options = COMMAND.read()
    if options.json and not options.once:
        COMMAND.refuse("--json needs --once: it prints one screen")
    credentials = credentials_for(options.address, options.keys, options.insecure, SUBSCRIBER_KEYS)
    listening = Listening(options.address, credentials=credentials)
    try:
        if options.once:
            once(listening, options)
        else:
            from scaler_ui.terminal.screen import show  # textual takes long to load

            if sys.__stderr__ is None or not sys.__stderr__.isatty():  # where textual draws
                COMMAND.refuse("there is no terminal to draw on: --once prints one screen")
            event_loops.run(lambda: show(listening))
    finally:
        listening.close()
