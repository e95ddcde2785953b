# SPDX-License-Identifier: Apache-2.0
"""Where a worker finds Java and Spark, what it permits, and what becomes of tasks whose JVM is lost."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from volley.cli.worker import worker
from volley.deployment.base import describe_jvm_problem, find_jvm_problem
from volley.errors import JvmLost, NoWorkers
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.jvm.calls import serialized_programs
from volley.jvm.java import NOT_PERMITTED, JavaInstallation, JvmAccess, executor_java, find_java
from volley.jvm.worker_jvm import JvmSettings, SerializedProgram, default_jvm_memory
from volley.plan.expressions import JVM_EXPRESSION, Alias, Attribute, Call
from volley.plan.jvm import Java
from volley.plan.nodes import FeedInput, LocalRows, Node, Project
from volley.plan.types import STRING
from volley.rpc.codec import decode, encode
from volley.rpc.messages import Failure, TaskFailure, TaskSpec, WorkerInfo
from volley.shuffle.memory import MemoryStore
from volley.transport.base import Transport
from volley.worker.slots import CodePolicy, Slots
from volley.worker.task import failure_of

_S = Attribute(1, "s", STRING)
_ATTEMPT = AttemptId(TaskId(StageId(QueryId.new(), 0), 0), 0)
_OPTIONS = (
    *(("program", b"code"), ("width", 1), ("versions", "4.1.0/17")),
    *(("environment", "-Dx"), ("query", "q1")),
)


def _plan() -> Node:
    call = Call(JVM_EXPRESSION, (_S,), STRING, None, _OPTIONS)
    return Project((Alias(2, "x", call),), LocalRows((_S,), b""))


def test_a_plan_carries_its_programs() -> None:
    for plan in (_plan(), FeedInput(0, _plan())):
        spec = decode(encode(TaskSpec(_ATTEMPT, plan, None, False, ())), TaskSpec)
        (program,) = serialized_programs(spec.plan)
        assert program == SerializedProgram(b"code", "4.1.0/17", "-Dx", "q1")


def test_a_worker_evaluates_programs_only_if_its_owner_said_so() -> None:
    for plan in (_plan(), FeedInput(0, _plan())):
        assert "--jvm-expressions" in _refusal(plan, NOT_PERMITTED)
    refused = CliRunner().invoke(worker, ["--jvm-expressions", "--no-token"])
    assert (refused.exit_code, "needs a token" in refused.output) == (2, True)


def test_a_worker_that_joined_with_another_java_refuses() -> None:
    assert "has Spark 4.1.0 and Java 21" in _refusal(_plan(), JvmAccess("4.1.0/21"))


def _refusal(plan: Node, jvm: JvmAccess) -> str:
    async def outcome() -> object:
        slots = Slots("w", 1, 1, MemoryStore("w"), code=CodePolicy(jvm=jvm))
        assert slots.reserve(_ATTEMPT)
        return await slots.start(TaskSpec(_ATTEMPT, plan, None, False, ())).done()

    failure = asyncio.run(outcome())
    assert isinstance(failure, TaskFailure)
    assert failure.failure is Failure.DATA
    return failure.message


def test_java_and_spark_are_found_or_named() -> None:
    found = find_java()
    assert isinstance(found, JavaInstallation)
    assert found.class_path.endswith("jars/*")
    spark, java = found.versions.split("/")
    assert (spark, int(java) >= 17) == (_spark_release(), True)
    assert "set JAVA_HOME" in str(find_java({"PATH": "/nonexistent"}))
    elsewhere = {"JAVA_HOME": str(Path(found.executable).resolve().parent.parent), "PATH": "/nonexistent"}
    assert isinstance(find_java(elsewhere), JavaInstallation)


def _spark_release() -> str:
    import pyspark

    return pyspark.__version__


def test_the_java_of_an_executor_is_that_of_its_process(spark: SparkSession) -> None:
    gateway: Java = spark.sparkContext._gateway
    jvm = gateway.jvm
    found = executor_java(int(jvm.java.lang.ProcessHandle.current().pid()))
    assert isinstance(found, JavaInstallation)
    assert found.executable == os.path.realpath(f"{jvm.java.lang.System.getProperty('java.home')}/bin/java")
    assert any(part.endswith("/jars/*") for part in found.class_path.split(":"))
    assert "cannot be read" in str(executor_java(2**22))


def test_all_workers_must_have_the_versions_of_the_driver() -> None:
    def problem(*workers: WorkerInfo) -> str:
        return describe_jvm_problem("4.1.0/17", workers)

    same = WorkerInfo("a:1", 1, 1, "", jvm="4.1.0/17")
    assert problem(same, same) == ""
    assert problem() == "no worker answers"
    assert "has Spark 4.1.0 and Java 21" in problem(same, WorkerInfo("b:1", 1, 1, "", jvm="4.1.0/21"))
    assert problem(WorkerInfo("b:1", 1, 1, "", no_jvm="no Java")) == "worker b:1: no Java"
    assert "without --jvm-expressions" in problem(WorkerInfo("b:1", 1, 1, ""))

    def fail() -> Transport:
        raise NoWorkers("nobody is there.")

    assert find_jvm_problem("4.1.0/17", fail) == "nobody is there."


def test_a_lost_jvm_costs_one_attempt() -> None:
    """The second time Spark says what it thinks of the expression. The engine has made text of the error."""
    lost = Exception(f"Execution error: PyErr {{ value: {JvmLost('it ended')!r} }} {JvmLost('it ended')}")
    first = failure_of(_ATTEMPT, lost)
    assert (first.failure, first.code) == (Failure.WORKER, "JVM_LOST")
    second = failure_of(AttemptId(_ATTEMPT.task, 1), lost)
    assert (second.failure, second.code) == (Failure.DATA, "JVM_LOST")


def test_the_memory_of_the_jvm_is_bounded() -> None:
    assert [default_jvm_memory(gib * 2**30) >> 20 for gib in (1, 8, 64)] == [384, 1024, 4096]
    settings = JvmSettings(JavaInstallation("java", "jars/*"), 2**30, 8)
    assert settings.options[:2] == ["-Xmx536870912", "-XX:MaxDirectMemorySize=268435456"]
    # A message, its result and a reply of every thread fit.
    assert 3 * 8 * settings.message_bytes <= 2**28
    assert JvmAccess().problem == ""
