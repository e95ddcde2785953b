# SPDX-License-Identifier: Apache-2.0
"""A local cluster that is as large as its work: idle workers are let go, and come back when the others are busy.

Only for clusters whose exchanged data is kept beside the workers; otherwise what a worker computed would go with it.
"""

from __future__ import annotations

import time

from volley.cluster import LocalCluster, Member


class Elastic:
    """Between `least` workers and as many as the cluster had at first."""

    def __init__(self, cluster: LocalCluster, least: int, idle_seconds: float) -> None:
        self._cluster = cluster
        self._least = least
        self._idle_seconds = idle_seconds
        self._idle_since: dict[str, float] = {}
        # A session knows its workers by their addresses, so those who come back take the old ones.
        self._released: list[Member] = []

    def step(self) -> None:
        """Look at the workers once, and let one go or take one back where that is due."""
        now = time.monotonic()
        health = self._cluster.health()
        states = list(zip(list(self._cluster.members), health, strict=True))
        for member, state in states:
            if state is None or state.running or state.reserved:
                self._idle_since.pop(member.address, None)
                continue
            since = self._idle_since.setdefault(member.address, now)
            if now - since >= self._idle_seconds and len(self._cluster.members) > self._least:
                del self._idle_since[member.address]
                self._cluster.release(member)
                self._released.append(member)
                return
        busy = [state for state in health if state and state.running + state.reserved >= state.slots]
        vacant = next((member for member in self._released if not member.alive), None)
        if vacant is not None and len(busy) == len(self._cluster.members):
            self._released.remove(vacant)
            self._cluster.add(port=int(vacant.address.rpartition(":")[2]))
