# SPDX-License-Identifier: Apache-2.0
"""The object stores of a plan's files: asks Hadoop for the settings under which Spark reads them.

The settings are those of the file system object that Spark itself uses, which it keeps for all sessions of a JVM:
settings that were changed after it was made have no effect on Spark, nor on Volley.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from py4j.protocol import Py4JError

from volley.config import read_cache_size
from volley.options import CACHE_SIZE
from volley.plan.jvm import Java
from volley.storage import abfs, gcs, s3a
from volley.storage.access_tokens import shared_tokens
from volley.storage.registry import shared_stores
from volley.storage.s3a import Unmapped
from volley.storage.settings import StoreSettings

_CREDENTIAL_FILES = "hadoop.security.credential.provider.path"
_PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


AddStore = Callable[[Java, Java, str], str]
"""Gives the id of a store that is read with the JVM's own object of its file system, or raises Unmapped."""


def find_store(gateway: Java, hadoop: Java, root: str, add_other: AddStore | None = None) -> str:
    """The id of the store at `root`, such as `s3a://bucket`, for which this process now has the settings.

    `hadoop` is the configuration of the session. `add_other` is for file systems that have no native client, where the
    workers can use it. Raises Unmapped with the reason why only Spark can go there.
    """
    if add_other is not None and (files := _other_files(gateway, hadoop, root)) is not None:
        return add_other(gateway, files, root)
    store = _read_store(gateway, hadoop, root)

    def ask() -> StoreSettings | None:
        try:
            return _read_store(gateway, hadoop, root)
        except (Unmapped, Py4JError, OSError):
            return None

    shared_stores().add((store,), ask)
    return store.id


_NATIVE = abfs.FILE_SYSTEMS | gcs.FILE_SYSTEMS | {s3a.FILE_SYSTEM}


def _open_files(gateway: Java, hadoop: Java, root: str) -> tuple[Java, str]:
    """The file system object that Spark uses, and its class."""
    try:
        files = gateway.jvm.org.apache.hadoop.fs.Path(f"{root}/").getFileSystem(hadoop)
        return files, str(files.getClass().getName())
    except Py4JError as error:
        # Its text may quote the address, and that a password.
        scheme = root.partition("://")[0]
        raise Unmapped(f"{scheme}: the file system cannot be opened ({type(error).__name__})") from None


def _other_files(gateway: Java, hadoop: Java, root: str) -> Java | None:
    """The file system object if it has no native client."""
    files, kind = _open_files(gateway, hadoop, root)
    return None if kind in _NATIVE else files


def _read_store(gateway: Java, hadoop: Java, root: str) -> StoreSettings:
    cache_bytes = read_cache_size(hadoop.get(CACHE_SIZE))
    return replace(_map_store(gateway, hadoop, root), cache_bytes=cache_bytes).with_id()


def _map_store(gateway: Java, hadoop: Java, root: str) -> StoreSettings:
    scheme, _, authority = root.partition("://")
    files, kind = _open_files(gateway, hadoop, root)
    if kind not in _NATIVE:
        raise Unmapped(f"{scheme}: {kind.rpartition('.')[2]}")
    settings = files.getConf()
    if settings.get(_CREDENTIAL_FILES):
        raise Unmapped(f"{_CREDENTIAL_FILES} is set")
    with _unlogged():

        def under(prefix: str) -> dict[str, str]:
            found: dict[str, str] = json.loads(_as_json(gateway, settings.getPropsWithPrefix(prefix)))
            return found

        is_default = _default_check(settings)
        if kind in abfs.FILE_SYSTEMS:
            return abfs.map_settings(scheme, authority, under(abfs.PREFIX), is_default)
        if kind in gcs.FILE_SYSTEMS:
            own, shared = under(gcs.PREFIX), under(gcs.SHARED_PREFIX)
            return gcs.map_settings(
                authority, own, shared, is_default, shared_tokens().get, partial(_sign, gateway)
            )
        environment = gateway.jvm.java.lang.System.getenv
        return s3a.map_settings(
            authority, under(s3a.PREFIX), environment, is_default, lambda: _credentials_of(files)
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


def _sign(gateway: Java, key: str, text: bytes) -> bytes:
    """Sign a text by RSA with SHA-256, which Python has no function for. `key` is in PEM form."""
    lines = [line for line in key.splitlines() if line and not line.startswith("-----")]
    security = gateway.jvm.java.security
    try:
        encoded = security.spec.PKCS8EncodedKeySpec(base64.b64decode("".join(lines)))
        signature = security.Signature.getInstance("SHA256withRSA")
        signature.initSign(security.KeyFactory.getInstance("RSA").generatePrivate(encoded))
        signature.update(text)
        return bytes(signature.sign())
    except (Py4JError, ValueError) as error:
        # Its text may quote the key.
        raise Unmapped(f"a private key cannot be used ({type(error).__name__})") from None


def _default_check(settings: Java) -> Callable[[str], bool]:
    """Whether a setting has the value that Hadoop ships."""

    def is_default(name: str) -> bool:
        sources = settings.getPropertySources(name)
        return sources is not None and all(str(source).endswith("core-default.xml") for source in sources)

    return is_default


def configuration_of(scan: Java) -> Java:
    """The configuration of the session to which a scan belongs."""
    if scan.getClass().getSimpleName() == "BatchScanExec":
        source = scan.scan()
        owner = (
            scan.session() if source.getClass().getSimpleName() == _ICEBERG_SCAN else source.sparkSession()
        )
        return owner.sessionState().newHadoopConf()
    return scan.relation().sparkSession().sessionState().newHadoopConf()


_ICEBERG_SCAN = "SparkBatchQueryScan"


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
