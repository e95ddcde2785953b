# SPDX-License-Identifier: Apache-2.0
"""Finds Java and Spark's jars on the machine of a worker, without starting anything that is not needed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VERSION_SECONDS = 30.0
_JAVA_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
_SPARK_VERSION = re.compile(r"spark-catalyst_[\d.]+-(.+)\.jar")

SENT_PACKAGES = (
    *("java.lang", "java.math", "java.text", "java.time", "java.util", "sun.util.calendar"),
    *("scala", "org.apache.spark"),
)
"""The packages of Spark and the JDK whose objects may be in a program that is sent."""


@dataclass(frozen=True)
class JavaInstallation:
    """`executable` is Java itself, `class_path` has Spark's jars. `versions` is of both, such as `4.1.0/17`."""

    executable: str
    class_path: str
    versions: str = ""

    @property
    def spark(self) -> str:
        """The version of Spark; empty if it is that of this process."""
        return self.versions.partition("/")[0]


@dataclass(frozen=True)
class JvmAccess:
    """Whether a worker evaluates programs. `problem` says why not; `versions` are those of its installation."""

    versions: str = ""
    problem: str = ""


NOT_PERMITTED = JvmAccess(problem="it was started without --jvm-expressions")


def find_java(environment: Mapping[str, str] = os.environ) -> JavaInstallation | str:
    """Java and Spark where the environment names them, or where they are installed; or what is missing."""
    home = environment.get("JAVA_HOME")
    named = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    executable = named or shutil.which("java", path=environment.get("PATH", os.defpath))
    if executable is None:
        return "Java is not installed there: install it, or set JAVA_HOME"
    jars = _find_jars(environment)
    if jars is None:
        return (
            "Spark's jars are not there: pip install volley-spark instead of volley-worker, or set SPARK_HOME"
        )
    java = _java_version(executable)
    if not java:
        return f"{executable} does not run"
    return JavaInstallation(executable, str(jars.parent / "*"), join_versions(_spark_version(jars), java))


def executor_java(pid: int) -> JavaInstallation | str:
    """What the JVM of a Spark executor runs with, as the system describes its process."""
    process = Path(f"/proc/{pid}")
    try:
        executable = str((process / "exe").readlink())
        words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")]
        variables = [os.fsdecode(pair) for pair in (process / "environ").read_bytes().split(b"\0")]
        directory = (process / "cwd").readlink()
    except OSError as error:
        return f"the executor's process cannot be read: {error}"
    class_path = next((pair[10:] for pair in variables if pair.startswith("CLASSPATH=")), "")
    for name in ("-cp", "-classpath", "--class-path"):
        if name in words[:-1]:
            class_path = words[words.index(name) + 1]
    parts = [str(directory / part) for part in class_path.split(os.pathsep) if part]
    return JavaInstallation(executable, os.pathsep.join(parts))


def join_versions(spark: str, java: str) -> str:
    """A key for versions: with equal keys, programs and their results are the same.

    Only Java's major version counts.
    """
    return f"{spark}/{java}"


def describe_versions(versions: str) -> str:
    spark, _, java = versions.partition("/")
    return f"Spark {spark} and Java {java}"


def _find_jars(environment: Mapping[str, str]) -> Path | None:
    """The jar of Catalyst, beside which all others are."""
    directories = [Path(home) / "jars"] if (home := environment.get("SPARK_HOME")) else []
    package = importlib.util.find_spec("pyspark")
    if package is not None and package.origin:
        directories.append(Path(package.origin).parent / "jars")
    for directory in directories:
        for jar in sorted(directory.glob("spark-catalyst_*.jar")):
            return jar
    return None


def _spark_version(catalyst: Path) -> str:
    match = _SPARK_VERSION.fullmatch(catalyst.name)
    return match[1] if match else ""


def _java_version(executable: str) -> str:
    """The number of Java's release, from the file that every JDK has, or else from Java itself."""
    release = Path(executable).resolve().parent.parent / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        try:
            asked = subprocess.run(
                [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        text = asked.stderr
    match = _JAVA_VERSION.search(text)
    return match[1] if match else ""
