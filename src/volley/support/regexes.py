# SPDX-License-Identifier: Apache-2.0
"""The regular expressions that mean the same in Java, Rust and RE2, and their form there.

All three prefer the leftmost match, and of those at one place the one that a backtracking engine tries first. They
differ in what classes hold, where lines end, and features: whatever is not listed here is refused. What only differs on
some texts (words and cases beyond ASCII, a line terminator at the end) is a property of the pattern, for its user to
guard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

LINE_ENDS = ("\n", "\r", "\x85", "\u2028", "\u2029")
_ANY = r"[^\n\r\x{85}\x{2028}\x{2029}]"

# Java's classes are ASCII, Rust's are Unicode.
_DIGIT, _WORD, _SPACE = "0-9", "A-Za-z0-9_", r"\t-\r\x{20}"
_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CLASSES = {
    **{letter: f"[{members}]" for letter, members in _SETS.items()},
    **{letter.upper(): f"[^{members}]" for letter, members in _SETS.items()},
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_COUNT = re.compile(r"\{(\d{1,3})(?:(,)(\d{1,3})?)?\}")
_LONGEST = 200
# Of counted repeats in each other: Rust and RE2 write them out.
_MOST_COPIES = 1000


@dataclass(frozen=True)
class Regex:
    """A pattern that can be translated."""

    rust: str
    """Its form in Rust and RE2. `$` is the end of the text there."""
    groups: int
    repeated: frozenset[int]
    """The groups that may match several times. Engines disagree about which of the matches counts."""
    nullable: bool
    """Whether it matches the empty text: engines disagree about where such a match may follow another."""
    loops_on_nothing: bool
    """Whether it repeats what may be empty."""
    only_ascii: bool
    """Whether it means the same on texts of ASCII only."""
    has_start: bool
    has_end: bool
    """Java's `$` also matches before a line terminator at the end."""

    @property
    def is_replaceable(self) -> bool:
        """Whether all engines find the same matches, one after the other."""
        return not self.nullable and not self.loops_on_nothing


@lru_cache(maxsize=1024)
def read_regex(pattern: str, captured: int | None = None) -> Regex | None:
    """The pattern; None if engines may read it differently.

    `captured` is the only group that captures then, 0 for all of the pattern.
    """
    if len(pattern) > _LONGEST:
        return None
    try:
        return _Reader(pattern, captured).read()
    except _Unportable:
        return None


class _Unportable(Exception):
    pass


@dataclass(frozen=True)
class _Part:
    """`places`: it matches a place, not characters."""

    rust: str
    nullable: bool
    groups: frozenset[int] = frozenset()
    places: bool = False
    copies: int = 1


