# SPDX-License-Identifier: Apache-2.0
"""Every code has an entry in the documentation, and every message leads to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from volley.cli.main import cli
from volley.codes import CODES, find_code
from volley.errors import NoWorkers, ShuffleRefused, VolleyError
from volley.rpc import control, shuffle_messages
from volley.support.reasons import Reason

PAGE = Path(__file__).parents[2] / "docs" / "codes.md"


def error_codes() -> set[str]:
    """The codes of all errors that have one of their own."""
    found, classes = set(), [VolleyError]
    while classes:
        error = classes.pop()
        classes += error.__subclasses__()
        # Not those of tests.
        if isinstance(error.__dict__.get("code"), str) and error.__module__.startswith("volley."):
            found.add(error.code)
    return found


def refusal_codes() -> set[str]:
    """What one process answers to another."""
    named = {**vars(control), **vars(shuffle_messages)}
    return {value for name, value in named.items() if isinstance(value, str) and name.isupper()}


def test_every_error_has_an_entry() -> None:
    assert error_codes() - {code.name for code in CODES} == set()


def test_every_refusal_has_an_entry() -> None:
    known = {code.name for code in CODES}
    codes = {code for code in refusal_codes() if code == code.upper() and code.replace("_", "").isalpha()}
    assert len(codes) > 10
    assert codes <= known


def test_every_reason_has_an_entry() -> None:
    assert {code.name for code in CODES if code.kind == "reason"} == set(Reason)


def test_entries_are_sentences() -> None:
    for code in CODES:
        assert code.meaning.endswith("."), code
        assert code.remedy.endswith("."), code


@pytest.mark.parametrize("code", ["NO_WORKERS", "DATA_TYPE_NOT_SUPPORTED", "SHUFFLE_QUOTA"])
def test_the_command_and_the_page_say_the_same(code: str) -> None:
    said = CliRunner().invoke(cli, ["help", code.lower()])
    assert said.exit_code == 0
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for entry in find_code(code):
        assert entry.meaning in said.output
        assert f"### {entry.name} {entry.meaning}" in page


def test_an_unknown_code_names_one_that_is_close() -> None:
    said = CliRunner().invoke(cli, ["help", "NO_WORKER"])
    assert said.exit_code == 2
    assert "Did you mean NO_WORKERS?" in said.output
    everything = CliRunner().invoke(cli, ["help"]).output
    assert all(code.name in everything for code in CODES)


def test_an_error_says_where_to_read_on() -> None:
    for error in (NoWorkers("gone."), ShuffleRefused("SHUFFLE_QUOTA", "full.")):
        assert getattr(error, "__notes__", []) == [f"`volley help {error.code}` says more."]
        assert "volley help" not in str(error)
