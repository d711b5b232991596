"""What tasks do to their processes is noticed, and what is no damage is not."""

from __future__ import annotations

import builtins
import os
import pickle
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler_worker.worker.damage import SPARE_DESCRIPTORS, UNREAPED, Damage
from support.tasks import in_fork


def found_after(do: Callable[[], object]) -> str:
    """What is found in a process of its own, which is whole before."""

    def run() -> str:
        damage = Damage(0)
        before = damage.find()
        do()
        return before or damage.find() or "whole"

    return in_fork(run)


def set_soft(kind: int, limit: int) -> None:
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


def use_up(up_to: int) -> None:
    """Take all free descriptors up to this one, gaps between those that other tests left open included."""
    try:
        while os.dup(0) < up_to:
            pass
    except OSError:
        return


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (resource.RLIMIT_NOFILE, "open files"),
        (resource.RLIMIT_AS, "memory"),
        (resource.RLIMIT_FSIZE, "file size"),
        (resource.RLIMIT_NPROC, "processes"),
        (resource.RLIMIT_CPU, "CPU time"),
        (resource.RLIMIT_STACK, "stack"),
    ],
)
def test_limits_that_were_lowered(kind: int, name: str) -> None:
    limit = 2**40 if kind == resource.RLIMIT_AS else 100
    assert found_after(lambda: set_soft(kind, limit)).startswith(f"its limit of {name} was lowered from ")


def test_a_user_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    damage = Damage(0)
    user, group = os.geteuid(), os.getegid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)  # which only root can really do
    assert damage.find() == f"its user and group were changed from {(user, group)} to {(user + 1, group)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change it")
def test_a_root_directory_that_was_changed(tmp_path: Path) -> None:
    assert found_after(lambda: os.chroot(tmp_path)) == "its root directory was changed"


@pytest.mark.parametrize(("descriptor", "name"), [(1, "output"), (2, "error")])
def test_a_standard_stream_whose_descriptor_was_closed(descriptor: int, name: str) -> None:
    assert found_after(lambda: os.close(descriptor)) == f"its standard {name} was closed"


def test_descriptors_that_are_used_up() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(int(descriptor) for descriptor in os.listdir("/proc/self/fd")) + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        assert found_after(lambda: use_up(limit - 50)) == "whole"
        assert "are in use" in found_after(lambda: use_up(limit - SPARE_DESCRIPTORS))
        assert found_after(lambda: use_up(limit)) == "it can open no file: Too many open files"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_others_have_found() -> None:
    damage = Damage(0)
    assert not damage.find()
    damage.report("it is worn out")
    assert damage.find() == "it is worn out"


def test_limits_that_were_raised_are_no_damage() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        assert found_after(lambda: set_soft(resource.RLIMIT_NOFILE, soft)) == "whole"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("module", "name"), [(pickle, "loads"), (pickle, "Pickler"), (builtins, "__import__"), (builtins, "isinstance")]
)
def test_functions_that_do_not_work_any_more(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(module, name, None)
        found = Damage(0).find()
    assert found == "its Python does not work any more: TypeError: 'NoneType' object is not callable"


@pytest.mark.parametrize("name", ["path", "meta_path", "path_hooks"])
def test_modules_that_cannot_be_found_any_more(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, name, [])
    assert Damage(0).find() == "its Python finds no module any more"


def test_many_children_that_have_ended() -> None:
    def leave(count: int) -> None:
        for _ in range(count):
            if not os.fork():
                os._exit(0)
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)

    assert found_after(lambda: leave(3)) == "whole"
    assert "processes that have ended" in found_after(lambda: leave(UNREAPED + 9))
