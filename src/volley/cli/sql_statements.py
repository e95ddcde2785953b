# SPDX-License-Identifier: Apache-2.0
"""Splits a text into SQL statements."""

from __future__ import annotations

import re

# What a semicolon may be part of without ending a statement, and the semicolon itself.
_TOKEN = re.compile(
    r"""
      '(?:[^'\\]|\\.|'')*'          # text
    | "(?:[^"\\]|\\.|"")*"          # text, or a name with ANSI identifiers
    | `(?:[^`]|``)*`                # a name
    | --[^\n]*                      # a comment
    | /\*.*?\*/                     # a comment of several lines
    | ;
    """,
    re.VERBOSE | re.DOTALL,
)


def split_statements(text: str) -> list[str]:
    """The statements of a text, without their semicolons. Those that are empty or only comments are left out."""
    statements, begin = [], 0
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            statements.append(text[begin : token.start()])
            begin = token.end()
    statements.append(text[begin:])
    return [statement.strip() for statement in statements if _is_statement(statement)]


def is_complete(text: str) -> bool:
    """Whether the last statement of a text has ended: what follows it is empty or a comment."""
    last = [token.end() for token in _TOKEN.finditer(text) if token[0] == ";"]
    return bool(last) and not _is_statement(text[last[-1] :])


def _is_statement(text: str) -> bool:
    return bool(re.sub(r"--[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).strip())
