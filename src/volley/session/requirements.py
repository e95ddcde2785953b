# SPDX-License-Identifier: Apache-2.0
"""Whether the installed packages and Java are those that this release was tested with, and what to install if not.

Spark itself is not among them: `volley.spark_versions` knows its releases.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from volley.errors import VersionNotSupported
from volley.spark_versions.base import SparkVersion

DISTRIBUTION = "volley-spark"

# Volley works without them, and a wrong version only concerns actions that use them.
_OPTIONAL = ("pandas",)


@dataclass(frozen=True)
class Installed:
    """A required package. `version` is None if it is missing."""

    requirement: Requirement
    version: str | None
    is_optional: bool

    @property
    def problem(self) -> str | None:
        """What is wrong with it; None if nothing is."""
        name = self.requirement.name
        if self.version is None:
            return None if self.is_optional else f"{name} is missing"
        if Version(self.version) in self.requirement.specifier:
            return None
        return f"{name} {self.version} is outside {self.requirement.specifier}"


def check_packages() -> None:
    """Raise VersionNotSupported if a package that Volley needs is missing, or one with which rows could be wrong."""
    required = [package for package in wrong_packages() if not package.is_optional]
    if required:
        raise VersionNotSupported(f"{describe(required)}.", hint=f"Run: {install_command(required)}")


@cache
def wrong_packages() -> tuple[Installed, ...]:
    """The installed packages that have a problem. Cached: the packages of a running process do not change."""
    return tuple(package for package in installed_packages() if package.problem is not None)


def describe(packages: Sequence[Installed]) -> str:
    return "; ".join(str(package.problem) for package in packages)


def installed_packages() -> tuple[Installed, ...]:
    """The packages that Volley requires, as they are installed. Empty if Volley itself is not an installed package."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(inspect_packages(declared))


def inspect_packages(declared: Sequence[str]) -> list[Installed]:
    """The packages that these requirements name, but for PySpark and the extras that are about something else."""
    found = []
    for text in declared:
        requirement = Requirement(text)
        extra = next((extra for extra in ("", *_OPTIONAL) if _applies(requirement, extra)), None)
        is_optional = extra != ""
        if (
            extra is None
            or requirement.name == "pyspark"
            or (is_optional and requirement.name not in _OPTIONAL)
        ):
            continue
        found.append(Installed(requirement, _version(requirement.name), is_optional))
    return found


def install_command(packages: Sequence[Installed]) -> str:
    """The command that installs versions with which Volley was tested."""
    wanted = [f"{package.requirement.name}{package.requirement.specifier}" for package in packages]
    return f"pip install {shlex.join(wanted)}"


def java_problem(version: str, spark: SparkVersion) -> str | None:
    """What is wrong with a Java of this version (`java.specification.version`); None if nothing is."""
    major = version.removeprefix("1.").partition(".")[0]
    if major.isdigit() and int(major) in spark.java_releases:
        return None
    known = ", ".join(map(str, spark.java_releases))
    return f"Java {major} is not among those of Spark {spark.release} with which Volley works ({known})"


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether this Python needs it with this extra; the empty one is none."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
