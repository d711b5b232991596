"""The client for Node: its codec on the conformance vectors, and its calls on real clusters, broken meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scaler_io.security.key_files import make_keys
from scaler_io.transport.curve import new_pair
from support.documents import ROOT
from support.faults import Services
from support.foreign_clients import (
    CALLS,
    call_a_babbling_scheduler,
    call_a_refusing_scheduler,
    call_an_odd_scheduler,
    map_through_faults,
)

CLIENT = ROOT / "clients" / "node"
NODE, NPM = shutil.which("node"), shutil.which("npm")
SECONDS = 100.0
UNREACHABLE = re.compile(r"code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|E403)")
"""What npm says where it has no network, or may not use it."""

pytestmark = pytest.mark.skipif(NODE is None or NPM is None, reason="there is no Node here: install node and npm")


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The client, compiled, with the packages that it needs."""
    npm = [str(NPM), "--prefix", str(CLIENT)]
    found = subprocess.run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], capture_output=True, text=True)
    if UNREACHABLE.search(found.stderr):
        pytest.skip("npm cannot reach its registry")
    assert found.returncode == 0, found.stderr[-2000:]
    subprocess.run([*npm, "run", "build"], check=True, capture_output=True, text=True)


def test_its_codec_and_its_calls(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    with Services(tmp_path, "--keys", str(keys)) as services:
        services.add_agent(2, "--keys", str(keys))
        environment = {**os.environ, "SCALER_ADDRESS": services.address, "SCALER_KEYS": str(keys)}
        words = [str(NODE), "--test", "--test-reporter=spec", *map(str, sorted(CLIENT.glob("test/*.test.mjs")))]
        ran = subprocess.run(words, cwd=CLIENT, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert ran.returncode == 0, ran.stdout[-8000:]


def test_a_map_goes_on_while_workers_and_the_scheduler_are_killed(tmp_path: Path) -> None:
    map_through_faults(tmp_path, [str(NODE), str(CLIENT / "test" / "long_map.mjs"), "ADDRESS", str(CALLS)])


def test_a_scheduler_that_errs_ends_its_calls_and_no_others() -> None:
    call_an_odd_scheduler([str(NODE), str(CLIENT / "test" / "alone.mjs"), "ADDRESS", "CALLS", "TIMEOUT"])


def test_a_scheduler_that_only_babbles_is_lost() -> None:
    call_a_babbling_scheduler([str(NODE), str(CLIENT / "test" / "alone.mjs"), "ADDRESS", "CALLS", "TIMEOUT"])


def test_a_refusal_without_reasons_says_so() -> None:
    call_a_refusing_scheduler([str(NODE), str(CLIENT / "test" / "alone.mjs"), "ADDRESS", "CALLS", "TIMEOUT"])
