# SPDX-License-Identifier: Apache-2.0
"""Generates TPC-H data as Parquet, once per machine and scale, in several files per table."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from math import ceil
from pathlib import Path

from volley.errors import VolleyError

TABLES: tuple[str, ...] = (
    "customer",
    "lineitem",
    "nation",
    "orders",
    "part",
    "partsupp",
    "region",
    "supplier",
)

_POLL_SECONDS = 0.2


class GenerationFailed(VolleyError):
    code = "DATA_GENERATION_FAILED"


def tpch_data(
    scale: float,
    directory: Path | None = None,
    on_progress: Callable[[int], None] = lambda written_bytes: None,
) -> Path:
    """Return the directory with one folder per table; generate it if it does not exist.

    Data gets its final name only when it is complete, so an interrupted generation is never mistaken for data. Other
    processes that need the same data wait for the first one. `on_progress` gets the bytes generated so far.
    """
    home = directory or cache_directory()
    return generate_once(home / _name(scale), "TPC-H", lambda partial: _generate(scale, partial, on_progress))


def generate_once(target: Path, what: str, generate: Callable[[Path], None]) -> Path:
    """`target`, filled by `generate` unless it exists; see `tpch_data`. `generate` gets an empty directory."""
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _generate_aside(target, generate)
    except OSError as error:
        raise GenerationFailed(
            f"{what} data cannot be written to {target.parent}: {error}.",
            hint="Choose another directory with --data DIR.",
        ) from error
    return target


def _generate_aside(target: Path, generate: Callable[[Path], None]) -> None:
    partial = target.with_name(f".{target.name}.partial")
    # Remove what a killed run left behind. We hold the lock, so nobody is writing there.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        generate(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cache_directory(suite: str = "tpch") -> Path:
    """The default directory for generated data: the user's cache, as defined by XDG."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "volley" / suite


def size_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*.parquet"))


def _name(scale: float) -> str:
    # The generator's version is part of the name: another release may write other files.
    return f"scale-{scale:g}-parts-{_parts(scale)}-tpchgen-{_generator_version()}"


def _parts(scale: float) -> int:
    # At least four, so that three workers share the files and one of them gets two.
    return max(4, ceil(scale))


def _generator_version() -> str:
    try:
        return metadata.version("tpchgen-cli")
    except metadata.PackageNotFoundError:
        raise GenerationFailed(
            "the TPC-H generator tpchgen-cli is not installed.", hint="Run: pip install 'volley-spark[bench]'"
        ) from None


def _generator() -> str:
    # Look in the environment's own directory first, so that it need not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("tpchgen-cli", path=path)
    if found is None:
        raise GenerationFailed(
            "tpchgen-cli is installed but not on PATH.", hint="Activate the environment that holds it."
        )
    return found


def _generate(scale: float, target: Path, on_progress: Callable[[int], None]) -> None:
    command = [_generator(), "parquet", "-s", f"{scale:g}", "--parts", str(_parts(scale))]
    _run([*command, "--output-dir", str(target)], lambda: on_progress(size_bytes(target)))
    missing = [table for table in TABLES if not list((target / table).glob("*.parquet"))]
    if missing:
        raise GenerationFailed(f"tpchgen-cli wrote no {', '.join(missing)}.")


def _run(command: list[str], tick: Callable[[], None]) -> None:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise GenerationFailed(f"tpchgen-cli ended with status {process.returncode}: {errors.strip()}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
