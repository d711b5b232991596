"""Take the newest third-party versions and write them into the root pyproject.toml: `make pins`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = re.compile(r"^constraint-dependencies = \[.*?\]$", re.MULTILINE | re.DOTALL)
EXPORT = (
    *("export", "--quiet", "--frozen", "--all-packages", "--all-extras", "--all-groups"),
    *("--no-emit-workspace", "--no-hashes", "--no-annotate", "--no-header"),
)


def exported_pins(uv: str) -> list[str]:
    """Every third-party distribution of uv.lock as `name==version`, with its marker where it has one."""
    out = subprocess.run([uv, *EXPORT], cwd=ROOT, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    return sorted(line.strip() for line in out.splitlines() if line.strip())


def with_pins(pyproject: str, pins: list[str]) -> str:
    """The text of pyproject.toml with the given constraint-dependencies."""
    body = "".join(f'    "{pin}",\n' for pin in pins)
    block = f"constraint-dependencies = [\n{body}]" if pins else "constraint-dependencies = []"
    text, found = CONSTRAINTS.subn(lambda _: block, pyproject)
    if found != 1:
        raise ValueError("pyproject.toml needs exactly one constraint-dependencies list")
    return text


def main(uv: str) -> None:
    """Lock without constraints, write the outcome as constraints, lock again with them."""
    before = PYPROJECT.read_text(encoding="utf-8")
    try:
        # Exact constraints would hold every version where it is.
        PYPROJECT.write_text(with_pins(before, []), encoding="utf-8")
        subprocess.run([uv, "lock", "--upgrade"], cwd=ROOT, check=True)
        PYPROJECT.write_text(with_pins(before, exported_pins(uv)), encoding="utf-8")
        subprocess.run([uv, "lock"], cwd=ROOT, check=True)
    except BaseException:
        PYPROJECT.write_text(before, encoding="utf-8")
        raise


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
