# SPDX-License-Identifier: Apache-2.0
"""Environments with other releases of Spark, for tests.

Each has only PySpark of its own, from the package registry. Everything else is that of the environment which makes it,
so that two of them differ in nothing but Spark.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from volley.spark_versions.base import SparkVersion

# PySpark comes as a source archive. Compressing the wheel, and compiling modules that nobody imports, takes longest.
_FAST = ("--config-settings=--build-option=--compression=stored", "--no-compile")


class EnvironmentUnavailable(Exception):
    """The environment could not be made; says why."""


def spark_environment(version: SparkVersion, parent: Path) -> Path:
    """The Python of the environment with this release in the directory `parent`. Made when it is first asked for.

    Raises EnvironmentUnavailable.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    directory = parent / f"spark-{version.release}-{name}"
    wanted = f"pyspark=={version.tested}"
    shared = sysconfig.get_path("purelib")
    ready, python = directory / ".ready", directory / "bin" / "python"
    state = f"{wanted}, with the packages of {shared}"
    if ready.exists() and ready.read_text() == state:
        return python
    venv.create(directory)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    made = subprocess.run(
        [*pip, "install", "--quiet", *_FAST, wanted], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise EnvironmentUnavailable(f"{wanted} cannot be installed: {made.stderr.strip()[-300:]}")
    # Its own packages come first. Those of an editable installation are found by its own .pth files.
    packages = f"import site; site.addsitedir({shared!r})\n"
    (directory / "lib" / name / "site-packages" / "shared.pth").write_text(packages)
    ready.write_text(state)
    return python
