# SPDX-License-Identifier: Apache-2.0
"""Columns that Volley adds to a plan never have the id of another one."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import volley
from volley.plan import synthetic_ids

ROOT = Path(volley.__file__).parent
RANGES = sorted(value for name, value in vars(synthetic_ids).items() if name.isupper())
# Numbers of this size that are no ids: the row count of no limit, bounds of types and exact doubles, an unknown size,
# made-up ids of users, codes that fit into a long.
OTHERS = {
    "bench/clicks.py",
    "lower/operators.py",
    "lower/functions/arithmetic.py",
    "lower/functions/array_sets.py",
    "lower/functions/array_texts.py",
    "lower/list_aggregate_statistics.py",
    "field_types.py",
    "plan/decode_as_of.py",
    "stages/scans.py",
}


def test_every_range_has_room() -> None:
    assert all(later - earlier >= 2**32 for earlier, later in pairwise(RANGES))
    assert RANGES[0] >= 2**32
    # Ids are Java's long.
    assert RANGES[-1] + 2**32 < 2**63


def test_ids_are_taken_from_the_table() -> None:
    """Two modules that chose a range of their own once chose the same one."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.BinOp(ast.Constant(2), ast.Pow(), ast.Constant(int(power))) if 48 <= power <= 62:
                    found.add(str(path.relative_to(ROOT)))
    assert found - OTHERS == {"plan/synthetic_ids.py"}
