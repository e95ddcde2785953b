# SPDX-License-Identifier: Apache-2.0
"""The seam with PySpark: enables and disables Volley for a session, and wraps the methods that are actions.

Every action of a classic DataFrame ends in one of a few methods (`intercepts`); those are wrapped once for the whole
process. A wrapper calls the original unless Volley is enabled for its session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial, wraps
from inspect import getattr_static
from operator import attrgetter
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.catalog import Catalog

from volley.bridge.frame_loader import drop_uncached_frames
from volley.call_site import warn_at_call_site
from volley.config import Config
from volley.connect.local_server import classic_session, is_connect
from volley.deployment.factory import choose_deployment
from volley.deployment.option_scopes import find_without_effect
from volley.errors import SessionError
from volley.frame_cache.store import frame_cache
from volley.observe.explain import explain_after_spark
from volley.plan.capture import prepare
from volley.plan.jvm import cache_static_method
from volley.plan.local_data import remember
from volley.plugins import SOURCES, STORES, Plugin, installed, load, store_plugin
from volley.query import session_state
from volley.query.actions import record_only
from volley.query.interrupts import install as install_interrupts
from volley.session import connect
from volley.session.intercepts import INTERCEPTS, Intercept
from volley.session.version_checks import check_versions
from volley.session_settings import ENABLED, SEAM, read_enabled_option, read_settings
from volley.spark_versions.classic import ClassicDataFrame
from volley.spark_versions.registry import current

_lock = threading.Lock()
_installed = False
# Sessions that `disable` turned off, so that `enable` may turn them on again.
_turned_off: set[str] = set()
# Sessions that know the data sources of plug-ins.
_registered: set[tuple[str, Plugin]] = set()
_thread = threading.local()


def enable(spark: SparkSession) -> SparkSession:
    """Let Volley answer this session's queries where it can do so exactly. Calling it again changes nothing.

    A session with `spark.volley.enabled=false`, say from the command line, stays off, with a warning. A session of
    Spark Connect must have its server in this process (`.remote("local[*]")`), or ConnectServerElsewhere is raised.
    Raises VersionNotSupported if Spark or a package is a version that Volley was not tested with, and ConfigError for
    a bad option.
    """
    _check_kind(spark)
    classic = classic_session(spark)
    chosen = read_settings(classic)
    config = Config.read(chosen)
    check_versions(classic, config)
    # A plug-in that cannot be loaded is an error now, and not at the first query.
    choose_deployment(classic, config)
    if plugin := store_plugin(config.shuffle_store):
        load(STORES, plugin)
    for sentence in find_without_effect(config, chosen):
        warn_at_call_site(sentence)
    _install()
    if is_connect(spark):
        connect.install()
    session = session_state.session_id(classic)
    if read_enabled_option(classic) is False and session not in _turned_off:
        warn_at_call_site(
            f"{ENABLED}=false is set, so Volley stays off and volley.enable changes nothing. "
            f"Remove the option, or set it to true, to turn Volley on."
        )
        return spark
    prepare(classic.sparkContext._gateway)
    # PySpark calls it in every `spark.sql`.
    cache_static_method(classic.sparkContext._gateway, "PythonUtils", "toArray")
    _register_sources(classic, session)
    classic.conf.set(ENABLED, "true")
    _turned_off.discard(session)
    return spark


def disable(spark: SparkSession) -> SparkSession:
    """Give this session's queries back to Spark."""
    classic = classic_session(spark)
    if read_enabled_option(classic) is not False:
        _turned_off.add(session_state.session_id(classic))
    classic.conf.set(ENABLED, "false")
    return spark


def _register_sources(spark: SparkSession, session: str) -> None:
    """Let the session read the data sources of installed packages by their names, once."""
    if not current().has_data_sources:
        return
    for plugin in installed(SOURCES):
        if (session, plugin) in _registered:
            continue
        _registered.add((session, plugin))
        try:
            source: Any = load(SOURCES, plugin.name)
            spark.dataSource.register(source)
        except Exception as error:
            # Sessions that do not read from it must still work.
            warn_at_call_site(f"The data source {plugin} cannot be used: {error}")


