# SPDX-License-Identifier: Apache-2.0
"""Counts the control messages that this process has sent, by action. Needs no Flight."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

_lock = threading.Lock()
_sent: dict[str, Sent] = {}

OF_QUERIES = ("run", "feed", "cancel", "release")
"""The actions that queries cause. Others are sent as time passes, and reservations until one is accepted."""


@dataclass(frozen=True)
class Sent:
    """How many messages of one action were sent, and the bytes of their bodies."""

    messages: int = 0
    size_bytes: int = 0


def count_sent(action: str, size_bytes: int) -> None:
    with _lock:
        before = _sent.get(action, Sent())
        _sent[action] = Sent(before.messages + 1, before.size_bytes + size_bytes)


def sent_by_action() -> Mapping[str, Sent]:
    with _lock:
        return dict(_sent)


def sent_for_queries() -> Sent:
    """All messages of the actions that queries cause."""
    found = [sent for action, sent in sent_by_action().items() if action in OF_QUERIES]
    return Sent(sum(sent.messages for sent in found), sum(sent.size_bytes for sent in found))
