# SPDX-License-Identifier: Apache-2.0
"""Counts the control messages that this process has sent, by action. Needs no Flight."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

_lock = threading.Lock()
_sent: dict[str, MessageCount] = {}

OF_QUERIES = ("start", "run", "feed", "cancel", "release")
"""The actions that queries cause. Others are sent as time passes, and reservations until one is accepted."""


@dataclass(frozen=True)
class MessageCount:
    """How many messages of one action were sent, and the bytes of their bodies."""

    messages: int = 0
    size_bytes: int = 0


def count_message(action: str, size_bytes: int) -> None:
    with _lock:
        before = _sent.get(action, MessageCount())
        _sent[action] = MessageCount(before.messages + 1, before.size_bytes + size_bytes)


def messages_by_action() -> Mapping[str, MessageCount]:
    with _lock:
        return dict(_sent)


def query_messages() -> MessageCount:
    """All messages of the actions that queries cause."""
    found = [sent for action, sent in messages_by_action().items() if action in OF_QUERIES]
    return MessageCount(sum(sent.messages for sent in found), sum(sent.size_bytes for sent in found))
