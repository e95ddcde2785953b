# SPDX-License-Identifier: Apache-2.0
"""Commits to a Delta table that delta-rs cannot write itself: deletion vectors, renamed columns, features."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def commit(table: Path, actions: Sequence[dict[str, Any]]) -> None:
    """Add a version with these actions."""
    log = table / "_delta_log"
    version = 1 + max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{version:020}.json").write_text("\n".join(json.dumps(action) for action in actions))


def actions(table: Path, kind: str) -> list[dict[str, Any]]:
    """All actions of a kind in the log."""
    lines = [
        line
        for path in sorted((table / "_delta_log").glob("*.json"))
        for line in path.read_text().splitlines()
    ]
    return [found[kind] for line in lines if kind in (found := json.loads(line))]


def delete_rows(table: Path, rows: Sequence[int]) -> None:
    """Delete rows of the last file that was added, by a deletion vector inside of the log."""
    added = actions(table, "add")[-1]
    stored = _roaring_bitmap_array(rows)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(stored),
        "sizeInBytes": len(stored),
        "cardinality": len(rows),
    }
    commit(
        table,
        [
            {"remove": {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}},
            {"add": {**added, "deletionVector": vector}},
        ],
    )


def change_schema(table: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Commit the schema that `change` makes of the last one."""
    metadata = actions(table, "metaData")[-1]
    schema = json.loads(metadata["schemaString"])
    change(schema)
    commit(table, [{"metaData": {**metadata, "schemaString": json.dumps(schema)}}])


def _roaring_bitmap_array(rows: Sequence[int]) -> bytes:
    """Delta's form of a set of row numbers below 65,536: one bitmap with one array of numbers."""
    numbers = struct.pack(f"<{len(rows)}H", *sorted(rows))
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + numbers
    stored = struct.pack("<iqi", 1681511377, 1, 0) + bitmap
    return stored + b"\0" * (-len(stored) % 4)


def _z85(stored: bytes) -> str:
    return base64.b85encode(stored).decode().translate(str.maketrans(_B85, _Z85))
