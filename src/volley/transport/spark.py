# SPDX-License-Identifier: Apache-2.0
"""Workers inside the executors of the user's own Spark application: each stage is a Spark job of native tasks.

    coordinator    starts the attempts of a stage, one by one
    transport      batches those that start together into one job, one attempt per partition
    Spark          places, retries and speculates its tasks; cancels them by job group or tag
    Spark task     has the sidecar of its executor run the attempt (`spark_task.py`)
    sidecar        runs it, pulls splits from the driver (`spark_control.py`), holds and serves its output

Spark chooses the executor of an attempt. So the workers of this transport are virtual slots, one per core of the
application; which sidecar ran an attempt and holds its output is known only when it has ended.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import datafusion
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from volley.config import Config
from volley.errors import PeerRefused, QueryError
from volley.events import TaskProgress
from volley.ids import AttemptId, QueryId, StageId
from volley.option_values import parse_bytes
from volley.process.runtime import Phase, Shared
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import NOT_RESERVED
from volley.rpc.handshake import Identity, process_name
from volley.rpc.messages import (
    Failure,
    SplitBatch,
    SplitRequest,
    TaskDone,
    TaskFailure,
    TaskSpec,
    WorkerInfo,
)
from volley.security import Credentials, Security
from volley.shuffle.base import Block, SharedStore
from volley.shuffle.factory import driver_reader
from volley.shuffle.shared_store import QueryLease
from volley.transport.base import RunningTask
from volley.transport.driver_hosts import driver_hosts
from volley.transport.failed_task import FailedTask
from volley.transport.ingest import SidecarIngest
from volley.transport.sidecar_launcher import SidecarSettings
from volley.transport.spark_control import Channel, Control
from volley.transport.spark_task import coordinator_attempt, perform
from volley.user_token import token_file_for

# Attempts that start within this time become one job. A stage starts all its attempts at once.
_GATHER_SECONDS = 0.005
# One thread waits for each job. Calls have their own threads, so that a job can always be cancelled.
_JOB_THREADS = 1024
_CALL_THREADS = 16
_RELEASE_SECONDS = 5.0
_OVERHEAD_MIN_BYTES = 384 * 2**20

# Spark's job properties of the calling thread, which the jobs of its query inherit.
_INHERITED = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.job.tags",
    "spark.scheduler.pool",
)


class Application:
    """What the queries of one SparkContext with the same settings share: the token, the known sidecars and the control
    server for executors. Raises ConfigError if the driver must not listen for them."""

    def __init__(self, context: SparkContext, config: Config) -> None:
        self.context = context
        self.threads = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="volley-spark")
        self.jobs = ThreadPoolExecutor(_JOB_THREADS, thread_name_prefix="volley-spark-job")
        # Shuffle servers expect the session's token too, if it has one. Otherwise generate one.
        given = Security.read(token_file_for(config.shuffle_service, config.token_file)).token
        settings = SidecarSettings(
            token=given or secrets.token_hex(32),
            files=(config.tls_ca_file, config.tls_certificate_file, config.tls_key_file),
            insecure=config.executor_insecure,
            memory_bytes=config.executor_memory or _overhead_bytes(context),
            cores_a_task=int(context.getConf().get("spark.task.cpus", "1")),
            options=dict(config.shuffle_options),
        )
        self.credentials = Credentials(settings.token, settings.files)
        self.security = self.credentials.read()
        self.stall_seconds = config.shuffle_timeout_seconds
        self._lock = threading.Lock()
        self._holders: set[str] = set()
        hosts = driver_hosts(context)
        self.control = Control(*hosts, self.security, config.executor_insecure, self.add_holder)
        identity = Identity.of_this_process(process_name("driver"))
        self.shared = context.broadcast((settings, identity, context.defaultParallelism))

    @property
    def holders(self) -> list[str]:
        with self._lock:
            return sorted(self._holders)

    def add_holder(self, holder: str) -> None:
        with self._lock:
            self._holders.add(holder)

    def remove_holder(self, holder: str) -> None:
        with self._lock:
            self._holders.discard(holder)

    def release(self, holder: str, query: QueryId) -> None:
        """Release a query on a sidecar. One that cannot be reached is gone with its executor."""
        with Client(holder, self.security, role="sidecar", timeout_seconds=_RELEASE_SECONDS) as client:
            try:
                client.call("release", query)
            except PeerRefused:
                pass  # The sidecar is alive. What it could not free is freed when its executor ends.
            except QueryError:
                self.remove_holder(holder)

    def close(self) -> None:
        """Stop the control server: no server thread may run when the interpreter exits."""
        self.control.close()


_Settings = tuple[Any, ...]
_applications: Shared[tuple[SparkContext, _Settings], Application] = Shared(
    Phase.CONNECTIONS, close=Application.close
)


def shared_application(context: SparkContext, config: Config) -> Application:
    """The shared `Application` for these settings. Sidecars cannot change theirs: other settings need another one."""
    key = (
        config.executor_memory,
        config.executor_insecure,
        config.token_file,
        config.tls_ca_file,
        config.tls_certificate_file,
        config.tls_key_file,
        *config.shuffle_options,
    )
    with _applications.locked() as applications:
        for other in [other for other in applications if other[0]._jsc is None]:
            applications.pop(other).close()  # its SparkContext was stopped
        return _applications.get((context, key), lambda: Application(context, config))


def close_applications() -> None:
    """Stop listening for the executors of all SparkContexts."""
    _applications.close()


class SparkTransport:
    """A `Transport` over the executors of a SparkContext. Inherits job group and tags of the thread that creates it.

    `shared` is a store that the sidecars use in addition to their own.
    """

    def __init__(self, application: Application, shared: SharedStore | None = None) -> None:
        self._application = application
        self._data = QueryLease(shared) if shared else None
        self._context = application.context
        self._inherited = {
            key: value for key in _INHERITED if (value := self._context.getLocalProperty(key)) is not None
        }
        self._slots = [f"spark-{number}" for number in range(max(1, self._context.defaultParallelism))]
        self._taken: dict[AttemptId, str] = {}
        self._begun: set[AttemptId] = set()
        self._released: set[QueryId] = set()
        self._gathering: dict[StageId, _Job] = {}
        self._gatherings: set[asyncio.Task[None]] = set()
        self._jobs: set[_Job] = set()
        self._made_by: dict[AttemptId, str] = {}

    def workers(self) -> Sequence[WorkerInfo]:
        """Virtual slots of one core each."""
        return [WorkerInfo(name, 1, 1, datafusion.__version__) for name in self._slots]

    def holders(self) -> Set[str]:
        """The known sidecars."""
        return frozenset(self._application.holders)

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        seen = attempt in self._taken or attempt in self._begun or attempt.query in self._released
        if worker not in self._slots or worker in self._taken.values() or seen:
            return False
        self._taken[attempt] = worker
        return True

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        stage = task.attempt.task.stage
        if self._taken.get(task.attempt) != worker or task.attempt in self._begun:
            message = f"{task.attempt} has no slot reserved on {worker}."
            return FailedTask(TaskFailure(task.attempt, Failure.WORKER, NOT_RESERVED, message))
        # Encode here, so that an error reaches the caller.
        task = replace(task, driver=self._application.control.address)
        try:
            payload = encode(task)
        except BaseException:
            del self._taken[task.attempt]
            raise
        self._begun.add(task.attempt)
        if self._data and task.output is not None:
            await self._data.begin(stage.query)
        job = self._gathering.get(stage)
        if job is None:
            job = self._gathering[stage] = _Job(stage)
            gathering = asyncio.create_task(self._submit_soon(job))
            self._gatherings.add(gathering)
            gathering.add_done_callback(self._gatherings.discard)
        running = SparkTask(task, payload, job, self)
        job.tasks.append(running)
        return running

    async def open_ingest(self, query: QueryId) -> SidecarIngest:
        """Let Spark tasks push rows to the sidecars of their executors, until `release` of the query."""
        if self._data:
            await self._data.begin(query)
        application = self._application
        return SidecarIngest(
            application.shared,
            application.control.address,
            application.credentials,
            application.stall_seconds,
        )

    def listen(self, attempt: AttemptId, ended: Callable[[TaskDone | TaskFailure], None]) -> Channel:
        """Open the control channel of an attempt. `ended` gets outcomes that arrive before the end of the Spark job."""
        channel = Channel(ended, self._application.add_holder)
        self._application.control.open(attempt, channel)
        return channel

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        if self._data and block.outlives_worker:
            return self._data.store.read(block)
        return driver_reader(self._application.security).read(block)

    async def release(self, query: QueryId) -> None:
        self._released.add(query)
        unsent = [job for job in self._gathering.values() if job.stage.query == query]
        for job in [*unsent, *(job for job in self._jobs if job.stage.query == query)]:
            for task in job.tasks:
                await task.cancel()
        loop = asyncio.get_running_loop()
        threads = self._application.threads
        calls = (
            loop.run_in_executor(threads, self._application.release, holder, query)
            for holder in self._application.holders
        )
        await asyncio.gather(*calls, return_exceptions=True)
        if self._data:
            await self._data.release(query)

    def finish(self, attempt: AttemptId, outcome: TaskDone | TaskFailure) -> None:
        """Free the slot of an attempt, and learn from its outcome which sidecars are alive."""
        self._taken.pop(attempt, None)
        self._application.control.forget(attempt)
        if isinstance(outcome, TaskDone):
            self._made_by[outcome.attempt] = outcome.made_by
            self._application.add_holder(outcome.made_by)
        elif outcome.lost is not None and not outcome.damaged:
            self._application.remove_holder(self._made_by.get(outcome.lost, ""))

    async def cancel_job(self, job: _Job) -> None:
        """Cancel a job that nobody waits for."""
        if job.over or not job.submitted:
            job.over = True
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._application.threads, self._context.cancelJobsWithTag, job.tag)

    # -------------------------------------------------------------------------------------------- jobs

    async def _submit_soon(self, job: _Job) -> None:
        """Wait for the attempts that start together, then submit them."""
        await asyncio.sleep(_GATHER_SECONDS)
        self._gathering.pop(job.stage, None)
        self._submit(job)

    def _submit(self, job: _Job) -> None:
        """Run the job with the attempts that it has."""
        waiting = [task for task in job.tasks if not task.over]
        if job.over or not waiting:
            return
        job.submitted = True
        self._jobs.add(job)
        loop = asyncio.get_running_loop()
        payloads = [task.payload for task in waiting]
        running = loop.run_in_executor(self._application.jobs, self._run, job, payloads)
        running.add_done_callback(lambda ended: self._finish_job(job, waiting, ended))

    def _run(self, job: _Job, payloads: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Run the Spark job, on its own thread, with the query's job properties."""
        context = self._context
        query, stage = job.stage.query, job.stage.stage
        properties = {
            "spark.jobGroup.id": f"volley-{query}",
            "spark.job.interruptOnCancel": "true",
            **self._inherited,
            "spark.job.description": f"Volley query {query}, stage {stage}: {len(payloads)} native tasks",
            "spark.job.tags": ",".join(filter(None, (self._inherited.get("spark.job.tags"), job.tag))),
        }
        for key in _INHERITED:
            context.setLocalProperty(key, properties.get(key))  # type: ignore[arg-type]  # None unsets it
        native: Callable[[Any], Any] = partial(perform, self._application.shared)
        return context.parallelize(payloads, len(payloads)).mapPartitions(native).collect()

    def _finish_job(self, job: _Job, tasks: list[SparkTask], ended: asyncio.Future[Any]) -> None:
        job.over = True
        self._jobs.discard(job)
        error = ended.exception() if not ended.cancelled() else RuntimeError("the driver is stopping")
        kind = Failure.WORKER
        if error is None:
            try:
                outcomes = [
                    (_decode_outcome(outcome, task.attempt), rows)
                    for task, (outcome, rows) in zip(tasks, ended.result(), strict=True)
                ]
            except Exception as unreadable:
                # An exception of this callback would be lost, so every attempt must fail with it.
                error, kind = unreadable, Failure.INTERNAL
            else:
                for task, (outcome, rows) in zip(tasks, outcomes, strict=True):
                    task.end(outcome, rows)
                return
        if isinstance(error, PySparkException | Py4JError) and "SPARK_JOB_CANCELLED" in str(error):
            kind = Failure.CANCELLED
        for task in tasks:
            task.end(TaskFailure(task.attempt, kind, type(error).__name__, _cause(error)), b"")


