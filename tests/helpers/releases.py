# SPDX-License-Identifier: Apache-2.0
"""Which queries and expressions of the tests an older release of Spark does not have, or does not run natively."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.version import Version

from volley.spark_versions.registry import current

_SINCE = {
    r"listagg|mode\(\) within": "4.0",
    r"try_mod|dayname|monthname|collate": "4.0",
    # Correlated subqueries with LIMIT, or with windows.
    r"= u\.k order by|lateral \(select o_orderkey": "4.0",
    # Before, ANSI mode does not let it be NULL where it is not defined.
    r"\bcorr\(": "4.0",
    # The same, alone: over moving frames, some of which have equal values.
    r"^corr\(": "4.3",
    # Before, its values have an order that only Spark knows.
    r"collect_set": "4.0",
}
"""Texts, and the first release that has them or runs them natively."""


def is_before(release: str) -> bool:
    """Whether the installed release is older than this one."""
    return Version(current().release) < Version(release)


def runs_here(text: str) -> bool:
    """Whether the installed release has what this query or expression needs."""
    return not any(is_before(release) and re.search(needed, text) for needed, release in _SINCE.items())


def runnable(texts: Iterable[str]) -> list[str]:
    """Those of the queries or expressions that the installed release can run."""
    return [text for text in texts if runs_here(text)]
