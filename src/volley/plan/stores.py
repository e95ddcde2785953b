# SPDX-License-Identifier: Apache-2.0
"""The object stores of a plan's files: asks Hadoop for the settings under which Spark reads them.

The settings are those of the file system object that Spark itself uses, which it keeps for all sessions of a JVM:
settings that were changed after it was made have no effect on Spark, nor on Volley.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError

from volley.plan.jvm import Java
from volley.storage import s3a
from volley.storage.registry import shared_stores
from volley.storage.s3a import Unmapped
from volley.storage.settings import S3Settings

_CREDENTIAL_FILES = "hadoop.security.credential.provider.path"
_PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


def find_store(gateway: Java, hadoop: Java, root: str) -> str:
    """The id of the store at `root`, such as `s3a://bucket`, for which this process now has the settings.

    `hadoop` is the configuration of the session. Raises Unmapped with the reason why only Spark can go there.
    """
    store = _read_store(gateway, hadoop, root)

    def ask() -> S3Settings | None:
        try:
            return _read_store(gateway, hadoop, root)
        except (Unmapped, Py4JError, OSError):
            return None

    shared_stores().add((store,), ask)
    return store.id


def _read_store(gateway: Java, hadoop: Java, root: str) -> S3Settings:
    scheme, _, bucket = root.partition("://")
    try:
        files = gateway.jvm.org.apache.hadoop.fs.Path(f"{root}/").getFileSystem(hadoop)
        kind = str(files.getClass().getName())
    except Py4JError as error:
        # Its text may quote the address, and that a password.
        raise Unmapped(f"{scheme}: the file system cannot be opened ({type(error).__name__})") from None
    if kind != s3a.FILE_SYSTEM:
        raise Unmapped(f"{scheme}: {kind.rpartition('.')[2]}")
    settings = files.getConf()
    if settings.get(_CREDENTIAL_FILES):
        raise Unmapped(f"{_CREDENTIAL_FILES} is set")
    with _unlogged():
        found: dict[str, str] = json.loads(_as_json(gateway, settings.getPropsWithPrefix(s3a.PREFIX)))
        environment = gateway.jvm.java.lang.System.getenv
        return s3a.map_settings(
            bucket, found, environment, _default_check(settings), lambda: _credentials_of(files)
        )


def _credentials_of(files: Java) -> tuple[str | None, str | None, str | None] | None:
    """The keys and the token that the connector's own providers give; None if it does not say."""
    try:
        providers = files.getS3AInternals().shareCredentials("Volley")
        try:
            found = providers.resolveCredentials()
            access_key, secret_key = found.accessKeyId(), found.secretAccessKey()
        finally:
            providers.close()
    except Py4JError:
        return None
    try:
        token = found.sessionToken()
    except Py4JError:
        # Only temporary credentials have one.
        token = None
    return access_key, secret_key, token


def _default_check(settings: Java) -> Callable[[str], bool]:
    """Whether a setting has the value that Hadoop ships."""

    def is_default(name: str) -> bool:
        sources = settings.getPropertySources(name)
        return sources is not None and all(str(source).endswith("core-default.xml") for source in sources)

    return is_default


def configuration_of(scan: Java) -> Java:
    """The configuration of the session to which a scan belongs."""
    if scan.getClass().getSimpleName() == "BatchScanExec":
        return scan.scan().sparkSession().sessionState().newHadoopConf()
    return scan.relation().sparkSession().sessionState().newHadoopConf()


def _as_json(gateway: Java, properties: Java) -> str:
    return str(gateway.jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(properties))


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what this thread gets from the JVM out of py4j's log, which has every answer at level DEBUG."""
    thread = threading.get_ident()

    def is_other(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in _PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)
