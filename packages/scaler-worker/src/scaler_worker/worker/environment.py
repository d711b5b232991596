"""The environment variables that workers set before they import anything of the user. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaler_io.security.key_files import INSECURE_VARIABLE, KEYS_VARIABLE
from scaler_protocol.gpus import ORDER
from scaler_worker.config import ClusterConfig

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""How many threads OpenMP, the BLAS libraries and NumExpr start, each in every process that loads it."""


def worker_environment(config: ClusterConfig, inherited: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Names and values, beyond those that workers inherit.

    Each library would start a thread per core in each worker, which is slower than one. Whoever has set one of the
    variables has decided; the command line counts more.
    """
    threads = config.threads_per_worker
    if threads is None:
        threads = 0 if any(name in inherited for name in THREAD_VARIABLES) else 1
    values = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
    if config.gpus and not ORDER.keys() & inherited:
        values |= ORDER
    return tuple((values | dict(config.env) | _keys(config)).items())


def _keys(config: ClusterConfig) -> dict[str, str]:
    """The keys of the command line, for clients in tasks and in processes that tasks start.

    The user's own are found without a variable, where they are for.
    """
    if config.insecure:
        return {INSECURE_VARIABLE: "1"}
    return {KEYS_VARIABLE: str(config.keys)} if config.keys is not None else {}
