# SPDX-License-Identifier: Apache-2.0
"""Files that Python functions need, as a query sends them to workers."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from volley.bridge.function_files import FunctionFiles
from volley.plan.nodes import OneRow
from volley.plan.python_nodes import EvalType, PythonCall, PythonEval, PythonProcess, PythonProgram, SentFile
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED


def send(files: FunctionFiles, directory: Path) -> SentFile:
    """What a query with this directory of added files sends."""
    process = PythonProcess("app", "python", "3.11", (), str(directory), (), (), None, True)
    program = PythonProgram(EvalType.ARROW_BATCHED, (PythonCall("f", (b"",), ()),), (), (), 10, 0, process)
    graph = files.send(cut(PythonEval(program, (), (), OneRow()), 1, UNMERGED))
    (plan,) = (stage.plan for stage in graph.stages)
    assert isinstance(plan, PythonEval)
    (sent,) = plan.program.process.sent
    return sent


def test_queries_share_an_archive_while_one_of_them_has_it(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1")
    first, second = FunctionFiles(), FunctionFiles()
    sent = send(first, tmp_path)
    assert send(second, tmp_path) == sent
    (feed,) = first.feeds.values()
    assert list(second.feeds.values()) == [feed]
    archive = weakref.ref(feed)
    del first, second, feed
    gc.collect()
    # The space of the archive is free.
    assert archive() is None
    # The next query packs the same files to the same bytes, so workers that have them do not ask.
    assert send(FunctionFiles(), tmp_path) == sent


def test_what_changed_is_sent_anew(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1")
    files = FunctionFiles()
    first = send(files, tmp_path)
    module.write_text("x = 22")
    assert send(files, tmp_path).name != first.name
    assert len(files.feeds) == 2
