# SPDX-License-Identifier: Apache-2.0
"""Writes constraints.txt: the exact versions, of everything that development and CI install, in this environment.

    python scripts/lock.py             write it
    python scripts/lock.py --check     exit status 1 if a version is outside the ranges of pyproject.toml

scripts/venv.sh installs with it, so that a build does not change because somebody else released something. It names no
index: pip takes the packages from wherever it is configured to.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "constraints.txt"
# The lock is for this Python and newer ones: some packages have no later release for older Pythons.
LOCKED_FOR = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
HEAD = """\
# Written by scripts/lock.py: the versions that CI installs. Ranges are in pyproject.toml.
"""


def declared(extras: tuple[str, ...] = ("dev",)) -> list[Requirement]:
    """The requirements of pyproject.toml with these extras, and those of the extras that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
                found += declared(tuple(sorted(requirement.extras)))
            else:
                found.append(requirement)
    return [one for one in found if one.marker is None or one.marker.evaluate(LOCKED_FOR)]


def resolve() -> dict[str, str]:
    """The installed version of every requirement, and of what these require in turn."""
    versions: dict[str, str] = {}
    waiting = [(requirement, frozenset(requirement.extras)) for requirement in declared()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        versions[name] = installed.version
        for text in installed.requires or ():
            needed = Requirement(text)
            environments: list[dict[str, str]] = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if needed.marker is None or any(needed.marker.evaluate(one) for one in environments):
                waiting.append((needed, frozenset(needed.extras)))
    return versions


def read() -> dict[str, str]:
    """The versions of the lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE))


def problems() -> list[str]:
    """What pyproject.toml declares and the lock file does not satisfy."""
    locked = read()
    found = []
    for requirement in declared():
        version = locked.get(canonicalize_name(requirement.name))
        if version is None:
            found.append(f"{requirement} is not locked")
        elif not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement} is locked at {version}")
    return found


def main() -> int:
    if "--check" in sys.argv:
        for problem in (found := problems()):
            print(problem, file=sys.stderr)
        return 1 if found else 0
    lines = [f"{name}=={version}\n" for name, version in sorted(resolve().items())]
    LOCK.write_text(HEAD + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
