"""Paths that others write beside: only a socket of our own is ever removed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from scaler_io.service.socket_lock import SocketLock, remove_dead


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def test_a_free_path_is_claimed_and_released_without_a_trace(tmp_path: Path) -> None:
    claim = SocketLock(str(tmp_path / "monitor"))
    assert stat.S_IMODE(os.stat(tmp_path / "monitor.lock").st_mode) == 0o600
    with bound(tmp_path / "monitor"):
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_owner_left_is_replaced(tmp_path: Path) -> None:
    bound(tmp_path / "monitor").close()
    (tmp_path / "monitor.lock").touch()
    claim = SocketLock(str(tmp_path / "monitor"))
    assert not (tmp_path / "monitor").exists()
    claim.release()


def test_what_dead_owners_of_other_paths_left_is_removed(tmp_path: Path) -> None:
    for name in ("dead", "alive", "stranger"):
        bound(tmp_path / f"{name}_1_monitor").close()
        (tmp_path / f"{name}_1_monitor.lock").touch()
    (tmp_path / "stranger_1_monitor").unlink()
    (tmp_path / "stranger_1_monitor").touch()
    alive = SocketLock(str(tmp_path / "alive_1_monitor"))
    with bound(tmp_path / "alive_1_monitor"):
        remove_dead(f"{tmp_path}/*_[0-9]*_monitor")
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {f"{name}_1_monitor{end}" for name in ("alive", "stranger") for end in ("", ".lock")}
        alive.release()


def test_a_path_that_lives_is_refused(tmp_path: Path) -> None:
    claim = SocketLock(str(tmp_path / "monitor"))
    with bound(tmp_path / "monitor"):
        with pytest.raises(OSError, match=r"another process holds .*monitor\.lock"):
            SocketLock(str(tmp_path / "monitor"))
        assert (tmp_path / "monitor").exists()
        claim.release()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError, match="not a socket of this user"):
            SocketLock(str(tmp_path / name))
        assert not (tmp_path / f"{name}.lock").exists()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "monitor.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        SocketLock(str(tmp_path / "monitor"))
    assert not (tmp_path / "elsewhere").exists()
