# SPDX-License-Identifier: Apache-2.0
"""Lets scans of Parquet files in object stores read what this process keeps of them on its disk (`ObjectCache`).

DataFusion reads a copy as any local file: it prunes pages, takes filters from joins, and needs no thread that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice

from volley.formats.file_source import object_name
from volley.formats.remote_parquet import RemoteParquet, parts_to_keep
from volley.lower.streamed_scan import request_of
from volley.lru_cache import LruCache
from volley.plan.nodes import DataFile, FileScan, Node, transform, walk
from volley.storage.object_cache import Range, shared_object_cache

# Objects whose versions are asked for, and which are fetched, at the same time.
_THREADS = 16
_KEPT_PLANS = 64


@dataclass(frozen=True)
class _Part:
    """A file, and where the columns of a scan are in it: nowhere, if none of its rows can be wanted."""

    file: DataFile
    ranges: frozenset[Range]


@dataclass(frozen=True)
class _Copied:
    """A plan, and the same with local files. Holds the first, so that no other has its identity."""

    plan: Node
    paths: tuple[str | None, ...]
    copied: Node


# A plan that runs again is the same object again, so that it need not be lowered again (`lower.plan_cache`).
_plans: LruCache[int, _Copied] = LruCache(_KEPT_PLANS)


def reads_objects(plan: Node) -> bool:
    return any(isinstance(node, FileScan) and node.stores for node in walk(plan))


def use_local_copies(plan: Node, resources: ExitStack) -> Node:
    """The plan, in which scans read local copies of objects until `resources` is closed: of all their files, or none.

    Raises DataError if an object is not as planned, or cannot be read.
    """
    scans = [(node, parts) for node in walk(plan) if isinstance(node, FileScan) and (parts := _parts(node))]
    if not scans:
        return plan
    paths = _hold([part for _, parts in scans for part in parts], resources)
    known = _plans.get(id(plan))
    if known is not None and known.plan is plan and known.paths == paths:
        return known.copied
    local: dict[int, Node] = {}
    remaining = iter(paths)
    for scan, parts in scans:
        found = list(zip(parts, islice(remaining, len(parts)), strict=True))
        files = [
            replace(part.file, path=path, store="")
            for part, path in found
            if path is not None and part.ranges
        ]
        if all(path is not None for _, path in found):
            local[id(scan)] = replace(scan, files=tuple(files))
    copied = transform(plan, lambda node: local.get(id(node), node))
    _plans.put(id(plan), _Copied(plan, paths, copied))
    return copied


def _parts(scan: FileScan) -> list[_Part] | None:
    """What a scan needs of each of its files; None if it must read streams."""
    if scan.format != RemoteParquet.name or scan.partitions or not all(file.store for file in scan.files):
        return None
    cache = shared_object_cache()
    found = []
    for file in scan.files:
        name = object_name(file)
        version = cache.noted_version(name)
        ranges = parts_to_keep(request_of(scan, file), version) if version is not None else None
        if ranges is None or not cache.has_noted(name, ranges):
            return None
        found.append(_Part(file, ranges))
    return found


def _hold(parts: Sequence[_Part], resources: ExitStack) -> tuple[str | None, ...]:
    """The paths of local copies that have these parts; None for those that cannot be kept."""
    cache = shared_object_cache()
    # Whatever is held by the time that one fails is let go by `resources`.
    held = [(resources.enter_context(ExitStack()), part) for part in parts]
    with ThreadPoolExecutor(_THREADS, "volley-copies") as pool:
        return tuple(
            pool.map(
                lambda one: one[0].enter_context(cache.hold(object_name(one[1].file), one[1].ranges)), held
            )
        )
