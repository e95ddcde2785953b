# SPDX-License-Identifier: Apache-2.0
"""The notebook of examples/ in a real kernel: what is shown is HTML, and a long query shows its progress."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")
manager: Any = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"

# Lasts until somebody cancels it, which is after the progress was shown.
LONG = """
import threading
threading.Timer(4, lambda: volley.cancel(spark)).start()
try:
    spark.range(10**15).selectExpr("sum(id % 7)").collect()
except volley.errors.QueryCancelled as error:
    print(error.code)
"""


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(LONG))
    kernel = manager.AsyncKernelManager()
    kernel.kernel_spec.argv[0] = sys.executable
    nbclient.NotebookClient(notebook, timeout=240, km=kernel, resources={}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"] for output in outputs if "data" in output]
    html = "".join("".join(data.get("text/html", "")) for data in shown)
    assert "Volley runs this query" in html
    assert "Spark runs this query" in html
    assert "native" in html
    assert any(WIDGET in data for data in shown)
    assert "QUERY_CANCELLED" in "".join(output.get("text", "") for output in outputs)
