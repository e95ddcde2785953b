# SPDX-License-Identifier: Apache-2.0
"""Scales a local cluster with its load: stops idle workers, and starts them again when the others are busy.

Only for clusters with a shared shuffle store; otherwise the output of a worker would be lost with it.
"""

from __future__ import annotations

import time

from volley.cluster import LocalCluster, Member


class Autoscaler:
    """Scales between `least` workers and the initial size of the cluster."""

    def __init__(self, cluster: LocalCluster, least: int, idle_seconds: float) -> None:
        self._cluster = cluster
        self._least = least
        self._idle_seconds = idle_seconds
        self._idle_since: dict[str, float] = {}
        # A session knows its workers by address, so restarted workers reuse the old ports.
        self._released: list[Member] = []

    def step(self) -> None:
        """Check the health of all workers once, and stop or restart at most one."""
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
