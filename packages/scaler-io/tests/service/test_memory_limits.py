"""What memory is allowed, by made-up control groups; where objects are kept; directories that end with their server."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scaler_io.service.memory_limits import allowed_bytes, default_directory, free_bytes
from scaler_io.service.runtime_dirs import HostDirectory, ServerDirectory


def mounted(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_groups_it_is_all_of_the_host(tmp_path: Path) -> None:
    assert allowed_bytes(tmp_path) > 2**26
    assert allowed_bytes(mounted(tmp_path, "0::/none\n", {})) == allowed_bytes(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/outer/inner\n", {"outer/inner/memory.max": "1000000\n", "outer/memory.max": "max\n"}),
        ("0::/outer/inner\n", {"outer/inner/memory.max": "2000000\n", "outer/memory.max": "1000000\n"}),
        ("0::/not/mounted\n", {"memory.max": "1000000"}),
        ("5:cpu,memory:/job\n4:pids:/job\n", {"memory/job/memory.limit_in_bytes": "1000000\n"}),
    ],
)
def test_the_smallest_limit_of_all_groups_counts(tmp_path: Path, groups: str, limits: dict[str, str]) -> None:
    assert allowed_bytes(mounted(tmp_path, groups, limits)) == 1_000_000


def test_memory_that_is_too_small_is_not_taken(tmp_path: Path) -> None:
    room = free_bytes(tmp_path)
    assert room and free_bytes(tmp_path / "missing") == 0
    elsewhere = tmp_path / "disk"
    assert default_directory(room, tmp_path, elsewhere) == tmp_path
    assert default_directory(3 * room, tmp_path, elsewhere) == elsewhere


def test_a_directory_ends_with_its_server_also_a_dead_one(tmp_path: Path) -> None:
    with ServerDirectory(tmp_path / "new") as living:
        assert living.path.stat().st_mode & 0o777 == 0o700
        dead, being_made, strange = (tmp_path / "new" / f"scaler-objects-{name}" for name in ("dead", "new", "link"))
        for folder in (dead, being_made, tmp_path / "elsewhere"):
            folder.mkdir()
            (folder / "segment").touch()
        (dead / "lock").touch()
        strange.symlink_to(tmp_path / "elsewhere")
        with ServerDirectory(tmp_path / "new") as other:
            assert living.path.exists() and being_made.exists() and not dead.exists()
            assert (tmp_path / "elsewhere" / "segment").exists()
        assert not other.path.exists()
        os.utime(being_made, (0, 0))
        with ServerDirectory(tmp_path / "new"):
            assert not being_made.exists()
    assert not living.path.exists()


def test_what_a_server_leaves_that_is_killed_while_it_removes_a_directory_is_removed_by_the_next_one(
    tmp_path: Path,
) -> None:
    """A process of its own, which kills itself when it is about to delete the fourth file."""
    dead = tmp_path / "scaler-objects-dead"
    dead.mkdir()
    for name in ("lock", *map(str, range(8))):
        (dead / name).touch()
    program = """
import os, signal, sys
from pathlib import Path
left, unlink = iter(range(3)), os.unlink
def dying(path, **options):
    next(left, None) is not None or os.kill(os.getpid(), signal.SIGKILL)
    unlink(path, **options)
os.unlink = dying
from scaler_io.service.runtime_dirs import ServerDirectory
ServerDirectory(Path(sys.argv[1]))
"""
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left != dead and len(list(left.iterdir())) == 6
    with ServerDirectory(tmp_path) as living:
        assert list(tmp_path.iterdir()) == [living.path]


def test_a_lock_is_never_seen_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    flock = fcntl.flock

    def watched(descriptor: int, operation: int) -> None:
        seen.append((Path(f"/proc/self/fd/{descriptor}").resolve().parent / "lock").exists())
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", watched)
    with ServerDirectory(tmp_path) as own:
        assert seen == [False] and (own.path / "lock").exists()


def test_a_directory_of_a_host_ends_with_the_last_of_its_programs(tmp_path: Path) -> None:
    with HostDirectory(tmp_path / "new") as first:
        (first.path / "held").mkdir()
        (first.path / "held" / "file").touch()
        with HostDirectory(tmp_path / "new") as second, ServerDirectory(tmp_path / "new") as own:
            assert second.path == first.path != own.path and first.path.stat().st_mode & 0o777 == 0o700
        assert (first.path / "held" / "file").exists() and not own.path.exists()
    assert not list((tmp_path / "new").iterdir())


def test_a_directory_of_a_host_is_taken_up_by_who_comes_next(tmp_path: Path) -> None:
    script = "import os, sys; from pathlib import Path; from scaler_io.service.runtime_dirs import HostDirectory as H\n"
    script += "with H(Path(sys.argv[1])) as made: (made.path / 'file').touch(); os.kill(os.getpid(), 9)"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    with HostDirectory(tmp_path) as taken:
        assert [path.name for path in taken.path.iterdir() if path.name != "lock"] == ["file"]
    assert not list(tmp_path.iterdir())
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with ServerDirectory(tmp_path) as own:
        assert list(tmp_path.iterdir()) == [own.path]


def test_a_directory_of_a_host_is_never_somebody_elses(tmp_path: Path) -> None:
    with HostDirectory(tmp_path) as made:
        name = made.path.name
    (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / f"{name}-1").symlink_to(tmp_path)
    with HostDirectory(tmp_path) as other:
        assert other.path.name == f"{name}-2"
    for number in range(2, 8):
        (tmp_path / f"{name}-{number}").touch()
    with pytest.raises(FileExistsError, match="not as this user's with mode 0700"):
        HostDirectory(tmp_path)


def test_programs_that_come_and_go_at_once_share_one_directory_of_a_host(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from scaler_io.service.runtime_dirs import HostDirectory
for number in range(60):
    with HostDirectory(Path(sys.argv[1])) as made:
        own = made.path / f"{sys.argv[2]}-{number}"
        own.touch()
        with HostDirectory(Path(sys.argv[1])) as again:
            assert again.path == made.path and own.exists()
"""
    words = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen([*words, str(number)]) for number in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [ServerDirectory, HostDirectory])
def test_a_parent_in_which_every_user_may_replace_files_is_refused(
    kind: type[ServerDirectory | HostDirectory], tmp_path: Path
) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(PermissionError, match="set its sticky bit"):
        kind(parent)
    assert not list(parent.iterdir())
    parent.chmod(0o1777)
    with kind(parent) as made:
        assert made.path.parent == parent