@dataclass
class _Reader:
    pattern: str
    captured: int | None
    at: int = 0
    groups: int = 0
    repeated: set[int] = field(default_factory=set)
    loops_on_nothing: bool = False
    only_ascii: bool = False
    has_start: bool = False
    has_end: bool = False

    def read(self) -> Regex:
        flags = ""
        if self.pattern.startswith("(?i)"):
            # The long s is an s to Rust, and not to Java.
            if not self.pattern.isascii():
                raise _Unportable
            self.at, self.only_ascii, flags = 4, True, "(?i)"
        whole = self._alternatives()
        if self.at < len(self.pattern):
            raise _Unportable
        if self.captured is not None and self.captured > self.groups:
            raise _Unportable
        rust = f"({whole.rust})" if self.captured == 0 else whole.rust
        return Regex(
            flags + rust,
            self.groups,
            frozenset(self.repeated),
            whole.nullable,
            self.loops_on_nothing,
            self.only_ascii,
            self.has_start,
            self.has_end,
        )

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _alternatives(self) -> _Part:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return _joined("|", options, any(option.nullable for option in options))

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        if not parts:
            raise _Unportable
        return _joined("", parts, all(part.nullable for part in parts))

    def _quantified(self, part: _Part) -> _Part:
        counted = _COUNT.match(self.pattern, self.at)
        if counted is not None:
            low, comma, high = counted.groups()
            most = None if comma and high is None else int(high or low)
            least, text = int(low), counted[0]
            if most is not None and most < max(least, 1):
                raise _Unportable
        elif (text := self._next()) in ("*", "+", "?") and text:
            least, most = int(text == "+"), 1 if text == "?" else None
        else:
            return part
        self.at += len(text)
        lazy = "?" if self._take("?") else ""
        if part.places or (self._next() in ("*", "+", "?", "{") and self._next()):
            raise _Unportable
        if most != 1 or counted is not None:
            self.repeated |= part.groups
            self.loops_on_nothing |= part.nullable
        copies = part.copies * max(least, most or 1)
        if copies > _MOST_COPIES:
            raise _Unportable
        nullable = part.nullable or least == 0
        return _Part(f"{part.rust}{text}{lazy}", nullable, part.groups, copies=copies)

    def _atom(self) -> _Part:
        character = self._next()
        self.at += 1
        match character:
            case "(":
                return self._group()
            case "[":
                return _Part(self._class(), nullable=False)
            case "\\":
                return self._escape()
            case ".":
                return _Part(_ANY, nullable=False)
            case "^":
                self.has_start = True
                return _Part("^", nullable=True, places=True)
            case "$":
                self.has_end = True
                return _Part(r"\z", nullable=True, places=True)
            case "*" | "+" | "?" | "{" | "}" | "]":
                raise _Unportable
        return _Part(_literal(character), nullable=False)

    def _group(self) -> _Part:
        number = None
        if not self._take("?:"):
            if self._next() == "?":
                raise _Unportable
            self.groups += 1
            number = self.groups
        inside = self._alternatives()
        if not self._take(")"):
            raise _Unportable
        captures = number is not None and self.captured in (None, number)
        own = frozenset() if number is None else frozenset({number})
        opening = "(" if captures else "(?:"
        return _Part(
            f"{opening}{inside.rust})", inside.nullable, inside.groups | own, inside.places, inside.copies
        )

    def _escape(self) -> _Part:
        letter = self._next()
        self.at += 1
        if letter in _CLASSES and letter:
            return _Part(_CLASSES[letter], nullable=False)
        if letter in ("b", "B"):
            # Java takes letters and digits of all scripts for parts of a word there, and some marks.
            self.only_ascii = True
            return _Part("\\" + letter, nullable=True, places=True)
        return _Part(_literal(self._escaped(letter)), nullable=False)

    def _escaped(self, letter: str) -> str:
        if letter in _CONTROLS and letter:
            return _CONTROLS[letter]
        if not letter or not letter.isascii() or letter.isalnum():
            raise _Unportable
        return letter

    def _class(self) -> str:
        negated = self._take("^")
        members: list[str] = []
        while not self._take("]"):
            members.append(self._member(first=not members))
        if not members:
            raise _Unportable
        return f"[{'^' if negated else ''}{''.join(members)}]"

    def _member(self, *, first: bool) -> str:
        if self._next() == "\\" and self.pattern[self.at + 1 : self.at + 2] in tuple(_SETS):
            members = _SETS[self.pattern[self.at + 1]]
            self.at += 2
            if self._next() == "-" and not self.pattern.startswith("-]", self.at):
                raise _Unportable
            return members
        if self._next() == "-" and not first and not self.pattern.startswith("-]", self.at):
            raise _Unportable
        low = self._single()
        if self._next() != "-" or self.pattern.startswith("-]", self.at):
            return _literal(low)
        self.at += 1
        high = self._single()
        if low > high:
            raise _Unportable
        return f"{_literal(low)}-{_literal(high)}"

    def _single(self) -> str:
        """One character of a class."""
        character = self._next()
        if not character or character in "[]" or self.pattern.startswith("&&", self.at):
            raise _Unportable
        self.at += 1
        if character != "\\":
            return character
        self.at += 1
        return self._escaped(self.pattern[self.at - 1 : self.at])


def _joined(between: str, parts: Iterable[_Part], nullable: bool) -> _Part:
    parts = list(parts)
    return _Part(
        between.join(part.rust for part in parts),
        nullable,
        frozenset[int]().union(*(part.groups for part in parts)),
        any(part.places for part in parts),
        max(part.copies for part in parts),
    )


def _literal(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):X}}}"


def read_replacement(text: str, groups: int) -> tuple[str | int, ...] | None:
    """What Java puts in place of a match: texts, and numbers of groups. None if it would fail, or is not read here."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\":
            if at == len(text):
                return None
            parts.append(text[at])
            at += 1
        elif character == "$":
            if at == len(text) or text[at] not in "0123456789":
                return None
            number = int(text[at])
            at += 1
            # Java takes another digit only if there is such a group.
            while at < len(text) and text[at] in "0123456789" and number * 10 + int(text[at]) <= groups:
                number, at = number * 10 + int(text[at]), at + 1
            if number > groups:
                return None
            parts.append(number)
        else:
            parts.append(character)
    return tuple(parts)
