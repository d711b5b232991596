"""The client for C++: its codec and link on the vectors, and its calls on real clusters, broken meanwhile."""

from __future__ import annotations

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

CLIENT = ROOT / "clients" / "cpp"
CHECK = CLIENT / "build" / "check"
PROGRAMS = ("g++", "make", "capnp", "pkg-config")
LIBRARIES = ("capnp", "libzmq", "libsodium", "nlohmann_json")
SECONDS = 100.0


def missing() -> list[str]:
    """What is not installed here of what the client needs."""
    found = [program for program in PROGRAMS if shutil.which(program) is None]
    if found:
        return found
    return [name for name in LIBRARIES if subprocess.run(["pkg-config", "--exists", name], check=False).returncode]


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"the client for C++ needs {', '.join(missing())}")


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The programs that check the client, compiled."""
    subprocess.run(["make", "-s", "-j2", "-C", str(CLIENT), "CXXFLAGS=-O0"], check=True)


def test_its_codec_and_its_link() -> None:
    words = [str(CLIENT / "build" / "conformance"), str(ROOT / "tests" / "conformance")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[:8000] + ran.stderr


def test_its_calls(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    with Services(tmp_path, "--keys", str(keys)) as services:
        services.add_agent(2, "--keys", str(keys))
        words = [str(CHECK), services.address, str(keys)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_map_goes_on_while_workers_and_the_scheduler_are_killed(tmp_path: Path) -> None:
    map_through_faults(tmp_path, [str(CHECK), "ADDRESS", "", str(CALLS)])


def test_a_scheduler_that_errs_ends_its_calls_and_no_others() -> None:
    call_an_odd_scheduler([str(CHECK), "ADDRESS", "", "CALLS", "TIMEOUT"])


def test_a_scheduler_that_only_babbles_is_lost() -> None:
    call_a_babbling_scheduler([str(CHECK), "ADDRESS", "", "CALLS", "TIMEOUT"])


def test_a_refusal_without_reasons_says_so() -> None:
    call_a_refusing_scheduler([str(CHECK), "ADDRESS", "", "CALLS", "TIMEOUT"])
