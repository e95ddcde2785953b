# SPDX-License-Identifier: Apache-2.0
"""Removes the code behind each invariant of the control plane, in a copy of the tree, and runs the test that must fail.

    python scripts/mutations.py                 all
    python scripts/mutations.py "one winner"    some

Ends with 1 if a mutation survives, or if a test fails without one. The table of docs/reliability.md is made from
`MUTATIONS` by docs/generate.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

SCHEDULE = "src/volley/coordinator/schedule.py"
MANIFEST = "src/volley/coordinator/manifest.py"
LEDGER = "src/volley/shuffle/service/ledger.py"
SERVER = "src/volley/shuffle/service/server_state.py"
PUSH_VALIDATION = "src/volley/shuffle/service/push_validation.py"
FEED = "src/volley/splits/feed.py"
DRIVERS = "src/volley/worker/drivers.py"
FRAMES = "src/volley/lower/plan_cache.py"


@dataclass(frozen=True)
class Mutation:
    """`before`, which occurs once in `path`, becomes `after`. Then `test` fails."""

    part: str
    invariant: str
    path: str
    before: str
    after: str
    test: str


ORDERS = "tests/coordinator/test_schedule.py::test_no_order_of_events_loses_or_doubles_a_row"
COMMITS = "tests/shuffle/test_service_commits.py"
SPLITS = "tests/splits/test_splits.py"

MUTATIONS = (
    Mutation(
        "scheduler",
        "Of several commits of a task the first one counts.",
        MANIFEST,
        "        if self._winners[task.task] is not None:\n            return False\n",
        "",
        "tests/coordinator/test_attempts.py::test_the_first_committed_attempt_wins_for_good",
    ),
    Mutation(
        "scheduler",
        "A commit of another epoch is refused.",
        MANIFEST,
        "        if task.stage != self._stage:\n",
        "        if False:\n",
        "tests/coordinator/test_attempts.py::test_a_commit_of_another_epoch_is_refused",
    ),
    Mutation(
        "scheduler",
        "A reader that would miss an output raises.",
        MANIFEST,
        "        if blocks is None and task not in self.unneeded:\n",
        "        if False:\n",
        "tests/coordinator/test_attempts.py::test_a_manifest_names_every_block_or_raises",
    ),
    Mutation(
        "scheduler",
        "What ended or was cancelled changes nothing any more.",
        SCHEDULE,
        "        return stage if running is not None and running.id == attempt else None\n",
        "        return stage if running is not None else None\n",
        "tests/coordinator/test_schedule.py::test_what_an_attempt_says_after_its_end_is_ignored",
    ),
    Mutation(
        "scheduler",
        "A lost output is computed again, and until then its readers wait.",
        SCHEDULE,
        "        stage.election.forget(attempts)\n",
        "",
        ORDERS,
    ),
    Mutation(
        "scheduler",
        "Readers of rows that cannot be repeated begin again.",
        SCHEDULE,
        "        if not stage.spec.repeatable:\n            self._roll_back_readers(stage)\n",
        "",
        ORDERS,
    ),
    Mutation(
        "scheduler",
        "So do the readers of these readers.",
        SCHEDULE,
        "                self._roll_back_readers(reader)\n",
        "",
        "tests/coordinator/test_schedule.py::test_readers_behind_outputs_that_are_lost_as_well_begin_again_too",
    ),
    Mutation(
        "scheduler",
        "A late report of a loss says nothing about newer outputs.",
        SCHEDULE,
        "stage.held_by(suspect) & known",
        "stage.held_by(suspect)",
        "tests/coordinator/test_schedule.py::test_a_late_report_says_nothing_about_outputs_that_were_made_since",
    ),
    Mutation(
        "scheduler",
        "Rows that the client has are not given again.",
        SCHEDULE,
        "        final = (attempt.has_delivered and not stage.spec.resumable) or not may_retry\n",
        "        final = not may_retry\n",
        "tests/coordinator/test_schedule.py::test_an_attempt_whose_rows_the_client_has_is_not_tried_again",
    ),
    Mutation(
        "scheduler",
        "A result that is in use is not replaced by other rows.",
        SCHEDULE,
        "        if stage.is_consumed and not stage.spec.repeatable:\n",
        "        if False:\n",
        "tests/coordinator/test_schedule.py::test_a_lost_result_in_use_that_cannot_be_repeated_is_an_error",
    ),
    Mutation(
        "scheduler",
        "Nor does it begin again because its input is lost.",
        SCHEDULE,
        "        if self.pinned is not None:\n",
        "        if False:\n",
        "tests/coordinator/test_schedule.py::test_a_result_in_use_is_not_computed_differently",
    ),
    Mutation(
        "workers",
        "A task that has no reservation starts only where a slot is free.",
        DRIVERS,
        "        if not is_reserved and not self.reserve(name, task.attempt):\n            return False\n",
        "        self.reserve(name, task.attempt)\n",
        "tests/worker/test_daemon.py::test_a_task_starts_without_a_reservation_if_a_slot_is_free",
    ),
    Mutation(
        "workers",
        "A frame that is used again reads the rows of its own run.",
        FRAMES,
        "            table.read_from(other)\n",
        "            pass\n",
        "tests/lower/test_plan_cache.py::test_a_frame_reads_the_rows_of_each_run",
    ),
    Mutation(
        "workers",
        "Two runs at a time do not share a frame.",
        FRAMES,
        "        found = _frames.pop(key)\n",
        "        pass\n",
        "tests/lower/test_plan_cache.py::test_a_frame_in_use_is_not_shared",
    ),
    Mutation(
        "ledger",
        "Of attempts that race the first commit wins.",
        LEDGER,
        "rival.committed_at > attempt.begun",
        "False",
        f"{COMMITS}::test_of_two_that_race_the_first_commit_wins",
    ),
    Mutation(
        "ledger",
        "No attempt commits after a later one.",
        LEDGER,
        "rival.id.attempt > attempt.id.attempt or ",
        "",
        f"{COMMITS}::test_an_attempt_does_not_pass_a_later_one",
    ),
    Mutation(
        "ledger",
        "Calls of old epochs are refused.",
        LEDGER,
        "        if stage.epoch < newest:\n",
        "        if False:\n",
        f"{COMMITS}::test_an_old_epoch_is_refused_on_every_call",
    ),
    Mutation(
        "ledger",
        "An aborted attempt takes nothing more.",
        LEDGER,
        "        query.closed.add(id)\n",
        "",
        f"{COMMITS}::test_a_closed_attempt_takes_nothing_more",
    ),
    Mutation(
        "ledger",
        "A query that is over does not begin again.",
        LEDGER,
        "        if query in self._over:\n            raise self._over_refusal(query)\n"
        "        if query in self.queries:\n",
        "        if query in self.queries:\n",
        f"{COMMITS}::test_a_query_that_is_over_does_not_begin_again",
    ),
    Mutation(
        "ledger",
        "Who does not have the key of a query cannot use it.",
        LEDGER,
        "known is not None and query.has_key_of(known.id)",
        "known is not None",
        "tests/cluster/test_query_keys.py::test_every_call_about_a_query_needs_its_key",
    ),
    Mutation(
        "service",
        "A commit is in the journal before it is acknowledged.",
        SERVER,
        "                self._journal.append(record_of(attempt, blocks.values()))\n",
        "                pass\n",
        f"{COMMITS}::test_what_was_committed_is_there_after_a_kill_at_every_step",
    ),
    Mutation(
        "service",
        "Its data is on disk before that.",
        SERVER,
        "            self._storage.keep(attempt.chunks.values())\n",
        "            pass\n",
        f"{COMMITS}::test_a_commit_is_on_disk_before_it_is_acknowledged",
    ),
    Mutation(
        "service",
        "A commit that lost while its data was written is refused.",
        SERVER,
        "            # Another attempt may have won meanwhile, or the query may be over.\n"
        "            self._ledger.check_commit(attempt)\n",
        "",
        f"{COMMITS}::test_who_lost_while_its_chunks_were_written_is_refused",
    ),
    Mutation(
        "service",
        "A commit names exactly what arrived.",
        SERVER,
        "            check_complete(attempt, blocks)\n",
        "",
        f"{COMMITS}::test_a_commit_of_what_did_not_arrive_is_refused",
    ),
    Mutation(
        "service",
        "A chunk that arrives twice is stored once.",
        SERVER,
        '                    self.counts.add("chunks_repeated")\n                    continue\n',
        '                    self.counts.add("chunks_repeated")\n',
        f"{COMMITS}::test_a_lost_acknowledgement_doubles_nothing",
    ),
    Mutation(
        "service",
        "A query that the journal does not name has not begun.",
        SERVER,
        "            self._ledger.undo_begin(query)\n",
        "",
        "tests/shuffle/test_service_room.py::test_a_query_does_not_begin_when_the_journal_cannot_be_written",
    ),
    Mutation(
        "service",
        "What a dead driver left is removed.",
        SERVER,
        "            self._end(query, LEASE_EXPIRED)\n",
        "",
        "tests/shuffle/test_service_leases.py::test_what_a_dead_driver_left_is_removed",
    ),
    Mutation(
        "service",
        "A pause of the server is not the driver's.",
        SERVER,
        "self._deadlines[query] += seconds",
        "self._deadlines[query] += 0",
        "tests/shuffle/test_service_leases.py::test_a_pause_of_the_server_is_not_the_drivers",
    ),
    Mutation(
        "feed",
        "Every attempt at a task reads the splits of the one before.",
        FEED,
        "            if not ledger.is_end(after):\n",
        "            if False:\n",
        f"{SPLITS}::test_every_attempt_at_a_task_reads_the_same_and_then_goes_on",
    ),
    Mutation(
        "feed",
        "A committed task gets no more splits.",
        FEED,
        "        self._ledgers.setdefault(task, Ledger()).closed = True\n",
        "",
        f"{SPLITS}::test_a_committed_task_gets_no_more",
    ),
    Mutation(
        "feed",
        "Discovery waits for tasks.",
        FEED,
        "            while not self.closed and not self._has_room():\n",
        "            while False:\n",
        f"{SPLITS}::test_discovery_waits_for_tasks",
    ),
    Mutation(
        "feed",
        "An error of discovery is an error of the query.",
        FEED,
        "            self.error = None if self.closed else error\n",
        "            self.error = None\n",
        f"{SPLITS}::test_an_error_comes_with_its_cause_to_everybody",
    ),
)


def run_tests(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    paths = sorted({test.partition("::")[0] for test in tests})
    names = " or ".join(sorted({test.partition("::")[2] for test in tests}))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *paths, "-k", names],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def survives(tree: Path, mutation: Mutation) -> str | None:
    """Why the mutation is not proof; None if its test fails with it."""
    path = tree / mutation.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.before) != 1:
        return f"{mutation.path} has its text {text.count(mutation.before)} times"
    path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
    try:
        changed = run_tests(tree, mutation.test)
    finally:
        path.write_text(text, encoding="utf-8")
    # 1: tests failed. Others would mean that nothing was run.
    return None if changed.returncode == 1 else f"its test ended with {changed.returncode}"


def main(wanted: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not wanted or any(w in f"{m.part}: {m.invariant}" for w in wanted)]
    alive = 0
    with tempfile.TemporaryDirectory(prefix="volley-mutations-") as directory:
        tree = Path(directory)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        clean = run_tests(tree, *(mutation.test for mutation in chosen))
        if clean.returncode:
            print(f"a test fails without a mutation:\n{clean.stdout[-3000:]}{clean.stderr[-1000:]}")
            return 1
        for mutation in chosen:
            reason = survives(tree, mutation)
            alive += reason is not None
            print(f"{'SURVIVES' if reason else 'killed  '} {mutation.part}: {mutation.invariant}", flush=True)
            if reason:
                print(f"    {mutation.test}: {reason}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutations are killed by their tests")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