def _check_kind(spark: SparkSession) -> None:
    # Compare the type: after isinstance a type checker would consider the rest unreachable.
    if issubclass(type(spark), SparkSession) or is_connect(spark):
        return
    kind = f"{type(spark).__module__}.{type(spark).__qualname__}"
    raise SessionError(f"{kind} is not a SparkSession.", hint="Pass the SparkSession that your program uses.")


def _install() -> None:
    """Wrap the methods, once per process. For sessions without Volley this costs one read of their configuration."""
    global _installed
    with _lock:
        if _installed:
            return
        for intercept in INTERCEPTS:
            original = getattr_static(intercept.owner, intercept.method)
            if isinstance(original, property | cached_property):
                # Read through the original, which may keep its value with the object.
                wrapped: Any = property(_wrap(intercept, partial(_read_property, original)))
            else:
                wrapped = _wrap(intercept, original)
            setattr(intercept.owner, intercept.method, wrapped)
        SparkSession.createDataFrame = _remembering(SparkSession.createDataFrame)  # type: ignore[method-assign]
        ClassicDataFrame.explain = _explaining(ClassicDataFrame.explain)  # type: ignore[method-assign]
        for owner, method, session in _UNCACHING:
            setattr(owner, method, _dropping_frames(getattr_static(owner, method), session))
        SparkContext.stop = _dropping_all_frames(SparkContext.stop)  # type: ignore[method-assign,assignment]
        install_interrupts()
        _installed = True


def _read_property(original: property | cached_property[Any], subject: Any) -> Any:
    return original.__get__(subject, type(subject))


def _wrap(intercept: Intercept, original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(subject: Any, *arguments: Any, **named: Any) -> Any:
        ask_spark = partial(original, subject, *arguments, **named)
        # PySpark implements some actions with others. Only the outermost call counts as an action.
        if getattr(_thread, "in_action", False):
            return ask_spark()
        if not intercept.is_action(subject, *arguments, **named):
            return ask_spark()
        spark = intercept.session(subject)
        enabled = read_enabled_option(spark)
        if enabled is None:
            return ask_spark()
        _thread.in_action = True
        try:
            if enabled:
                return intercept.answer(original, subject, *arguments, **named)
            return record_only(spark, intercept.action, ask_spark)
        finally:
            _thread.in_action = False

    setattr(answer, SEAM, True)
    return wraps(original)(answer) if hasattr(original, "__name__") else answer


# Methods that may uncache a frame, and how to get their session. Actions check for uncached frames themselves.
_UNCACHING: tuple[tuple[type, str, Callable[[Any], SparkSession]], ...] = (
    (ClassicDataFrame, "unpersist", attrgetter("sparkSession")),
    (SparkSession, "sql", lambda spark: spark),
    *(
        (Catalog, method, attrgetter("_sparkSession"))
        for method in (
            "clearCache",
            "uncacheTable",
            "dropTempView",
            "dropGlobalTempView",
            "refreshTable",
            "refreshByPath",
        )
    ),
)


def _dropping_frames(
    original: Callable[..., Any], session: Callable[[Any], SparkSession]
) -> Callable[..., Any]:
    """Free what Volley keeps of cached frames as soon as Spark drops them."""

    @wraps(original)
    def call_and_drop(subject: Any, *arguments: Any, **named: Any) -> Any:
        answer = original(subject, *arguments, **named)
        drop_uncached_frames(session(subject))
        return answer

    return call_and_drop


def _dropping_all_frames(stop: Callable[[SparkContext], None]) -> Callable[[SparkContext], None]:
    @wraps(stop)
    def stop_and_drop(context: SparkContext) -> None:
        try:
            stop(context)
        finally:
            frame_cache().close()

    return stop_and_drop


def _explaining(explain: Callable[..., None]) -> Callable[..., None]:
    @wraps(explain)
    def explain_twice(frame: DataFrame, *arguments: Any, **named: Any) -> None:
        explain(frame, *arguments, **named)
        explain_after_spark(frame)

    return explain_twice


def _remembering(create: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Frames of local data are read natively later, so they are told from those of RDDs, whatever is enabled now."""

    @wraps(create)
    def create_and_remember(spark: SparkSession, data: Any, *arguments: Any, **named: Any) -> DataFrame:
        frame = create(spark, data, *arguments, **named)
        if not isinstance(data, RDD):
            remember(spark.sparkContext._gateway, frame._jdf)
        return frame

    return create_and_remember
