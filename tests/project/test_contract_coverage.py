# SPDX-License-Identifier: Apache-2.0
"""Every implementation of a public protocol stands under its contract suite."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import volley
from volley.shuffle.base import SharedStore, ShuffleStore
from volley.splits.source import SplitReader, SplitSource
from volley.transport.base import Transport

ROOT = Path(__file__).parents[2]
PACKAGES = ("deployment", "shuffle", "sources", "splits", "transport")
SOURCES = [
    *(path for package in PACKAGES for path in (Path(volley.__file__).parent / package).rglob("*.py")),
    *ROOT.glob("examples/plugins/*/src/**/*.py"),
]
TESTS = [ROOT / "tests" / folder for folder in ("plugins", "shuffle", "splits", "transport")]

SUITES: dict[type, str] = {
    Transport: "TransportContract",
    ShuffleStore: "ShuffleStoreContract",
    SharedStore: "SharedStoreContract",
    SplitSource: "SplitSourceContract",
    SplitReader: "SplitReaderContract",
}
# How tests get an instance, if they do not name its class.
MADE_BY = {
    "ServiceStore": "service_store(",
    "UnixTransport": '"unix"',
    "ValkeyStore": '"valkey"',
    "WorkerStore": "volley.testing.holders",
}


@cache
def classes() -> list[ast.ClassDef]:
    """The public classes that may implement a protocol."""
    return [
        node
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if not any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


def members(node: ast.ClassDef) -> set[str]:
    names = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    targets = [target for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def implementations(protocol: type) -> Iterator[str]:
    """The classes that have all members of a protocol."""
    wanted = {name for kind in protocol.__mro__ for name in vars(kind) if not name.startswith("_")}
    for node in classes():
        if wanted <= members(node) and (protocol is not SplitReader or reads_splits(node)):
            yield node.name


def reads_splits(node: ast.ClassDef) -> bool:
    """Many classes have a method `read`."""
    (read,) = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "read"]
    return [argument.arg for argument in read.args.args] == ["self", "split", "columns", "filters"]


@pytest.mark.parametrize("protocol", SUITES, ids=lambda protocol: protocol.__name__)
def test_every_implementation_has_its_suite(protocol: type) -> None:
    found = set(implementations(protocol))
    assert found
    suite = f"({SUITES[protocol]})"
    texts = [path.read_text(encoding="utf-8") for folder in TESTS for path in folder.glob("test_*.py")]
    under = "\n".join(text for text in texts if suite in text)
    missing = {name for name in found if name not in under and MADE_BY.get(name, name) not in under}
    assert missing == set(), f"subclass volley.testing.contracts.{SUITES[protocol]}"


def test_the_check_finds_what_there_is() -> None:
    found = {protocol: set(implementations(protocol)) for protocol in SUITES}
    assert found[Transport] == {"LocalTransport", "FlightTransport", "SparkTransport", "UnixTransport"}
    assert found[SharedStore] == {"ObjectStore", "ServiceStore", "ValkeyStore"}
    assert found[ShuffleStore] > {"MemoryStore", "WorkerStore", "WorkerView"}
    assert found[SplitSource] == {"FileSource", "DataSourceSplits"}
    assert found[SplitReader] == {"PlannedReader", "DataSourceRows"}
