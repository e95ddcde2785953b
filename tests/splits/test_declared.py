# SPDX-License-Identifier: Apache-2.0
"""A class that a peer names is looked up in the text of modules before any of them runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, InputPartition

from volley.splits.datasource import NotPortable, decode
from volley.splits.declared import declares

TEXT = """
import sys
sys.peer_ran_this = True

import pyspark.sql.datasource as sources
from pyspark.sql.datasource import DataSource, InputPartition as Part
from .base import Base

class Plain(DataSource): pass
class Dotted(sources.DataSource): pass
class Inherited(Base): pass
class Again(Inherited): pass
class Part2(Part): pass
class Outer:
    class Inner(DataSource): pass
class Other: pass
class Circle(Circle): pass
class Odd(make_a_base()): pass
if True:
    class Guarded(DataSource): pass
def function():
    class Local(DataSource): pass
Assigned = Plain
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "peer_package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; sys.peer_ran_this = True")
    (package / "base.py").write_text(
        "from pyspark.sql.datasource import DataSource\nclass Base(DataSource): pass"
    )
    (package / "sources.py").write_text(TEXT)
    (package / "broken.py").write_text("class (")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "name", ["Plain", "Dotted", "Inherited", "Again", "Outer.Inner", "Guarded", "DataSource", "Base"]
)
def test_classes_of_the_kind_are_found_by_name(name: str) -> None:
    assert declares("peer_package.sources", name, DataSource)
    assert not declares("peer_package.sources", name, InputPartition)
    assert not hasattr(sys, "peer_ran_this")


@pytest.mark.parametrize(
    "name", ["Other", "Circle", "Odd", "Local", "function", "Assigned", "Part2", "", "x.y"]
)
def test_names_that_are_not_such_a_class_are_not_declared(name: str) -> None:
    assert not declares("peer_package.sources", name, DataSource)
    assert not hasattr(sys, "peer_ran_this")


@pytest.mark.parametrize(
    "module",
    ["peer_package.broken", "peer_package.none", "none", "", ".", "sys", "antigravity", "pyarrow.lib"],
)
def test_a_module_without_such_a_text_has_none(module: str) -> None:
    assert not declares(module, "Plain", DataSource)
    assert "antigravity" not in sys.modules


def test_the_bases_themselves_are_declared() -> None:
    assert declares("pyspark.sql.datasource", "InputPartition", InputPartition)


@pytest.mark.parametrize("name", ["peer_package.sources:Other", "peer_package:x", "subprocess:Popen"])
def test_a_partition_of_another_class_is_refused_and_its_module_not_imported(name: str) -> None:
    with pytest.raises(NotPortable, match="InputPartition"):
        decode(json.dumps({"class": name, "fields": {}}).encode(), pickles=False)
    assert "peer_package" not in sys.modules
    assert not hasattr(sys, "peer_ran_this")
