# SPDX-License-Identifier: Apache-2.0
"""What mkdocs does besides: pages from the root of the repository, and links that leave the site.

Pages are written to be read in the repository. Links to its root pages lead to their copies on the site; links to other
files become the name of the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root, and one from docstrings."""
    for source, page in ROOT_PAGES.items():
        text = rewrite(
            (ROOT / source).read_text(encoding="utf-8"), PurePosixPath(source), PurePosixPath(page)
        )
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "api-docstrings.md", content=docstrings()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    place = PurePosixPath(page.file.src_uri)
    if page.file.generated_by is not None:
        return markdown
    return rewrite(markdown, PurePosixPath("docs") / place, place)


def rewrite(markdown: str, source: PurePosixPath, page: PurePosixPath) -> str:
    """Change the links of a page of the repository at `source` for the site, where it is at `page`."""

    def change(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        if not link or "://" in link or link.startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(str(source.parent / link))
        if target in ROOT_PAGES:
            found = ROOT_PAGES[target]
        elif target == "docs/decisions":
            found = "decisions/README.md"
        elif target.startswith("docs/"):
            found = target.removeprefix("docs/")
        elif target == "README.md":
            found = "index.md"
        else:
            return f"`{target}`"
        return f"[{text}]({posixpath.relpath(found, str(page.parent))}{anchor})"

    return _LINK.sub(change, markdown)


def docstrings() -> str:
    """A page of everything public, which the plug-in fills with docstrings."""
    import volley

    functions = [name for name in volley.__all__ if name[0].islower() and name != "errors"]
    classes = [name for name in volley.__all__ if name[0].isupper()]
    parts = ["# API by docstrings\n\n[Public API](api.md) is the same as tables.\n"]
    for title, names in (("Functions", functions), ("Classes", classes)):
        parts.append(f"\n## {title}\n")
        parts += [f"\n::: {_home(volley, name)}\n" for name in names if not name.startswith("__")]
    parts.append("\n## Errors\n\n::: volley.errors\n    options:\n      show_root_heading: false\n")
    return "".join(parts)


def _home(package: Any, name: str) -> str:
    return f"{getattr(package, name).__module__}.{name}"
