# SPDX-License-Identifier: Apache-2.0
"""Constants that functions of texts and dates read: LIKE patterns, characters to translate, names of days."""

from __future__ import annotations


def like_pattern(pattern: str, escape: str) -> str | None:
    """The LIKE pattern with a backslash as its escape.

    None for what Spark rejects, and DataFusion takes literally: an escape at the end or before an ordinary character.
    """
    if len(escape) != 1 or escape in "%_":
        return None
    written: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if not character or character not in ("%", "_", escape):
                return None
            written.append("\\" if character in ("%", "_", "\\") else "")
        elif character == "\\":
            written.append("\\")
        written.append(character)
    return "".join(written)


def translation(matching: str, replacing: str) -> dict[str, str]:
    """What `translate` puts in place of each character: nothing where `replacing` is shorter. The first one counts."""
    pairs: dict[str, str] = {}
    for place, letter in enumerate(matching):
        pairs.setdefault(letter, replacing[place : place + 1])
    return pairs


def overlaps_itself(text: str) -> bool:
    """Whether two places where the text is found can overlap, as in `aa` or `aba`."""
    return any(text.startswith(text[start:]) for start in range(1, len(text)))


_DAYS = ("THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY")


def day_of_week(name: str) -> int | None:
    """The number by which Spark knows a day, from 0 for Thursday; None for a name that it does not know."""
    upper = name.upper()
    found = (number for number, day in enumerate(_DAYS) if upper in (day, day[:3], day[:2]))
    return next(found, None)
