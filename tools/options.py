"""Write docs/options.md, the options of all programs, from their command lines: `make api`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scaler_io.service.base import SERVICE_OPTIONS
from scaler_io.service.cli import Command, default_text
from scaler_io.service.options import KEYS, REQUIRED, Option
from scaler_launch import drain, dump, keys, results, status
from scaler_launch.__main__ import HELP
from scaler_scheduler.relay import options as relay
from scaler_scheduler.service import options as scheduler
from scaler_storage import options as storage
from scaler_ui.terminal import profile, top, why
from scaler_ui.web import app
from scaler_worker import config as cluster
from scaler_worker.managers import adapter_server
from scaler_worker.managers.main import KINDS, kind_named
from scaler_worker.managers.options import MANAGER_OPTIONS
from scaler_worker.symphony import proxy_options as symphony

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"
NATIVE = kind_named("baremetal_native").COMMAND
ADAPTER = adapter_server.command()
PROGRAMS: Sequence[Command[Any]] = (
    scheduler.COMMAND,
    relay.COMMAND,
    cluster.COMMAND,
    storage.COMMAND,
    *(kind_named(kind).COMMAND for kind in KINDS),
    ADAPTER,
    symphony.CLUSTER,
    *(top.COMMAND, app.COMMAND, why.COMMAND, profile.COMMAND),
    *(status.STATUS, status.WAIT, dump.DUMP, results.RESULTS, drain.DRAIN),
    *(keys.INIT, keys.ADD, keys.LIST, keys.REVOKE),
)
SHARED: dict[str, Sequence[Option]] = {
    heading: [option for option in options if not option.hidden]
    for heading, options in (
        ("options of every service", SERVICE_OPTIONS),
        ("options of every worker manager", [each for each in MANAGER_OPTIONS if each not in SERVICE_OPTIONS]),
        ("options about keys", KEYS),
    )
}
"""What several programs have, by heading; a section names those that its program lacks."""
MAY_LACK = 3
"""A program that lacks more of them has the others for itself."""
COUNTED = [
    option
    for options in (MANAGER_OPTIONS, *(each.options for each in (cluster.COMMAND, NATIVE, ADAPTER, symphony.CLUSTER)))
    for option in options
    if option.destination in ("num_of_workers", "max_task_concurrency", "base_concurrency")
]
"""Options whose default is the number of CPUs of the host."""
HEAD = f"""# Options

This page is generated from the command lines by `make api`; `-h` after a program's name shows the same.
[command-line.md](command-line.md) says where options may stand besides the command line, and what the exit codes mean.

```
{HELP}
```
"""


def cell(text: str) -> str:
    """Text in a table, where `|` has a meaning."""
    return text.replace("|", "\\|")


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def row(option: Option) -> str:
    """One option in a table."""
    names = ", ".join(f"`{name}`" for name in option.spellings or (option.placeholder,))
    told = option.placeholder.lower() not in option.destination  # rather than the option's name once more
    value = f" {cell(option.placeholder)}" if told and not option.flag else ""
    default = "required" if option.default is REQUIRED else default_text(option)
    if option in COUNTED:
        default = "number of CPUs"
    note = f"; environment: `{option.environment}`" if option.environment else ""
    return f"| {names}{value} | {default} | {cell(option.help)}{note} |"


def table(options: Iterable[Option]) -> str:
    """Options in a table; empty if there are none."""
    rows = [row(option) for option in options]
    return "\n".join(["| option | default | meaning |\n|---|---|---|", *rows, ""]) if rows else ""


def section(command: Command[Any]) -> Iterator[str]:
    """What the page says about one program."""
    yield f"## {command.program}\n\n{command.description}\n"
    if command.example:
        yield f"```\n{command.example}\n```\n"
    own = [option for option in command.options if not option.hidden]
    notes = [f'`[[{command.section}]]`, `type = "{command.kind}"`' if command.kind else f"`[{command.section}]`"]
    for heading, shared in SHARED.items():
        lacking = [option for option in shared if option not in own]
        if len(lacking) <= MAY_LACK and len(lacking) < len(shared):
            own = [option for option in own if option not in shared]
            others = {option.destination for option in own}
            without = [f"`{option.names[0]}`" for option in lacking if option.destination not in others]
            note = f" without {' and '.join(without)}" if without else ""
            notes.append(f"[{heading}](#{anchor(heading)}){note}")
    yield table(own)
    yield f"TOML table: {'. Further: '.join([notes[0], *filter(None, [' and '.join(notes[1:])])])}.\n"


def page() -> str:
    """docs/options.md."""
    parts = [HEAD]
    for command in PROGRAMS:
        parts += section(command)
    for heading, options in SHARED.items():
        parts.append(f"## {heading.capitalize()}\n\n{table(options)}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
