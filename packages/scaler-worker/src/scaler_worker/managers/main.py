"""`scaler_worker_manager KIND SCHEDULER_ADDRESS`: starts and stops agents as the scheduler wants them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from scaler_io.service.process import main_guard

PROGRAM: Final = "scaler_worker_manager"
KINDS: Final[Mapping[str, str]] = {
    "baremetal_native": "native",
    "slurm": "slurm",
    "ssh": "ssh",
    "aws_raw_ecs": "aws_ecs",
    "aws_hpc": "aws_batch",
    "orb_aws_ec2": "aws_ec2",
    "symphony": "symphony",
    "kubernetes": "kubernetes",
}
"""The module of each kind, with its COMMAND and `run`. They are imported when they are chosen."""
REFUSED_KINDS: Final[Mapping[str, str]] = {
    kind: "Oracle Cloud is not supported: nobody has run it. Use ssh with instances that you start, or kubernetes (OKE)"
    for kind in ("oci_raw", "oci_hpc")
}


class Kind(Protocol):
    """A module of a kind."""

    COMMAND: Any

    def run(self, options: Any) -> int:
        """Run the manager; returns its exit code."""


def kind_named(name: str) -> Kind:
    """The module of this kind; raises ValueError, which names the nearest kind, if there is none."""
    if name in REFUSED_KINDS:
        raise ValueError(f"{name}: {REFUSED_KINDS[name]}")
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"kinds are {', '.join(KINDS)}"
        raise ValueError(f"unknown kind {name!r}; {advice}")
    module: Any = import_module(f"scaler_worker.managers.{KINDS[name]}")
    kind: Kind = module
    return kind


def main() -> int:
    """Run the manager that the command line describes; returns its exit code."""
    return main_guard(PROGRAM, _run)


def _run() -> int:
    kind, words = _split(sys.argv[1:])
    module = kind_named(kind)
    options = module.COMMAND.read(words)
    options.begin_log()
    return module.run(options)


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The kind, and the words of its own command line: --config may stand before it, too."""
    rest = list(words)
    before: list[str] = []
    while rest and rest[0] in ("--config", "-c") and len(rest) > 1:
        before += [rest.pop(0), rest.pop(0)]
    if rest[:1] == ["--version"]:
        from scaler_io.service.cli import version_line

        print(version_line(PROGRAM))
        raise SystemExit(0)
    if not rest or rest[0] in ("-h", "--help"):
        print(_help())
        raise SystemExit(0 if rest else 2)
    return rest[0], [*before, *rest[1:]]


def _help() -> str:
    return (
        f"usage: {PROGRAM} KIND SCHEDULER_ADDRESS [option ...]\n\n"
        "Start and stop workers as the scheduler wants them.\n\n"
        f"kinds: {', '.join(KINDS)}\n"
        f"{PROGRAM} KIND -h lists the options of a kind.\n\n"
        f"example:\n  {PROGRAM} baremetal_native tcp://127.0.0.1:2345 --worker-manager-id local"
    )


if __name__ == "__main__":
    sys.exit(main())
