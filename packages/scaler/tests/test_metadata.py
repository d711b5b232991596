"""What installing `scaler` brings, and where."""

from importlib.metadata import requires

from packaging.requirements import Requirement

SERVERS = ["scaler-scheduler", "scaler-storage", "scaler-ui", "scaler-worker"]


def brought(platform: str, *extras: str) -> dict[str, set[str]]:
    """The distributions that are required there, each with its extras."""
    found: dict[str, set[str]] = {}
    for requirement in map(Requirement, requires("scaler") or []):
        for extra in ("", *extras):
            if requirement.marker is None or requirement.marker.evaluate({"sys_platform": platform, "extra": extra}):
                found.setdefault(requirement.name, set()).update(requirement.extras)
    return found


def test_linux_gets_client_and_servers() -> None:
    assert brought("linux") == {name: set() for name in ["scaler-client", *SERVERS]}


def test_elsewhere_only_the_client() -> None:
    assert brought("win32") == {"scaler-client": set()}
    assert brought("darwin") == {"scaler-client": set()}


def test_extras_reach_the_packages_that_need_them() -> None:
    linux = brought("linux", "graphblas", "uvloop")
    assert linux["scaler-client"] == {"graphblas"}
    assert linux["scaler-io"] == {"uvloop"}
    assert brought("win32", "graphblas", "uvloop") == {"scaler-client": {"graphblas"}}
