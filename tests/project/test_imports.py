# SPDX-License-Identifier: Apache-2.0
"""A module imports only what the life of a query has already passed through."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import volley

ROOT = Path(volley.__file__).parent

# Each package, and each module beside them, may import itself and what stands before it.
ORDER = [
    "version",
    "python_versions",
    "field_types",
    "ids",
    "errors",
    "batches",
    "ended_queries",
    "membership",
    "plugins",
    "option_values",
    "options",
    "config",
    "spark_versions",
    "process",
    "token_middleware",
    "security",
    "user_token",
    "events",
    "fetch_counters",
    "cancellation",
    "byte_semaphore",
    "identity_cache",
    "lru_cache",
    "run_ends",
    "signal_handlers",
    "times",
    "storage",
    "plan",
    "frame_cache",
    "jvm",
    "formats",
    "support",
    "codes",
    "qualification",
    "stages",
    "lower",
    "splits",
    "rpc",
    "registry",
    "shuffle",
    "worker",
    "transport",
    "coordinator",
    "cluster",
    "autoscaler",
    "connect",
    "session_settings",
    "call_site",
    "bridge",
    "deployment",
    "decide",
    "observe",
    "query",
    "session",
    "connect_server",
    "launcher",
    "",
    "sources",
    "bench",
    "notebook",
    "testing",
    "cli",
]

# Of what stands before them, these see the protocol alone, or nothing: no implementation can be relied on.
SEES_ONLY = {
    ("worker", "shuffle"): {"shuffle.base"},
    ("coordinator", "shuffle"): {"shuffle.base"},
    ("coordinator", "worker"): set(),
    ("coordinator", "transport"): {"transport.base"},
}

# The only places that choose a transport or a store.
CHOOSERS = {"deployment.local", "deployment.flight", "deployment.spark", "shuffle.factory"}

# Who tests or measures them has to know them.
COMPARERS = ("testing", "cli", "bench")


def modules() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def place(module: str) -> int:
    """The place of the package, or of the module beside them."""
    name = module.partition(".")[0]
    if name not in ORDER:
        raise LookupError(f"volley.{name} has no place in the order: give it one")
    return ORDER.index(name)


def imports(module: str) -> set[str]:
    path = ROOT.joinpath(*module.split(".")) if module else ROOT
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            base = node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names}
    inside = {
        name.removeprefix("volley").removeprefix(".") for name in names if name.split(".")[0] == "volley"
    }
    return {_module(name) for name in inside}


def _module(name: str) -> str:
    """The module in which an imported name is defined."""
    while name and not (ROOT.joinpath(*name.split(".")).is_dir() or _file(name).exists()):
        name = name.rpartition(".")[0]
    return name


def _file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


@pytest.mark.parametrize("module", modules())
def test_imports_go_one_way(module: str) -> None:
    wrong = {name for name in imports(module) if place(name) > place(module)}
    assert not wrong, f"volley.{module} imports {wrong}, which stand after it"


def test_concrete_transports_and_stores_are_chosen_in_one_place() -> None:
    concrete = {f"transport.{name}" for name in ("local", "flight", "spark")} | {
        f"shuffle.{name}" for name in ("memory", "worker_store", "object_store", "service.store")
    }
    assert concrete <= set(modules())
    users = {module for module in modules() for name in imports(module) if name in concrete}
    users = {module for module in users if module not in concrete and not module.startswith(COMPARERS)}
    assert users == CHOOSERS


@pytest.mark.parametrize(("package", "other"), SEES_ONLY)
def test_coordinator_and_worker_see_protocols_alone(package: str, other: str) -> None:
    inside = [module for module in modules() if module.partition(".")[0] == package]
    seen = {name for module in inside for name in imports(module) if name.partition(".")[0] == other}
    assert inside
    assert seen <= SEES_ONLY[package, other]


def test_the_order_names_whole_packages_that_exist() -> None:
    assert all("." not in name for name in ORDER)
    assert set(ORDER) == {module.partition(".")[0] for module in modules()}


def test_the_check_sees_a_wrong_import() -> None:
    assert place("coordinator.run") > place("transport.local") > place("worker.slots") > place("rpc.codec")
    assert "transport.local" in imports("deployment.local")


_FAULTS = """
import resource
import time
import volley
from datafusion import SessionContext
context = SessionContext()
for turn in range(5):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    context.sql("SELECT count(*) FROM (SELECT DISTINCT value FROM range(0, 3000000))").collect()
    time.sleep(0.1)  # longer than the allocator waits by itself
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(**environment: str) -> int:
    run = [sys.executable, "-c", _FAULTS]
    return int(subprocess.run(run, env=os.environ | environment, capture_output=True, check=True).stdout)


@pytest.mark.slow
def test_freed_memory_is_used_again_instead_of_fetched_page_by_page() -> None:
    assert _page_faults() < 500 < _page_faults(MIMALLOC_PURGE_DELAY="0")
