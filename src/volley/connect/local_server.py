# SPDX-License-Identifier: Apache-2.0
"""Finds the classic session that a Spark Connect server in this process holds for a Connect session.

SparkSession.builder.remote("local[*]").getOrCreate()
  pyspark.sql.connect.SparkSession  --gRPC-->  SparkConnectService, in the JVM that this process started
                                                 SessionHolder -> classic SparkSession   (this is what is found)
"""

from __future__ import annotations

import weakref
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from volley.connect.relations import find_relation
from volley.errors import ConnectServerElsewhere
from volley.plan.jvm import Java, singleton
from volley.spark_versions.classic import plan_frame

SERVICE = "org.apache.spark.sql.connect.service"
"""The package of Spark's Connect server."""

# By client: a Connect session may have several objects, but one client.
_found: weakref.WeakKeyDictionary[Any, LocalSession] = weakref.WeakKeyDictionary()


class LocalSession:
    """A Connect session as its server sees it. `session` is the classic one that shares its settings and views.

    `server_id` is what the server calls the session in its answers.
    """

    def __init__(self, context: SparkContext, holder: Java) -> None:
        self.session = SparkSession(context, holder.session())
        self.server_id = str(holder.serverSessionId())
        self._holder = holder

    def plan(self, relation: bytes) -> DataFrame:
        """The classic DataFrame of a relation, planned as the server plans it. Nothing runs.

        `relation` is a serialized `spark.connect.Relation`.
        """
        jvm: Any = self.session._jvm
        session = self.session._jsparkSession
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        message = jvm.org.apache.spark.connect.proto.Relation.parseFrom(relation)
        planner = jvm.org.apache.spark.sql.connect.planner.SparkConnectPlanner(
            self._holder, jvm.scala.Option.empty()
        )
        return plan_frame(self.session, planner.transformRelation(message))

    def schema_message(self, schema: StructType) -> bytes:
        """A schema as the server sends it: a serialized `spark.connect.DataType`."""
        converter = singleton(
            self.session.sparkContext._gateway, "org.apache.spark.sql.connect.common.DataTypeProtoConverter"
        )
        parsed = self.session._jsparkSession.parseDataType(schema.json())
        try:
            # Not in every release, and py4j knows no defaults.
            second = [getattr(converter, "toConnectProtoType$default$2")()]
        except Py4JError:
            second = []
        return bytes(converter.toConnectProtoType(parsed, *second).toByteArray())

    def keep_alive(self) -> None:
        """Tell the server that the session is used. It closes those for which it gets no requests."""
        self._holder.updateAccessTime()


def is_connect(subject: object) -> bool:
    """Whether this is a session or DataFrame of Spark Connect. Asks the type, so that gRPC need not be installed."""
    return type(subject).__module__.startswith("pyspark.sql.connect.")


def classic_session(spark: SparkSession) -> SparkSession:
    """The session itself, or the classic one behind a Connect session.

    Raises ConnectServerElsewhere if its server is not in this process.
    """
    return local_session(spark).session if is_connect(spark) else spark


def classic_frame(frame: DataFrame) -> DataFrame:
    """The DataFrame itself, or the classic one that the server in this process plans for a Connect DataFrame."""
    if not is_connect(frame):
        return frame
    connected: Any = frame
    relation = find_relation(connected._plan.to_proto(connected.sparkSession.client))
    assert relation is not None, "a DataFrame has rows"
    return local_session(connected.sparkSession).plan(relation.SerializeToString())


def local_session(spark: Any) -> LocalSession:
    """What the server in this process holds for a Connect session. Raises ConnectServerElsewhere if there is none."""
    found = find_session(spark.client)
    if found is None and SparkContext._active_spark_context is not None:
        # A server knows a session from its first request on; this is a small one.
        _ = spark.version
        found = find_session(spark.client)
    if found is None:
        raise ConnectServerElsewhere(
            f"the Spark Connect server of this session is in another process ({spark.client.host}).",
            hint="Only the process that plans a query can run it natively. Use a local server "
            '(SparkSession.builder.remote("local[*]")) or a classic session (.master(...)). '
            "Behind `volley connect-server`, queries run natively without volley.enable.",
        )
    return found


def find_session(client: Any) -> LocalSession | None:
    """The same for the client of a Connect session; None if its server is not in this process."""
    if client not in _found:
        context = SparkContext._active_spark_context
        if context is None or context._jsc is None:
            return None
        found = find_by_id(context, client._user_id or "", client._session_id)
        if found is None:
            return None
        _found[client] = found
    return _found[client]


def find_by_id(context: SparkContext, user: str, session: str) -> LocalSession | None:
    """What the server in the JVM of this context holds for a session; None if it does not know it."""
    jvm: Any = context._jvm
    # A session id is random: if this JVM knows it, the session is its own.
    key = jvm.org.apache.spark.sql.connect.service.SessionKey(user, session)
    service = singleton(context._gateway, f"{SERVICE}.SparkConnectService")
    holder = service.sessionManager().getIsolatedSessionIfPresent(key)
    return LocalSession(context, holder.get()) if holder.isDefined() else None
