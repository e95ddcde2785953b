# SPDX-License-Identifier: Apache-2.0
"""The ledger of a shuffle server as a state machine: whatever the order of calls, commits are linearizable."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.shuffle_messages import COMMIT_LOST, LEASE_EXPIRED, QUERY_OVER, STALE_EPOCH, UNKNOWN_QUERY
from volley.shuffle.service.ledger import Attempt, Ledger, Refusal

QUERIES = [QueryId("a", "key"), QueryId("b", "key")]
STRANGER = QueryId("a", "another key")
EPOCHS = 2
numbers = st.integers(0, 2)
# Mostly the first query, as its driver knows it: what is interesting happens when calls meet.
queries = st.sampled_from([QUERIES[0], QUERIES[0], QUERIES[0], QUERIES[0], QUERIES[1], STRANGER])
late = st.sampled_from([0, 0, 0, 1])


@dataclass
class Story:
    """When an attempt began and committed, by the number of the call."""

    begun: int
    committed: int | None = None


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.call = 0
        self.begun: set[str] = set()
        self.over: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self.stories: dict[AttemptId, Story] = {}
        self.aborted: set[AttemptId] = set()

    def id(self, query: QueryId, number: int, late: int = 0) -> AttemptId:
        """An attempt at a task, in the epoch that its query is in, or in the one before."""
        epoch = max(0, self.epochs.get(query.value, 0) - late)
        return AttemptId(TaskId(StageId(query, 0, epoch), 0), number)

    def ask(self, function: Any, *arguments: Any) -> tuple[Any, str]:
        """The answer, or the code of a refusal, which must have changed nothing but the epoch."""
        self.call += 1
        before = copy.deepcopy(self.ledger.queries)
        try:
            return function(*arguments), ""
        except Refusal as refusal:
            after = self.ledger.queries
            for query, was in before.items():
                assert (was.attempts.keys(), was.closed) == (
                    after[query].attempts.keys(),
                    after[query].closed,
                )
            return None, refusal.code

    def admits(self, id: AttemptId, code: str) -> bool:
        """Whether a call about this attempt may get past its query, its key and its epoch."""
        name = id.query.value
        if name in self.over:
            assert code == self.over[name]
        elif name not in self.begun or id.query.key != "key":
            assert code == UNKNOWN_QUERY
        elif id.task.stage.epoch < self.epochs.get(name, 0):
            assert code == STALE_EPOCH
        else:
            self.epochs[name] = id.task.stage.epoch
            return True
        return False

    @initialize()
    def begin_first(self) -> None:
        self.begin(QUERIES[0])

    @rule(query=st.sampled_from(QUERIES))
    def begin(self, query: QueryId) -> None:
        is_new, code = self.ask(self.ledger.begin, query, "application")
        if query.value in self.over:
            assert code == self.over[query.value]
        else:
            assert is_new == (query.value not in self.begun)
            self.begun.add(query.value)

    @rule(
        query=st.sampled_from(QUERIES),
        code=st.sampled_from([QUERY_OVER, LEASE_EXPIRED]),
        sure=st.integers(0, 9),
    )
    def end(self, query: QueryId, code: str, sure: int) -> None:
        if sure < 9:
            return
        self.ledger.end(query, code)
        self.over[query.value] = code
        self.begun.discard(query.value)
        self.stories = {id: story for id, story in self.stories.items() if id.query.value != query.value}

    @rule(query=queries, number=numbers, late=late)
    def open(self, query: QueryId, number: int, late: int) -> None:
        id = self.id(query, number, late)
        _, code = self.ask(self.ledger.open, id)
        if self.admits(id, code) and not code:
            assert id not in self.aborted
            self.stories.setdefault(id, Story(self.call))

    @rule(query=queries, number=numbers, late=late)
    def commit(self, query: QueryId, number: int, late: int) -> None:
        id = self.id(query, number, late)
        attempt, code = self.ask(self.ledger.open, id)
        if not self.admits(id, code) or code:
            return
        assert isinstance(attempt, Attempt)
        story = self.stories.setdefault(id, Story(self.call))
        _, code = self.ask(self.ledger.check_commit, attempt)
        if not code:
            self.ledger.commit(attempt, {})
            story.committed = self.call
        else:
            assert code == COMMIT_LOST

    @rule(first=numbers, second=numbers)
    def race(self, first: int, second: int) -> None:
        """Two attempts that are open at the same time."""
        for step in (self.open, self.commit):
            for number in (first, second):
                step(QUERIES[0], number, 0)

    @rule(rarely=st.integers(0, 9))
    def roll_back(self, rarely: int) -> None:
        """An attempt of the next epoch begins."""
        name = QUERIES[0].value
        if rarely == 9 and name in self.begun and self.epochs.get(name, 0) < EPOCHS:
            self.epochs[name] = self.epochs.get(name, 0) + 1
            self.open(QUERIES[0], 0, 0)

    @rule(query=queries, number=numbers, late=late)
    def abort(self, query: QueryId, number: int, late: int) -> None:
        id = self.id(query, number, late)
        _, code = self.ask(self.ledger.abort, id)
        if not code and (id not in self.stories or self.stories[id].committed is None):
            self.aborted.add(id)
            self.stories.pop(id, None)

    @rule(query=queries, number=numbers, late=late)
    def read(self, query: QueryId, number: int, late: int) -> None:
        id = self.id(query, number, late)
        found, code = self.ask(self.ledger.committed, id)
        if self.admits(id, code):
            story = self.stories.get(id)
            assert (found is not None) == (story is not None and story.committed is not None)

    @invariant()
    def commits_of_a_task_follow_each_other(self) -> None:
        """Of two commits, the later one began after the earlier was there, and has the higher number."""
        done = sorted(
            (story.committed, story.begun, id)
            for id, story in self.stories.items()
            if story.committed is not None
        )
        for number, (committed, _, id) in enumerate(done):
            for _, begun, other in done[number + 1 :]:
                if other.task == id.task:
                    assert begun > committed
                    assert other.attempt > id.attempt


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40)
