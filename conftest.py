"""For all tests: settings of hypothesis, cheap garbage collections, and a summary of what was not run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# The time an example takes depends on the load of the machine.
settings.register_profile("new-examples", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change is judged by the same examples as the tree before it. `make soak` looks for new ones.
settings.register_profile("same-examples", settings.get_profile("new-examples"), derandomize=True)
settings.load_profile("same-examples")

LONG = "not soak and not chaos and not third_parties"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep 300,000 objects, which live as long as the tests, out of each garbage collection of CPython."""
    gc.disable()
    collected = yield
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return collected


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C interrupt, and all clusters of this run use keys of their own, not those of the user."""
    if os.name == "posix":  # a shell that starts a program in the background has it ignore the signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # processes of pytest-xdist inherit the environment
        runtime = tempfile.mkdtemp(prefix="scaler-tests-")
        os.environ["XDG_RUNTIME_DIR"] = runtime
        config.add_cleanup(lambda: shutil.rmtree(runtime, ignore_errors=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was not run, by reason, and how to run it."""
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        where = report.longrepr
        reason = where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)
        skipped[reason] += 1
    terminalreporter.section("not run")
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
    if config.option.markexpr == LONG:
        terminalreporter.write_line("other tests: run them with `make soak`, `make chaos` and `make third-parties`")
