# SPDX-License-Identifier: Apache-2.0
"""An explanation shows itself once, wherever in a cell or program it is asked for."""

from __future__ import annotations

import pytest

from volley.observe import display
from volley.support.reasons import Reason, Unsupported

EXPLAIN = """
from volley.observe.display import show
from volley.observe.explain import Explanation
from volley.support.reasons import Reason, Unsupported

def explain():
    explanation = Explanation(False, 0.0, (Unsupported(Reason.CAPTURE, "plan", "a & b"),))
    show(explanation)
    return explanation
"""


def test_a_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    class Shown:
        def __str__(self) -> str:
            return str(Unsupported(Reason.CAPTURE, "plan"))

        def _repr_html_(self) -> str:
            return "<b>plan</b>"

    display.show(Shown())
    assert capsys.readouterr().out == "[PLAN_NOT_READABLE] plan\n"


def test_a_notebook_shows_it_once_in_a_cell() -> None:
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    capture_output = pytest.importorskip("IPython.utils.capture").capture_output
    shell = interactive.InteractiveShell.instance()
    try:
        shell.run_cell(EXPLAIN).raise_error()
        for cell, times in (
            ("explain()", 1),
            ("explain(); x = 1", 1),
            ("e = explain()", 1),
            ("e", 1),
            ("e\ne", 1),
        ):
            with capture_output() as shown:
                shell.run_cell(cell, store_history=True).raise_error()
            assert len(shown.outputs) == times, cell
            data = shown.outputs[0].data
            assert "a &amp; b" in data["text/html"]
            assert "a & b" in data["text/plain"]
    finally:
        interactive.InteractiveShell.clear_instance()
