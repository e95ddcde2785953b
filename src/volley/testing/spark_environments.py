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
    directory = parent / f"spark-{version.release}"
    wanted = f"pyspark=={version.tested}"
    ready, python = directory / ".ready", directory / "bin" / "python"
    if ready.exists() and ready.read_text() == wanted:
        return python
    venv.create(directory)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    made = subprocess.run(
        [*pip, "install", "--quiet", *_FAST, wanted], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise EnvironmentUnavailable(f"{wanted} cannot be installed: {made.stderr.strip()[-300:]}")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Its own packages come first. Those of an editable installation are found by its own .pth files.
    shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (directory / "lib" / name / "site-packages" / "shared.pth").write_text(shared)
    ready.write_text(wanted)
    return python
