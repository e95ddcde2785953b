# SPDX-License-Identifier: Apache-2.0
"""The message that starts an attempt: `Start` in its first line, and the plan of the task in its second.

A worker gets the same plan for every task of a stage, and again when a query is repeated. It knows the plans that it
got last by their bytes, and does not decode them again. What it made of a plan, it may have kept under its identity
(`lower.plan_cache`), so a known plan is not lowered again either.
"""

from __future__ import annotations

from dataclasses import replace

from volley.errors import QueryError
from volley.lru_cache import LruCache
from volley.plan.nodes import Node, OneRow
from volley.rpc.codec import decode, encode
from volley.rpc.control import Start
from volley.rpc.messages import TaskSpec

# A decoded plan takes some ten times the memory of its text.
_LONGEST_BYTES = 64 * 2**10
_plans: LruCache[bytes, Node] = LruCache(64)
_NO_PLAN = OneRow()


def encode_start(driver: str, task: TaskSpec, is_reserved: bool) -> bytes:
    head = Start(driver, replace(task, plan=_NO_PLAN), is_reserved)
    return encode(head) + b"\n" + encode(task.plan)


def decode_start(payload: bytes) -> Start:
    """Decode a message of `encode_start`. Raises QueryError for anything else."""
    head, _, text = payload.partition(b"\n")
    start = decode(head, Start)
    return replace(start, task=replace(start.task, plan=_plan_of(text)))


def drop_decoded_plans() -> None:
    """Forget the plans. Those in use stay until their tasks are over."""
    _plans.clear()


def _plan_of(text: bytes) -> Node:
    if (known := _plans.get(text)) is not None:
        return known
    plan = decode(text)
    if not isinstance(plan, Node):
        raise QueryError(f"a peer sent {type(plan).__name__} where a plan was expected.")
    if len(text) <= _LONGEST_BYTES:
        _plans.put(text, plan)
    return plan
