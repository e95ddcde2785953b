# SPDX-License-Identifier: Apache-2.0
"""The checks of `volley doctor`: one function each, which returns what it found and how to fix it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from volley.errors import VersionNotSupported
from volley.plugins import KINDS, installed, load
from volley.process.machine import available_memory_bytes
from volley.session.requirements import describe, install_command, installed_packages, java_problem
from volley.spark_versions.registry import check_pyspark, check_session, current, tested_releases

_JAVA = 17
_MEMORY_GIB = 4
_SHARED_MEMORY_MIB = 512
_GIB = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    """`status` is ok, warning (works, but not well) or error. `remedy` is empty if there is nothing to do."""

    name: str
    status: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """`needs` names the checks that must pass before this one."""

    name: str
    title: str
    examine: Callable[[], Finding]
    needs: tuple[str, ...] = ()


def check_java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = "Install Java 17: apt-get install openjdk-17-jre-headless, or your system's package."
    if java is None:
        return Finding("java", "error", "no java on PATH, and JAVA_HOME is not set", install)
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        mend = "Correct or unset JAVA_HOME." if home else install
        return Finding("java", "error", f"{java} does not run: {error}", mend)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', output.stderr + output.stdout)
    if version is None:
        return Finding(
            "java", "warning", f"{java} does not print a version", "Check that it is Java 17 or newer."
        )
    if int(version[1]) < _JAVA:
        return Finding("java", "error", f"{java} is Java {version[1]}", install)
    if problem := java_problem(version[1], current()):
        return Finding("java", "warning", f"{java}: {problem}", install)
    return Finding("java", "ok", f"Java {version[1]} ({java})")


def check_packages() -> Finding:
    """Compare installed versions with the ranges that this release declares and was tested with."""
    installed = installed_packages()
    wrong = [package for package in installed if package.problem is not None]
    if wrong:
        status = "warning" if all(package.is_optional for package in wrong) else "error"
        return Finding("packages", status, describe(wrong), f"Run: {install_command(wrong)}")
    found = [f"{package.requirement.name} {package.version}" for package in installed if package.version]
    return Finding("packages", "ok", ", ".join([f"Python {platform.python_version()}", *found]))


def check_spark() -> Finding:
    """Compare the installed PySpark with the releases that Volley is tested with."""
    try:
        version = check_pyspark()
        check_session(version, version, allow_untested=False)
    except VersionNotSupported as error:
        return Finding("spark", "error", error.message, error.hint)
    return Finding("spark", "ok", f"PySpark {version} (tested: {tested_releases()})")


def check_memory() -> Finding:
    memory = available_memory_bytes()
    found = f"{memory / _GIB:.1f} GiB"
    if memory < _MEMORY_GIB * _GIB:
        return Finding(
            "memory",
            "warning",
            found,
            f"Below {_MEMORY_GIB} GiB Java and the native engine compete for memory: "
            "lower spark.driver.memory to 1g.",
        )
    return Finding("memory", "ok", found)


def check_shared_memory() -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Finding("shared memory", "warning", f"{path} is missing", "Mount a tmpfs there.")
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix="volley-doctor-") as file:
            file.write(b"volley")
    except OSError as error:
        return Finding("shared memory", "warning", f"{path}: {error}", f"Make {path} writable for this user.")
    free = shutil.disk_usage(path).free
    found = f"{path}, {free / _GIB:.1f} GiB free"
    if free < _SHARED_MEMORY_MIB * _MIB:
        return Finding("shared memory", "warning", found, "In a container: start it with --shm-size=2g.")
    return Finding("shared memory", "ok", found)


def check_loopback() -> Finding:
    """Check loopback ports, over which PySpark talks to its JVM."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        return Finding(
            "loopback port", "error", str(error), "Allow connections to 127.0.0.1 in the firewall."
        )
    return Finding("loopback port", "ok", f"127.0.0.1:{port} answers")


def check_plugins() -> Finding:
    """List the transports, shuffle stores and data sources that a session can name, and import those of others."""
    broken = []
    for kind in KINDS:
        for plugin in installed(kind):
            try:
                load(kind, plugin.name)
            except Exception as error:
                broken.append(f"{kind.title} {plugin}: {error}")
    found = "; ".join(
        f"{kind.title}s: {', '.join([*kind.builtin, *map(str, installed(kind))]) or 'none'}" for kind in KINDS
    )
    if broken:
        return Finding("plug-ins", "warning", f"{found}. {' '.join(broken)}", "Update or remove its package.")
    return Finding("plug-ins", "ok", found)


def check_native_query() -> Finding:
    """Run one small query natively on a temporary Spark session."""
    import volley
    from volley.bench.spark import start_spark
    from volley.observe.spark_tasks import SparkTasks

    spark = start_spark("volley doctor", "local[1]", {"spark.driver.memory": "1g"})
    try:
        volley.enable(spark)
        with SparkTasks(spark) as tasks:
            rows = spark.sql(
                "select id % 3 as k, sum(id) as s from range(1000) group by 1 order by 1"
            ).collect()
        report = volley.last_query(spark)
    finally:
        spark.stop()
    if report is None or report.engine != "native" or tasks.count:
        reasons = "; ".join(str(reason) for reason in report.reasons) if report else "Volley saw no query"
        return Finding("native query", "error", f"ran on Spark: {reasons}", "Please report this.")
    if [tuple(row) for row in rows] != [(0, 166833), (1, 166167), (2, 166500)]:
        return Finding("native query", "error", f"wrong rows: {rows}", "Please report this.")
    return Finding("native query", "ok", f"{report.seconds:.3f} s, no Spark task")


CHECKS: tuple[Check, ...] = (
    Check("java", "Java", check_java),
    Check("packages", "Package versions", check_packages),
    Check("spark", "Spark", check_spark),
    Check("plug-ins", "Plug-ins", check_plugins),
    Check("memory", "Memory", check_memory),
    Check("shared memory", "Shared memory", check_shared_memory),
    Check("loopback port", "Loopback port", check_loopback),
    Check(
        "native query",
        "A native query",
        check_native_query,
        needs=("java", "packages", "spark", "loopback port"),
    ),
)
