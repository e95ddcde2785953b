# SPDX-License-Identifier: Apache-2.0
"""Translates regular expressions that Java and Rust match alike."""

from __future__ import annotations

_JAVA_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_ANY = f"[^{_JAVA_LINE_ENDS}]"
# Java's $ also matches before a final line terminator.
_END = rf"(?:\r\n|[{_JAVA_LINE_ENDS}])?\z"


# Java's classes are ASCII, Rust's are Unicode.
_CLASSES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "s": r"[ \t\n\x0B\f\r]",
    "S": r"[^ \t\n\x0B\f\r]",
}


def rust_regex(pattern: str) -> str:
    """The Rust form of a Java pattern that `support.patterns.is_portable_regex` accepts."""
    out: list[str] = []
    in_class = escaped = False
    for character in pattern:
        if escaped:
            out.append(_CLASSES.get(character, "\\" + character))
            escaped = False
        elif character == "\\":
            escaped = True
        elif in_class:
            out.append(character)
            in_class = character != "]"
        elif character == "[":
            out.append(character)
            in_class = True
        else:
            out.append({".": _ANY, "$": _END}.get(character, character))
    return "".join(out)
