# SPDX-License-Identifier: Apache-2.0
"""The progress of a query in the cell of a notebook, with ipywidgets."""

from __future__ import annotations

from typing import Any

import pytest

from volley.observe.progress import CellWidget, write_to_notebook

ipywidgets: Any = pytest.importorskip("ipywidgets")
capture_output: Any = pytest.importorskip("IPython.utils.capture").capture_output
interactive: Any = pytest.importorskip("IPython.core.interactiveshell")


def test_a_widget_is_shown_once_updated_and_closed() -> None:
    shell = interactive.InteractiveShell.instance()
    try:
        write = write_to_notebook()
        assert isinstance(write, CellWidget)
        with capture_output() as shown:
            write("volley  0 of 2 stages", None)
            assert write.bar.layout.display == "none"
            write("volley  1 of 2 stages", 0.25)
        assert len(shown.outputs) == 1
        assert (write.label.value, write.bar.value) == ("volley  1 of 2 stages", 0.25)
        assert write.bar.layout.display is None
        write("", None)
        assert write.box.comm is None
        assert shell is not None
    finally:
        interactive.InteractiveShell.clear_instance()
