"""The default memory limit, from made-up control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_storage.memory import SHARE, default_limit


def mounted(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_groups_it_is_a_share_of_the_host(tmp_path: Path) -> None:
    assert default_limit(tmp_path) > 2**26
    assert default_limit(mounted(tmp_path, "0::/none\n", {})) == default_limit(tmp_path / "nothing")


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
    assert default_limit(mounted(tmp_path, groups, limits)) == int(SHARE * 1_000_000)
