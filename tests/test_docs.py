"""What the documents show is true: their Python runs, their TOML starts services, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.clusters import LocalCluster
from support.processes import PROGRAMS, Terminal, free_ports

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (?P<expected>.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
SERVICES = "tcp://127.0.0.1:2345"


@dataclass(frozen=True)
class Block:
    """Something fenced in a document."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path, language: str) -> Iterator[Block]:
    """The blocks of a language, in order."""
    text = document.read_text("utf-8")
    for match in FENCED.finditer(text):
        if match[2] == language:
            body = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
            yield Block(document, text.count("\n", 0, match.start()) + 2, language, body)


def run(block: Block, names: dict[str, Any], address: str) -> str:
    """What a block prints; names that it defines are there for the next one."""
    source = "\n" * (block.line - 1) + block.text.replace(SERVICES, address)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(block.document), "exec", dont_inherit=True), names)
    return printed.getvalue()


def agrees(printed: str, expected: str) -> bool:
    """Whether a line is what the comment says; a comment may end in dots."""
    return printed.startswith(expected.removesuffix("...")) if expected.endswith("...") else printed == expected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_runs_and_prints_what_it_says(document: Path, single: LocalCluster) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in blocks(document, "python"):
            printed = run(block, names, single.address).splitlines()
            expected = [match["expected"] for match in PRINTED.finditer(block.text)]
            assert len(printed) == len(expected), f"{block}: {printed}"
            for line, comment in zip(printed, expected, strict=True):
                assert agrees(line, comment), f"{block}: {line!r} where it says {comment!r}"
    finally:
        if "client" in names:
            names["client"].disconnect()


@pytest.mark.parametrize(
    "block", [block for document in DOCUMENTS for block in blocks(document, "toml")], ids=lambda block: str(block)
)
def test_toml_starts_services(block: Block, tmp_path: Path) -> None:
    port = free_ports(3)
    text = (
        block.text.replace(":2345", f":{port}")
        .replace(":2346", f":{port + 1}")
        .replace("/var/log/scaler", str(tmp_path))
    )
    file = tmp_path / "scaler.toml"
    file.write_text(text, "utf-8")
    with (
        Terminal(PROGRAMS / "scaler_object_storage_server", f"tcp://127.0.0.1:{port + 1}") as storage,
        Terminal(PROGRAMS / "scaler_scheduler", "--config", file) as scheduler,
        Terminal(PROGRAMS / "scaler_cluster", "--config", file, "--num-of-workers", "2") as cluster,
    ):
        scheduler.read_until(f"listen to scheduler address tcp://127.0.0.1:{port}")
        cluster.read_until("Worker[1] started")
        for terminal in (cluster, scheduler, storage):
            assert terminal.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(FENCED, "", document.read_text("utf-8"))
    for match in LINK.finditer(text):
        target = (document.parent / match["path"]) if match["path"] else document
        assert target.exists(), f"{document.name} links to {match['path']}"
        if match["anchor"] and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert match["anchor"] in anchors, f"{document.name} links to {match['anchor']}"
