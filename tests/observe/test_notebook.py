# SPDX-License-Identifier: Apache-2.0
"""The magics of notebooks, in a shell of IPython."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import volley
from volley.session_settings import is_active

interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
capture_output: Any = pytest.importorskip("IPython.utils.capture").capture_output


@pytest.fixture
def shell(spark: SparkSession) -> Iterator[Any]:
    shell = interactive.InteractiveShell.instance()
    shell.user_ns["spark"] = spark
    shell.run_line_magic("load_ext", "volley")
    yield shell
    interactive.InteractiveShell.clear_instance()


def said(shell: Any, cell: str) -> str:
    with capture_output() as shown:
        shell.run_cell(cell, store_history=True).raise_error()
    return str(shown.stdout) + "".join(output.data.get("text/plain", "") for output in shown.outputs)


def test_magics(shell: Any, spark: SparkSession) -> None:
    query = "select id % 3 as k, count(*) as n from range(30) group by 1 order by 1"
    shown = said(shell, f"%%volley_sql --into counts\n{query}")
    assert "| 10|" in shown
    assert "show: native" in shown
    assert shell.user_ns["counts"].count() == 3
    assert "the same on both" in said(shell, f"%%volley_sql --compare\n{query}")
    assert "Volley runs this query" in said(shell, f"%%volley_sql --explain\n{query}")
    assert "Volley runs this query" in said(shell, "%volley explain counts")
    assert "QueryReport" in said(shell, "%volley") or "collect" in said(shell, "%volley")
    assert "queries" in said(shell, "%volley history")
    said(shell, "%volley off")
    assert not is_active(spark)
    said(shell, "%volley")
    assert not is_active(spark)
    said(shell, "%volley on")
    assert is_active(spark)
    with pytest.raises(volley.errors.SessionError, match="does not know"):
        said(shell, "%volley dance")
