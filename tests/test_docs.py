"""What the documents show is true: their Python runs, their TOML starts services, what they name exists."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler_launch.cluster_file import read_cluster
from scaler_worker.managers.main import KINDS
from support.clusters import LocalCluster
from support.documents import FENCED, ROOT, Block, blocks
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, free_ports

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
INTERNAL = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "design").glob("*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
"""Documents for those who work on Scaler, whose examples are not run."""
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""It is followed by test_tutorial.py."""
SOURCES = sorted(ROOT.glob("packages/*/src"))
PRINTED = re.compile(r"^ *print\(.*\)  # (?P<expected>.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
DOTTED = re.compile(r"\bscaler_[a-z]+(?:\.[A-Za-z_]\w*)+")
IN_REPOSITORY = re.compile(r"(?<![\w/.-])(?:bench/\w+\.py|(?:packages|tests|docs|tools|examples)/[\w./-]*\w)")
IN_PACKAGE = re.compile(r"(?<![\w/.-])scaler_[a-z]+/(?:[\w./]*\w)?")
ARCHITECTURE_LINES = 150
PORT = re.compile(r"(?<=tcp://127\.0\.0\.1:)234[567]\b")


def relative(document: Path) -> str:
    """The path in the repository, as the name of a test."""
    return str(document.relative_to(ROOT))


def run(block: Block, names: dict[str, Any], address: str) -> str:
    """What a block prints; names that it defines are there for the next one."""
    first = int(address.rpartition(":")[2]) - 2345
    text = PORT.sub(lambda found: str(first + int(found[0])), block.text)
    source = "\n" * (block.line - 1) + text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(block.document), "exec", dont_inherit=True), names)
    return printed.getvalue()


def agrees(printed: str, expected: str) -> bool:
    """Whether a line is what the comment says; a comment may end in dots."""
    return printed.startswith(expected.removesuffix("...")) if expected.endswith("...") else printed == expected


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each != TUTORIAL], ids=relative)
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
def test_toml_starts_a_cluster(block: Block, tmp_path: Path) -> None:
    """Every file is right, and those that need nothing but this host start a cluster that works."""
    port = free_ports(4)
    text = (
        block.text.replace(":2345", f":{port}")
        .replace(":2346", f":{port + 1}")
        .replace("8081", f"{port + 3}")
        .replace("/tmp/scaler-cluster.log", str(tmp_path / "cluster.log"))
    )
    file = tmp_path / "scaler.toml"
    file.write_text(text, "utf-8")
    cluster = read_cluster(file)
    elsewhere = [word for service in cluster.services for word in service.words if word in KINDS]
    if set(elsewhere) - {"baremetal_native"} or cluster.scheduler is None:
        return
    with Terminal(PROGRAMS / "scaler", file) as launcher:
        launcher.read_until(f"the {cluster.services[-1].name} runs")
        with Client(str(cluster.scheduler)) as client:
            assert client.submit(abs, -5).result(SECONDS) == 5
        assert launcher.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("document", [*DOCUMENTS, *INTERNAL], ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(FENCED, "", document.read_text("utf-8"))
    for match in LINK.finditer(text):
        target = (document.parent / match["path"]) if match["path"] else document
        assert target.exists(), f"{document.name} links to {match['path']}"
        if match["anchor"] and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert match["anchor"] in anchors, f"{document.name} links to {match['anchor']}"


@cache
def is_name(dotted: str) -> bool:
    """Whether a dotted name is a module, or what one defines."""
    for source in SOURCES:
        folder, names = source, dotted.split(".")
        while names and (folder / names[0]).is_dir():
            folder, names = folder / names[0], names[1:]
        if not names:
            return True
        module, names = folder / f"{names[0]}.py", names[1:]
        if module.is_file():
            text = module.read_text("utf-8")
            return all(re.search(rf"^\s*(?:(?:class|def) )?{name}\b", text, re.MULTILINE) for name in names)
    return False


def missing(text: str) -> Iterator[str]:
    """The modules, their names, and the paths in a text that do not exist."""
    yield from (name for name in set(DOTTED.findall(text)) if not is_name(name))
    yield from (path for path in set(IN_REPOSITORY.findall(text)) if not (ROOT / path).exists())
    yield from (path for path in set(IN_PACKAGE.findall(text)) if not any((src / path).exists() for src in SOURCES))


@pytest.mark.parametrize("document", [*DOCUMENTS, *INTERNAL], ids=relative)
def test_modules_and_paths_exist(document: Path) -> None:
    assert list(missing(document.read_text("utf-8"))) == []


@pytest.mark.parametrize("package", [source.parent for source in SOURCES], ids=lambda path: str(path.name))
def test_modules_and_paths_in_comments_exist(package: Path) -> None:
    found = {str(file.relative_to(ROOT)): list(missing(file.read_text("utf-8"))) for file in package.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= ARCHITECTURE_LINES


def test_quoted_errors_are_those_of_the_sources() -> None:
    """Those that no example raises; dots stand for what differs, or for the end of a line of the source."""
    sources = "\n".join(file.read_text("utf-8") for source in SOURCES for file in source.rglob("*.py"))
    quoted = "".join(block.text for block in blocks(ROOT / "docs" / "troubleshooting.md", "text"))
    for part in re.split("…|\n", quoted):
        assert part.strip() in sources


def listed(listing: Path) -> set[Path]:
    """The pages that a README of the documentation lists."""
    links = re.findall(r"^- \[.*?\]\((.*?\.md)\)", listing.read_text("utf-8"), re.MULTILINE)
    assert len(links) == len(set(links))
    return {(listing.parent / link).resolve() for link in links}


@cache
def site() -> frozenset[Path]:
    """The pages of the site. Its settings are read as text, since they import Sphinx, which not every Python has."""
    assigned = re.search(r"^include_patterns = (\[.*?\])", (ROOT / "docs" / "conf.py").read_text("utf-8"), re.M | re.S)
    assert assigned is not None
    patterns = ast.literal_eval(assigned[1])
    return frozenset(page for pattern in patterns for page in ROOT.glob(pattern.replace("**", "**/*")))


def test_every_page_is_listed() -> None:
    """Lists are the navigation of the site, too."""
    start = ROOT / "docs" / "README.md"
    assert listed(start) | listed(ROOT / "docs" / "design" / "README.md") == site() - {start}
    assert {*DOCUMENTS, *(ROOT / "docs" / "design").glob("*.md")} <= site()


def test_options_are_generated_from_the_command_lines() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "options.py"))
    assert tool["PAGE"].read_text("utf-8") == tool["page"](), "docs/options.md is not what `make api` writes"


def test_pages_of_the_site_link_to_pages_of_the_site() -> None:
    linked = {
        (page.parent / match["path"]).resolve(): relative(page)
        for page in site()
        for match in LINK.finditer(re.sub(FENCED, "", page.read_text("utf-8")))
        if match["path"].endswith(".md")
    }
    assert {relative(target): page for target, page in linked.items() if target not in site()} == {}


@pytest.mark.soak
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="Sphinx needs Python 3.11")
    recipe = re.search(r"^docs:.*\n\t\$\(RUN\)/python (.*) site$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe is not None
    subprocess.run([sys.executable, *recipe[1].split(), tmp_path], cwd=ROOT, check=True)
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert tmp_path.joinpath(document.relative_to(ROOT)).with_suffix(".html").exists(), document
    assert "docs/README.html" in (tmp_path / "index.html").read_text("utf-8")
