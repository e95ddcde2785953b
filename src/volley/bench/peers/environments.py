# SPDX-License-Identifier: Apache-2.0
"""Environments of other engines: made on first use, from the package index that pip is set up with."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from volley.bench.data import GenerationFailed, cache_directory, generate_once

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    # Their own dependencies choose the versions of Arrow that they need.
    "sail": ("pysail", "pyspark-client==4.2.*", "pandas<3", "pyarrow"),
    "duckdb": ("duckdb", "pyarrow"),
    "polars": ("polars", "pyarrow"),
    "daft": ("daft",),
}
_INSTALL_SECONDS = 900


class EngineUnavailable(GenerationFailed):
    """An engine cannot be installed or started; the others go on."""


def engine_python(engine: str, directory: Path | None = None) -> str:
    """The interpreter that runs an engine. Raises EngineUnavailable if its packages cannot be installed."""
    requirements = REQUIREMENTS.get(engine)
    if requirements is None:
        return sys.executable
    # Another interpreter, or other requirements, are another environment.
    key = hashlib.sha256(repr((requirements, sys.version)).encode()).hexdigest()[:12]
    target = (directory or cache_directory("peers")) / f"{engine}-{key}"
    try:
        generate_once(target, f"The environment of {engine}", lambda partial: _make(partial, requirements))
    except EngineUnavailable:
        raise
    except GenerationFailed as error:
        raise EngineUnavailable(error.message) from error
    return str(target / "bin" / "python")


def _make(directory: Path, requirements: tuple[str, ...]) -> None:
    python = str(directory / "bin" / "python")
    _run([sys.executable, "-m", "venv", str(directory)])
    _run([python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements])


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(f"its packages were not installed within {_INSTALL_SECONDS} s.") from None
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.strip().splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["pip says nothing"]
        raise EngineUnavailable(f"its packages cannot be installed: {errors[-1].strip()}")
