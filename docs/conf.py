"""Settings of the site that `make docs` builds, whose pages are the Markdown files that docs/README.md lists."""

import re
from pathlib import Path

from sphinx.application import Sphinx

START = "docs/README"
PAGE = re.compile(r"^- \[.*?\]\((.*?)\.md\)", re.MULTILINE)
REDIRECT = f'<!doctype html><meta http-equiv="refresh" content="0; url={START}.html">\n'

project = "Scaler"
author = "the authors of Scaler"
root_doc = START
include_patterns = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "clients/*/README.md",
    "docs/**.md",
    "examples/README.md",
]
exclude_patterns = [".*", "bench", "packages", "site", "tests", "typings"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"
html_theme = "furo"
html_title = "Scaler"
html_copy_source = False


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Make the lists of pages in a README of docs, one in each section, the navigation."""
    if not page.startswith("docs/") or not page.endswith("README"):
        return
    for section in source[0].split("\n## "):
        title, _, body = section.partition("\n")
        if pages := "\n".join(PAGE.findall(body)):
            caption = "" if title.startswith("#") else f":caption: {title}\n"
            source[0] += f"\n```{{toctree}}\n:hidden:\n{caption}\n{pages}\n```\n"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Have the folder of the site lead to its first page."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(REDIRECT, "utf-8")


def setup(app: Sphinx) -> None:
    """Add what the settings cannot say."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
