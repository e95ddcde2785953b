# SPDX-License-Identifier: Apache-2.0
"""Fetches a stream of blocks from the processes that hold them, ahead of the reader."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import BlockDamaged, BlockMissing, VolleyError
from volley.events import Distance
from volley.fetch_counters import current_fetch_counters
from volley.rpc.client import first_line
from volley.rpc.codec import encode
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.chunks import Index, Unsealer, check_totals
from volley.shuffle.config import RetryPolicy
from volley.shuffle.frames import Header, Kind, unframe
from volley.shuffle.location import Place

Connect = Callable[[Place], flight.FlightClient]
"""Returns a client of the holder. Called again after a failure."""

# Retrying does not help: the peer will not trust us then either.
FINAL = (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)


class Fetch(Generic[Place]):
    """Reads `blocks` in order on its own thread, at most `budget_bytes` ahead of the reader.

    Each of `holders` has all the blocks. If one fails or sends damaged data, the fetch resumes from the next holder
    at the same chunk.

    Blocks must be taken in the order in which they are fetched. One queue therefore serves them all, and a reader that
    uses several fetches in block order cannot deadlock them.
    """

    def __init__(
        self,
        holders: Sequence[Place],
        blocks: Sequence[Block],
        connect: Connect[Place],
        *,
        codec: str,
        budget_bytes: int,
        retry_policy: RetryPolicy,
        max_message_bytes: int,
    ) -> None:
        self._holders = tuple(holders)
        self._asked = 0
        self._without: set[int] = set()  # holders that do not have the next chunk
        self._blocks = tuple(blocks)
        self._connect = connect
        self._codec = codec
        self._budget_bytes = budget_bytes
        self._retry_policy = retry_policy
        self._max_message_bytes = max_message_bytes
        self._counters = current_fetch_counters()
        self._changed = threading.Condition()
        self._ready: deque[tuple[int, pa.RecordBatch]] = deque()
        self._ready_bytes = 0
        self._complete = 0  # blocks that have arrived in full
        self._error: VolleyError | None = None
        self._closed = threading.Event()
        self._asking = False
        self._stream: flight.FlightStreamReader | None = None
        self._thread = threading.Thread(target=self._run, name="volley-fetch", daemon=True)
        self._thread.start()

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of block `number` as they arrive."""
        while (batch := self._next(number)) is not None:
            yield batch

    def fail(self, error: VolleyError) -> None:
        """Stop the fetch. Readers get `error`."""
        with self._changed:
            self._error = self._error or error
        self._stop()

    def close(self) -> None:
        """Stop the fetch and free what it holds."""
        self._stop()
        # A call without an answer yet cannot be interrupted. It holds nothing, and ends at its deadline.
        if not self._asking and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._changed:
            self._ready.clear()
            if self._error is not None:
                # Readers have got the error. Its traceback has their frames, and these have this fetch: a cycle.
                self._error = BlockMissing("this fetch is closed.")

    def _next(self, number: int) -> pa.RecordBatch | None:
        with self._changed:
            while True:
                if self._ready and self._ready[0][0] == number:
                    _, batch = self._ready.popleft()
                    self._ready_bytes -= batch.nbytes
                    self._changed.notify_all()
                    return batch
                if self._complete > number:
                    return None
                if self._error is not None:
                    raise self._error
                self._changed.wait()

    # ---------------------------------------------------------------------------------- on the thread that fetches

    def _run(self) -> None:
        progress = _Progress(self._blocks)
        failures = 0
        while not self._closed.is_set() and not progress.finished:
            arrived = progress.chunks_arrived
            try:
                self._read(progress)
            except BlockMissing as error:
                if progress.chunks_arrived > arrived:
                    self._without.clear()
                self._without.add(self._asked)
                if not self._ask_another():
                    self._end(error)
                    return
                self._counters.count_retry()
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                came = progress.chunks_arrived > arrived
                if came:
                    self._without.clear()
                if came and isinstance(error, flight.FlightTimedOutError):
                    # The call timed out after some progress, perhaps because the reader is slow: ask for the rest.
                    failures = 0
                    continue
                failures = 1 if came else failures + 1
                if not self._may_go_on(error, progress, failures):
                    return
            except Exception as error:
                # Whatever it is, the waiting reader must get it.
                self._end(self._unreadable(progress, str(error), error))
                return
        self._end(None)

    def _read(self, progress: _Progress) -> None:
        """Request the remaining chunks and read them until the end or the first failure."""
        request = BlockRequest(
            self._blocks[progress.block :], progress.chunk, self._codec, self._max_message_bytes
        )
        asked: float | None = time.perf_counter()
        stream = self._ask(request)
        if stream is None:
            return
        first = progress.block
        parts: list[pa.Buffer] = []
        distance = Distance.HOST if self._holder.on_this_host else Distance.REMOTE
        try:
            for part in stream:
                if asked is not None:
                    self._counters.count_request(time.perf_counter() - asked)
                    asked = None
                header, data = unframe(part.data, part.app_metadata)
                self._check(header, data, first)
                if header.kind is Kind.INDEX:
                    progress.begin(first + header.block, data)
                    self._arrived(progress, None)
                    continue
                parts.append(data)
                if header.last:
                    batch = progress.unseal(header.chunk, _whole(parts, header))
                    self._counters.count_data(distance, batch.nbytes, sum(part.size for part in parts))
                    parts = []
                    if not self._arrived(progress, batch):
                        return
        finally:
            # Dropping an unfinished stream waits for the other side to finish, while holding the GIL.
            stream.cancel()
            with self._changed:
                self._stream = None
        if not progress.finished:
            raise OSError(f"{self._holder.address} ended the stream early")

    def _ask(self, request: BlockRequest) -> flight.FlightStreamReader | None:
        """Send the request. Returns None if the fetch was closed meanwhile."""
        options = flight.FlightCallOptions(timeout=self._retry_policy.stall_seconds)
        with self._changed:
            if self._closed.is_set():
                return None
            self._asking = True
        stream = None
        try:
            stream = self._connect(self._holder).do_get(flight.Ticket(encode(request)), options)
        finally:
            with self._changed:
                self._asking = False
                self._stream = stream
                unwanted = self._closed.is_set()
        if unwanted:
            stream.cancel()
            return None
        return stream

    def _check(self, header: Header, data: pa.Buffer, first: int) -> None:
        if header.kind in (Kind.MISSING, Kind.DAMAGED):
            error = BlockMissing if header.kind is Kind.MISSING else BlockDamaged
            block = self._blocks[first + header.block]
            raise error(data.to_pybytes().decode(), attempt=block.attempt)

    def _arrived(self, progress: _Progress, batch: pa.RecordBatch | None) -> bool:
        """Queue a batch, waiting while too much is prefetched. Returns False once the fetch is closed."""
        with self._changed:
            if batch is not None:
                # A batch larger than the whole budget passes alone.
                while (
                    not self._closed.is_set()
                    and self._ready
                    and self._ready_bytes + batch.nbytes > self._budget_bytes
                ):
                    self._changed.wait()
                self._ready.append((progress.current, batch))
                self._ready_bytes += batch.nbytes
            self._complete = progress.block
            self._changed.notify_all()
            return not self._closed.is_set()

    @property
    def _holder(self) -> Place:
        return self._holders[self._asked]

    def _ask_another(self) -> bool:
        """Switch to the next holder that may have the next chunk; False if there is none."""
        count = len(self._holders)
        for number in ((self._asked + step) % count for step in range(1, count + 1)):
            if number not in self._without:
                self._asked = number
                return True
        return False

    def _may_go_on(self, error: Exception, progress: _Progress, failures: int) -> bool:
        """Wait before a retry. Returns False if there is none; the reader then gets the error."""
        if self._closed.is_set() or progress.finished:
            self._end(None)
            return False
        if len(self._holders) == 1 and self._holder.gone:
            self._end(self._unreadable(progress, "its process has ended", error))
            return False
        # Try every holder once before trying any of them again.
        rounds, others = divmod(failures, len(self._holders))
        last = rounds + (others > 0) > self._retry_policy.attempts + (len(self._holders) > 1)
        if last or (len(self._holders) == 1 and isinstance(error, FINAL)):
            self._end(self._unreadable(progress, f"{failures} tries failed, {first_line(error)}", error))
            return False
        self._ask_another()
        self._counters.count_retry()
        if not others:
            with self._changed:
                self._changed.wait_for(self._closed.is_set, timeout=self._retry_policy.delay(rounds))
        return True

    def _unreadable(self, progress: _Progress, why: str, cause: Exception) -> BlockMissing:
        block = self._blocks[min(progress.block, len(self._blocks) - 1)]
        missing = BlockMissing(
            f"{block} cannot be read from {self._holder.address}: {why}.", attempt=block.attempt
        )
        missing.__cause__ = cause
        return missing

    def _end(self, error: VolleyError | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._closed.set()
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------- on any thread

    def _stop(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            stream = self._stream
        if stream is not None:
            stream.cancel()


class _Progress:
    """What has arrived: all blocks before `block`, and `chunk` chunks of that one."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._index: Index | None = None
        self._unsealer: Unsealer | None = None
        self.block = 0
        self.chunk = 0
        self.current = 0
        self.chunks_arrived = 0

    @property
    def finished(self) -> bool:
        return self.block == len(self._blocks)

    def begin(self, number: int, packed: pa.Buffer) -> None:
        if number != self.block:
            raise OSError("a block came out of its order")
        block = self._blocks[number]
        self._index = Index.unpack(packed, block)
        check_totals(block, self._index)
        self._unsealer = Unsealer(block, self._index)
        self.current = number
        self._skip_complete()

    def unseal(self, chunk: int, data: pa.Buffer) -> pa.RecordBatch:
        if chunk != self.chunk or self._unsealer is None:
            raise OSError("a chunk came out of its order")
        batch = self._unsealer.unseal(chunk, data)
        self.chunk += 1
        self.chunks_arrived += 1
        self._skip_complete()
        return batch

    def _skip_complete(self) -> None:
        if self._index is not None and self.chunk == len(self._index.chunks):
            self.block += 1
            self.chunk = 0
            self._index = None


def _whole(parts: list[pa.Buffer], header: Header) -> pa.Buffer:
    data = parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))
    return data if header.codec == "none" else pa.Codec(header.codec).decompress(data, header.size_bytes)
