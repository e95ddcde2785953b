# SPDX-License-Identifier: Apache-2.0
"""Objects that stay invisible until the commit: multipart uploads that another process completes later.

    worker     stage(path, key)        the parts of a file are in the store, the object is not
    driver     complete(upload)        the object appears, whole
               abort_job(...)          the store forgets the parts of all others

pyarrow completes an upload when a stream is closed, so these calls are made with boto3.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from volley.errors import QueryError
from volley.storage.registry import shared_stores
from volley.storage.settings import Hidden, S3Settings

UPLOADED = re.compile(r"part-\d{5}-[0-9a-f-]{36}-\d{5}[.-]c\d{3,}\.[\w.]+$")
"""The names of objects that Volley uploads."""

KEYS_A_REQUEST = 1000
"""The most objects that S3 deletes with one request."""

_ABANDONED = timedelta(days=1)
# boto logs the headers of requests at level DEBUG, and a session token is one of them.
_LOGGERS = ("botocore.auth", "botocore.endpoint", "botocore.parsers", "botocore.hooks")
# S3 limits the size of a part, except for the last one, and the number of parts.
_PART_BYTES = 16 * 2**20
_MOST_PARTS = 10_000
_SECONDS = 60
# Of a put on condition: the object is gone, another put of it is under way, or it is another one.
_NOT_AS_EXPECTED = (404, 409, 412)


def can_upload() -> bool:
    """Whether the packages for uploads are installed."""
    return find_spec("boto3") is not None


@dataclass(frozen=True)
class Upload:
    """An upload that is not complete. `etags` are those of its parts, in order."""

    key: str
    id: str
    etags: tuple[str, ...]
    size_bytes: int

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Upload:
        found = json.loads(text)
        return cls(found["key"], found["id"], tuple(found["etags"]), found["size_bytes"])


@dataclass(frozen=True)
class Folder:
    """The folder that a write puts its objects in. It is never the root of a bucket."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Folder:
        """The folder at `s3a://bucket/prefix`."""
        bucket, _, prefix = url.partition("://")[2].partition("/")
        return cls(bucket, prefix.rstrip("/"))

    def key(self, name: str, partition: str = "") -> str:
        """The key of an object in this folder, or in that of a partition below it."""
        return "/".join(part for part in (self.prefix, partition, name) if part)


def object_name(job: str, task: int, stream: int, number: int, suffix: str, partition: str = "") -> str:
    """The name under which a write puts a file into its folder, the same as Spark's. `job` is the id of the write."""
    separator = "." if partition else "-"
    name = f"part-{task:05}-{job}-{stream:05}{separator}c{number:03}{suffix}"
    assert UPLOADED.search(name), "an abandoned upload is known by its name"
    return name


@dataclass(frozen=True)
class Found:
    """A small object. Its age is by the store's clock."""

    text: str
    etag: str
    age_seconds: float


