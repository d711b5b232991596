"""What the programs of the gallery have in common: options, a cluster, and the file for the picture."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from scaler import Client, SchedulerClusterCombo


def run(description: str, work: Callable[[Client, bool], str | bytes]) -> None:
    """Call `work` with a connected client, and with whether a small problem will do; write the picture it returns."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--address", help="the scheduler of a cluster that runs; by default a local cluster is started")
    parser.add_argument("--small", action="store_true", help="a problem of a second, with the same steps")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to write the picture")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        address = arguments.address
        if address is None:
            address = stack.enter_context(SchedulerClusterCombo(n_workers=4)).get_address()
        picture = work(stack.enter_context(Client(address=address)), arguments.small)
    if arguments.picture is not None:
        arguments.picture.write_bytes(picture if isinstance(picture, bytes) else picture.encode())
