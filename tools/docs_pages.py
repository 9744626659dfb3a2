"""MkDocs hook: pages of the documentation site that are made from files in the root of the repository.

README.md becomes the start page. Links in these files are relative to the repository, so they are rewritten to the
pages of the site; links to other files of the repository stay as plain text. Formulas of notebooks become MathML, which
browsers display without a script from another host.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

#: file of the repository → page of the site
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
}

#: code, which is left as it is, or a formula: $$on a line of its own$$ or $within a line$
FORMULA = re.compile(r"<(pre|code|script|style)\b.*?</\1>|\$\$(.+?)\$\$|\$([^$\n<]+?)\$", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def rewrite_links(text: str, source: str) -> str:
    """Return the Markdown `text` of the repository file `source` with its links rewritten to pages of the site."""
    folder = posixpath.dirname(PAGES.get(source, source.removeprefix("docs/"))) or "."  # of the page, on the site

    def rewrite(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path not in PAGES and not path.startswith("docs/"):
            return label  # a file that is not part of the site
        linked = posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), folder)
        return f"{image}[{label}]({linked}{anchor})"

    return LINK.sub(rewrite, text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages made from files of the repository."""
    for source, page in PAGES.items():
        text = rewrite_links((ROOT / source).read_text(encoding="utf-8"), source)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links from pages in `docs/` to files in the root of the repository."""
    source = f"docs/{page.file.src_uri}"
    return markdown if page.file.src_uri in PAGES.values() else rewrite_links(markdown, source)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Convert LaTeX formulas of a notebook to MathML."""

    def to_mathml(match: re.Match[str]) -> str:
        """Convert one formula; code stays."""
        if match[1]:
            return match[0]
        return convert(unescape(match[2] or match[3]), display="block" if match[2] else "inline")

    return FORMULA.sub(to_mathml, html) if page.file.src_uri.endswith(".ipynb") else html
