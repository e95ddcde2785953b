# SPDX-License-Identifier: Apache-2.0
"""One line each, with the query that it is about, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from volley.errors import ConfigError
from volley.process.log_format import Repeated, about, configure_logs


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("volley")
    before = list(root.handlers), root.level, ours.level
    yield io.StringIO()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.getLogger("volley.test_log.quiet").setLevel(logging.NOTSET)


def test_text(output: io.StringIO) -> None:
    configure_logs("text", [], output)
    log = logging.getLogger("volley.test_log")
    log.info("a line\nwith a break", extra=about("1f2e"))
    log.debug("not shown")
    logging.getLogger("another.library").info("not shown")
    (line,) = output.getvalue().splitlines()
    assert line.endswith("INFO volley.test_log query=1f2e a line\\nwith a break")


def test_json(output: io.StringIO) -> None:
    configure_logs("json", ["debug", "volley.test_log.quiet=ERROR"], output)
    log = logging.getLogger("volley.test_log")
    log.debug('say "%s"', "x", extra=about("1f2e"))
    logging.getLogger("volley.test_log.quiet").warning("not shown")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    first, second = map(json.loads, output.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("DEBUG", "volley.test_log", 'say "x"')
    assert first["query"] == "1f2e"
    assert first["time"].endswith("+00:00")
    assert "ValueError: broken" in second["error"]
    assert "query" not in second


@pytest.mark.parametrize("level", ["loud", "volley=", "volley.worker=loud"])
def test_a_wrong_level(output: io.StringIO, level: str) -> None:
    with pytest.raises(ConfigError, match="no log level"):
        configure_logs("text", [level], output)


def test_a_peer_cannot_fill_the_disk(output: io.StringIO) -> None:
    configure_logs("text", [], output)
    log = logging.getLogger("volley.test_log.repeated")
    now = Repeated(every_seconds=3600.0)
    log.addFilter(now)
    for number in range(100):
        log.warning("refused %d", number)
    assert len(output.getvalue().splitlines()) == 1
    log.removeFilter(now)
    often = Repeated(every_seconds=0.0)
    log.addFilter(often)
    log.warning("refused")
    log.warning("refused")
    assert len(output.getvalue().splitlines()) == 3