def _decode_outcome(payload: bytes, attempt: AttemptId) -> TaskDone | TaskFailure:
    """Decode the outcome that a Spark task returned. Raises QueryError for anything else."""
    outcome = decode(payload)
    if not isinstance(outcome, TaskDone | TaskFailure) or coordinator_attempt(outcome.attempt) != attempt:
        raise QueryError(f"a Spark task returned {type(outcome).__name__} for {attempt}.")
    return outcome


class _Job:
    """The attempts of a stage that start together, as one Spark job."""

    def __init__(self, stage: StageId) -> None:
        self.stage = stage
        self.tag = f"volley-job-{secrets.token_hex(6)}"
        self.tasks: list[SparkTask] = []
        self.submitted = False
        self.over = False


class SparkTask:
    """A `RunningTask` that is one task of a Spark job. Lives on the event loop that created it."""

    def __init__(self, spec: TaskSpec, payload: bytes, job: _Job, transport: SparkTransport) -> None:
        """`payload` is the encoded `spec`."""
        self.spec = spec
        self.payload = payload
        self._job = job
        self._transport = transport
        self._end: asyncio.Future[tuple[TaskDone | TaskFailure, bytes]] = (
            asyncio.get_running_loop().create_future()
        )
        self._channel = transport.listen(spec.attempt, self._on_outcome)

    @property
    def attempt(self) -> AttemptId:
        return self.spec.attempt

    def split_requests(self) -> AsyncIterator[SplitRequest]:
        return self._channel.split_requests()

    async def give(self, splits: SplitBatch) -> None:
        self._channel.give(splits)

    def progress(self) -> TaskProgress | None:
        told = self._channel.progress
        return TaskProgress(self.attempt, told.rows, told.size_bytes) if told is not None else None

    def _on_outcome(self, outcome: TaskDone | TaskFailure) -> None:
        # The rows of a result task arrive with the job, together with its outcome.
        if self.spec.output is not None:
            self.end(outcome, b"")

    @property
    def over(self) -> bool:
        return self._end.done()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        _, rows = await asyncio.shield(self._end)
        if rows:
            for batch in pa.ipc.open_stream(rows):
                yield batch

    async def done(self) -> TaskDone | TaskFailure:
        return (await asyncio.shield(self._end))[0]

    async def cancel(self) -> None:
        """Cancel the attempt, and its job once all attempts of the job have ended."""
        if self.over:
            return
        message = "the attempt was cancelled"
        self.end(TaskFailure(self.attempt, Failure.CANCELLED, "CANCELLED", message), b"")
        if all(task.over for task in self._job.tasks):
            with suppress(PySparkException, Py4JError):
                await self._transport.cancel_job(self._job)

    def end(self, outcome: TaskDone | TaskFailure, rows: bytes) -> None:
        if not self._end.done():
            self._transport.finish(self.attempt, outcome)
            self._end.set_result((outcome, rows))
            self._channel.close()


def _overhead_bytes(context: SparkContext) -> int:
    """The memory overhead of an executor; 0 on a local master, which has no executors of its own."""
    conf = context.getConf()
    if str(context.master).startswith("local"):
        return 0
    overhead = conf.get("spark.executor.memoryOverhead")
    if overhead:
        # Without a unit it is in MiB.
        return parse_bytes(overhead if not overhead.isdigit() else f"{overhead}m")
    return max(_OVERHEAD_MIN_BYTES, parse_bytes(conf.get("spark.executor.memory", "1g")) // 10)


def _cause(error: BaseException) -> str:
    """The lines of a failed job's error that give the cause, without the Java stack trace."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    said = [line for line in lines if "volley" in line or "Error" in line or "cancel" in line]
    return " ".join((said or lines)[-3:])[:2000]
