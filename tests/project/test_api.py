# SPDX-License-Identifier: Apache-2.0
"""What is public is listed, can be imported, is documented, and costs nothing until it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import volley
from volley import errors
from volley.observe import report
from volley.shuffle import base as shuffle
from volley.splits import source
from volley.transport import base as transport

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", volley.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    assert getattr(volley, name) is not None
    assert name in dir(volley)
    assert re.search(rf"`volley\.{re.escape(name)}\b", PAGE)


def test_nothing_else_is_documented() -> None:
    assert set(re.findall(r"`volley\.(\w+)[`(]", PAGE)) == set(volley.__all__)


def test_type_checkers_see_what_is_listed() -> None:
    tree = ast.parse(Path(volley.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(volley.__all__)


@pytest.mark.parametrize("module", [report, shuffle, source, transport], ids=lambda module: module.__name__)
def test_reports_and_protocols_are_public(module: object) -> None:
    internal = {"BlockRequest"}  # a message between workers
    defined = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == getattr(module, "__name__", "")
    }
    assert defined - internal <= set(volley.__all__)


def test_every_error_is_documented() -> None:
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value) and _is_error(value)}
    assert {name for name in tree if f"`{name}`" not in PAGE and f"`volley.{name}`" not in PAGE} == set()


def _is_error(kind: type) -> bool:
    return issubclass(kind, errors.VolleyError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = volley.nonsense


def test_importing_volley_loads_neither_spark_nor_arrow() -> None:
    code = "import sys, volley; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pyspark", "pyarrow", "datafusion"} & set(modules.split())
