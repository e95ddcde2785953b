# SPDX-License-Identifier: Apache-2.0
"""Packages of plug-ins that Python and its metadata can find, as if they were installed, without pip."""

from __future__ import annotations

from pathlib import Path

from helpers.projects import read_project
from volley.testing.sources import Numbers

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def place(project: Path, directory: Path) -> None:
    """Make the package of `project` importable from `directory`, with its entry points."""
    declared = read_project(project)
    name, version = declared["name"].replace("-", "_"), declared["version"]
    (directory / name).symlink_to(project / "src" / name)
    write_metadata(directory, name, version, declared["entry-points"])


def write_metadata(directory: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """Declare a distribution with entry points in `directory`."""
    metadata = directory / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


class PluginNumbers(Numbers):
    """Under a name that no other test registers."""

    @classmethod
    def name(cls) -> str:
        return "plugin_numbers"
