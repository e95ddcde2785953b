# SPDX-License-Identifier: Apache-2.0
"""What the pyproject.toml of a package declares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_project(folder: Path) -> dict[str, Any]:
    """The table `project`."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return project
