# SPDX-License-Identifier: Apache-2.0
"""Finds the description of the Spark that is installed, and refuses those that no suite has run with."""

from __future__ import annotations

import sys
from functools import cache

from packaging.version import InvalidVersion, Version

from volley.errors import VersionNotSupported
from volley.spark_versions.base import SparkVersion
from volley.spark_versions.spark_3_5 import SPARK_3_5
from volley.spark_versions.spark_4_0 import SPARK_4_0
from volley.spark_versions.spark_4_1 import SPARK_4_1
from volley.spark_versions.spark_4_2 import SPARK_4_2
from volley.spark_versions.spark_4_3 import SPARK_4_3

VERSIONS: tuple[SparkVersion, ...] = (SPARK_3_5, SPARK_4_0, SPARK_4_1, SPARK_4_2, SPARK_4_3)
"""The tested releases, oldest first."""

INSTALLABLE = tuple(version for version in VERSIONS if version.oldest_python <= sys.version_info[:2])
"""Those for the Python of this process."""

_INSTALL = f"pip install 'pyspark=={INSTALLABLE[-1].release}.*'"
ALLOW_UNTESTED = "spark.volley.allowUntestedSpark"


@cache
def current() -> SparkVersion:
    """The release of the PySpark of this process. One that is newer than all tested ones is taken for the newest.

    So is none at all: worker daemons need not have it.
    """
    try:
        import pyspark
    except ImportError:
        return VERSIONS[-1]
    return find(pyspark.__version__) or VERSIONS[-1]


def find(version: str) -> SparkVersion | None:
    """The description of a tested release; None for others."""
    release = _release(version)
    return next((known for known in VERSIONS if known.release == release), None)


def check_pyspark() -> str:
    """The version of the installed PySpark. VersionNotSupported if it is older than all tested releases, or missing.

    Its modules are in other places, so this is asked before anything is imported from it.
    """
    try:
        import pyspark
    except ImportError as error:
        raise VersionNotSupported(f"PySpark cannot be imported: {error}.", hint=_remedy()) from error
    installed = str(pyspark.__version__)
    if _is_older(installed):
        raise VersionNotSupported(f"PySpark {installed} is too old for Volley.", hint=_remedy())
    return installed


def check_session(python: str, jvm: str, allow_untested: bool) -> None:
    """Raise VersionNotSupported unless PySpark and the Spark of its JVM are the same release, and a tested one.

    A release that is newer than all tested ones can be allowed.
    """
    if _release(python) != _release(jvm):
        raise VersionNotSupported(
            f"PySpark {python} is connected to Spark {jvm}.",
            hint=f"Install the PySpark of the same release: pip install 'pyspark=={_release(jvm)}.*'.",
        )
    if find(jvm) is not None:
        return
    if _is_older(jvm):
        raise VersionNotSupported(f"Spark {jvm} is too old for Volley.", hint=_remedy())
    if not allow_untested:
        raise VersionNotSupported(
            f"Spark {jvm} is not among the releases that Volley is tested with ({tested_releases()}).",
            hint=f"{_remedy()} Or set {ALLOW_UNTESTED}=true, at the risk of errors and wrong results.",
        )


def tested_releases() -> str:
    """For messages: 4.0, 4.1, ..."""
    return ", ".join(version.release for version in VERSIONS)


def _release(version: str) -> str:
    try:
        parsed = Version(version)
    except InvalidVersion:
        # Vendors append their own suffixes.
        return ".".join(version.split(".")[:2])
    return f"{parsed.major}.{parsed.minor}"


def _is_older(version: str) -> bool:
    def key(release: str) -> tuple[int, ...]:
        return tuple(int(part) for part in release.split(".") if part.isdigit())

    return key(_release(version)) < key(VERSIONS[0].release)


def _remedy() -> str:
    return f"Volley is tested with Spark {tested_releases()}: {_INSTALL}."
