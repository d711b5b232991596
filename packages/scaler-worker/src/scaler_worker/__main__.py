"""`scaler_cluster`: an agent and its workers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from scaler_io.lifecycle import main_guard

if TYPE_CHECKING:
    from pathlib import Path

    from scaler_worker.config import ClusterConfig

CACHE_SHARE = 0.2
"""Of the memory that is allowed, for objects of a storage elsewhere."""
BLOCKED_AND_SPARE = 1024
"""Workers beyond the places for which there is a word: those that wait for others, and spares."""


def main() -> int:
    """Run the agent that the command line describes; returns its exit code."""
    return main_guard("scaler_cluster", _run)


def _run() -> int:
    from scaler_io import logs
    from scaler_worker.config import COMMAND
    from scaler_worker.preload import Preload

    config = COMMAND.read()
    if config.preload is not None:
        Preload.parse(config.preload)
    logs.configure(config.logging_paths, config.logging_level, config.logging_config_file, config.log_format)

    from scaler_io.directories import OwnDirectory
    from scaler_io.places import allowed_bytes, default_place, free_bytes

    limit = config.object_cache_limit
    if limit is None:
        limit = int(CACHE_SHARE * allowed_bytes())
    place = default_place(limit)
    # Locked as long as this process or one that is forked from it lives.
    with OwnDirectory(place) as cache:
        return _with_cache(config, cache.path, min(limit, free_bytes(place)))


def _with_cache(config: ClusterConfig, cache: Path, cache_limit: int) -> int:
    # The template is forked before this process has a thread or a socket, with all that workers need imported.
    from scaler_worker.config import WorkerConfig
    from scaler_worker.template_link import Forking, TemplateLink
    from scaler_worker.words import SharedWords

    lifeline = os.pipe()
    words = SharedWords.create(config.num_of_workers + BLOCKED_AND_SPARE)
    worker_config = WorkerConfig(
        config.preload,
        config.garbage_collect_interval_seconds,
        config.trim_memory_threshold_bytes,
        str(config.object_storage_address or ""),
        str(cache),
        cache_limit,
    )
    template = TemplateLink.fork(lifeline, words, worker_config)

    from scaler_worker.cluster import run_cluster

    return run_cluster(config, Forking(template, lifeline[0], words, worker_config))


if __name__ == "__main__":
    sys.exit(main())
