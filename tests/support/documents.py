"""What stands fenced in the documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Something fenced in a document."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path, *languages: str) -> Iterator[Block]:
    """The blocks of these languages, in order."""
    text = document.read_text("utf-8")
    for match in FENCED.finditer(text):
        if match[2] in languages:
            body = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
            yield Block(document, text.count("\n", 0, match.start()) + 2, match[2], body)
