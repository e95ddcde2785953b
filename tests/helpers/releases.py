# SPDX-License-Identifier: Apache-2.0
"""Which queries of the tests an older release of Spark does not have, or does not run natively."""

from __future__ import annotations

import re
from collections.abc import Iterable

from volley.spark_versions.registry import current

# By capability of `SparkVersion`.
_NEEDED = {
    "has_list_aggregates": r"listagg|mode\(\) within",
    "set_order_is_known": r"collect_set",
    "has_correlated_limits": r"= u\.k order by|lateral \(select o_orderkey",
}


def runs_here(query: str) -> bool:
    """Whether the installed release has what this query needs."""
    return all(
        getattr(current(), capability) or not re.search(text, query) for capability, text in _NEEDED.items()
    )


def runnable(queries: Iterable[str]) -> list[str]:
    """Those of the queries that the installed release can run."""
    return [query for query in queries if runs_here(query)]