class Uploads:
    """Uploads to one bucket. Used by several threads. All methods raise QueryError."""

    def __init__(self, store: str, bucket: str) -> None:
        self._store = store
        self._bucket = bucket
        (settings,) = shared_stores().renewed_settings((store,)) or (None,)
        if not isinstance(settings, S3Settings):
            raise QueryError("the settings of an object store are not known here any more.")
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_redact_record)
        try:
            with self._errors(""):
                self._client = s3_client(settings)
        except ValueError:
            # Without the cause, which may quote what somebody has put into the endpoint.
            raise QueryError("boto3 does not accept the endpoint of an object store.") from None
        except ImportError as error:
            raise QueryError(
                "writes to object stores need boto3, which is not installed.",
                hint="Run pip install 'volley-spark[s3]' here and where the workers run.",
            ) from error

    def stage(self, file: Path, key: str) -> Upload:
        """Send a file. The object appears when the upload is completed."""
        with self._errors(key):
            id = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"]
        try:
            with self._errors(key), file.open("rb") as source:
                etags = [
                    self._client.upload_part(
                        Bucket=self._bucket, Key=key, UploadId=id, PartNumber=number, Body=data
                    )["ETag"]
                    for number, data in enumerate(_parts(source, file.stat().st_size), 1)
                ]
        except BaseException:
            self.abort(key, id)
            raise
        return Upload(key, id, tuple(etags), file.stat().st_size)

    def complete(self, upload: Upload) -> None:
        """Complete the upload, so that the object appears. Idempotent, because an answer may be lost."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload.etags, 1)]
        with self._errors(upload.key):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=upload.key, UploadId=upload.id, MultipartUpload={"Parts": parts}
                )
            except self._client.exceptions.ClientError as error:
                # The keys of a write are its own, so an object of this size is the one of this upload.
                if error.response["Error"]["Code"] != "NoSuchUpload" or not self._is_there(upload):
                    raise

    def abort(self, key: str, id: str) -> None:
        with self._errors(key):
            try:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=id)
            except self._client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":
                    raise

    def abort_job(self, prefix: str, job: str) -> int:
        """Abort the uploads below `prefix` that a write has not completed. Returns their number."""
        return self._abort_if(prefix, lambda key, begun: job in key)

    def abort_abandoned(self, prefix: str, age: timedelta = _ABANDONED) -> int:
        """Abort uploads of writes whose program was killed so long ago."""
        latest = datetime.now(timezone.utc) - age
        return self._abort_if(prefix, lambda key, begun: begun <= latest and UPLOADED.search(key) is not None)

    def _abort_if(self, prefix: str, condition: Callable[[str, datetime], bool]) -> int:
        with self._errors(prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            found = [
                (upload["Key"], upload["UploadId"])
                for page in pages
                for upload in page.get("Uploads", ())
                if condition(upload["Key"], upload["Initiated"])
            ]
        for key, id in found:
            self.abort(key, id)
        return len(found)

    def put_empty(self, key: str) -> None:
        with self._errors(key):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=b"")

    def keys(self, prefix: str) -> list[str]:
        """All objects whose keys begin with `prefix`."""
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete objects, many with each request."""
        for first in range(0, len(keys), KEYS_A_REQUEST):
            some = [{"Key": key} for key in keys[first : first + KEYS_A_REQUEST]]
            with self._errors(some[0]["Key"]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": some, "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                raise QueryError(f"{self.url(error['Key'])} could not be deleted: {error.get('Code')}.")

    def put_if(self, key: str, text: str, etag: str | None) -> str | None:
        """Replace the object with this ETag, or create it if None.

        Returns the new ETag; None if another writer was first.
        """
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        with self._errors(key):
            try:
                answer = self._client.put_object(
                    Bucket=self._bucket, Key=key, Body=text.encode(), **condition
                )
            except self._client.exceptions.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] not in _NOT_AS_EXPECTED:
                    raise
                return None
            return str(answer["ETag"])

    def find_text(self, key: str) -> Found | None:
        """The content of a small object; None if it does not exist."""
        with self._errors(key):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.NoSuchKey:
                return None
            now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
            age = now - found["LastModified"]
            return Found(found["Body"].read().decode(), found["ETag"], age.total_seconds())

    def delete(self, key: str, etag: str | None = None) -> None:
        """Delete an object, with an `etag` only the one that has it."""
        condition = {"IfMatch": etag} if etag else {}
        with self._errors(key):
            try:
                self._client.delete_object(Bucket=self._bucket, Key=key, **condition)
            except self._client.exceptions.ClientError as error:
                if not etag or error.response["ResponseMetadata"]["HTTPStatusCode"] not in _NOT_AS_EXPECTED:
                    raise

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    def _is_there(self, upload: Upload) -> bool:
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=upload.key)
        except self._client.exceptions.ClientError:
            return False
        return int(found["ContentLength"]) == upload.size_bytes

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError, OSError) as error:
            text = shared_stores().redact(self._store, str(error))
            raise QueryError(f"{self.url(key)} could not be written: {text}") from None


def _parts(source: Any, size_bytes: int) -> Iterator[bytes]:
    part_bytes = max(_PART_BYTES, -(-size_bytes // _MOST_PARTS))
    # An upload has at least one part.
    yield source.read(part_bytes)
    while data := source.read(part_bytes):
        yield data


def _redact_record(record: logging.LogRecord) -> bool:
    """A filter of loggers, one for all stores: a logger keeps it once, however often it is added."""
    text = record.getMessage()
    redacted = shared_stores().redact_all(text)
    if redacted != text:
        record.msg, record.args = redacted, None
    return True


def s3_client(settings: S3Settings) -> Any:
    """boto3's client for these settings and no others."""
    from boto3.session import Session
    from botocore import UNSIGNED
    from botocore.config import Config

    def shown(text: Hidden | None) -> str | None:
        return text.value if text is not None else None

    scheme = "https" if settings.tls else "http"
    # `boto3.client` makes the session that all threads share, and is not safe to call from several of them.
    return Session().client(
        "s3",
        region_name=settings.region,
        endpoint_url=f"{scheme}://{settings.endpoint}" if settings.endpoint else None,
        aws_access_key_id=shown(settings.access_key),
        aws_secret_access_key=shown(settings.secret_key),
        aws_session_token=shown(settings.session_token),
        config=Config(
            # Those of environment variables and ~/.aws/config mean nothing to Spark's file system.
            ignore_configured_endpoint_urls=True,
            connect_timeout=settings.connect_seconds,
            read_timeout=_SECONDS,
            retries={"mode": "standard", "total_max_attempts": settings.attempts},
            signature_version=None if settings.access_key else UNSIGNED,
            s3={"addressing_style": "virtual" if settings.virtual_hosted else "path"},
            # Not every S3 server supports the newer ones.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
