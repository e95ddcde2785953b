# SPDX-License-Identifier: Apache-2.0
"""Write-once objects: if several writers race for the same object, exactly one succeeds.

local files    a hard link, which fails when the name exists
S3             a conditional put (If-None-Match). pyarrow has none, so this one call is made with boto3
fsspec         its mode "create", which is as safe as the file system behind it
others         check, then put: two writers at the same moment can overwrite each other
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.fs as fs

from volley.errors import ConfigError

_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_TRIES = 5
_CONFLICT = 409
_EXISTS = 412


class AlreadyThere(Exception):
    """Another writer has created this object first."""


WriteOnce = Callable[[str, bytes], None]
"""Writes the whole object, or raises OSError or AlreadyThere. On file systems with folders the parent must exist."""


def choose_write_once(files: fs.FileSystem, uri: str) -> WriteOnce:
    """The way to write an object once on this file system. ConfigError if a package for it is not installed."""
    if isinstance(files, fs.LocalFileSystem):
        return _link
    if isinstance(files, fs.S3FileSystem):
        return S3Puts(uri, files.region)
    if isinstance(files, fs.PyFileSystem) and isinstance(files.handler, fs.FSSpecHandler):
        return _Fsspec(files.handler.fs)
    return _CheckThenPut(files)


def _link(path: str, data: bytes) -> None:
    draft = Path(f"{path}.{secrets.token_hex(4)}")
    draft.write_bytes(data)
    try:
        os.link(draft, path)
    except FileExistsError as error:
        raise AlreadyThere(path) from error
    finally:
        draft.unlink()


class S3Puts:
    """Conditional puts. Also ends uploads, which pyarrow cannot do either."""

    def __init__(self, uri: str, region: str) -> None:
        try:
            from boto3.session import Session
            from botocore.config import Config
        except ImportError as error:
            raise ConfigError(
                "a shuffle store on S3 commits with conditional puts, which need boto3. It is not installed.",
                hint="Run pip install 'volley-spark[s3]' here and where the workers run.",
            ) from error
        options = {name: values[-1] for name, values in parse_qs(urlsplit(uri).query).items()}
        endpoint = options.get("endpoint_override")
        self._abort_level = logging.WARNING
        # `boto3.client` makes the session that all threads share, and is not safe to call from several of them.
        self._client = Session().client(
            "s3",
            region_name=region,
            endpoint_url=f"{options.get('scheme', 'https')}://{endpoint}" if endpoint else None,
            config=Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": _TRIES},
                # The addressing style that pyarrow uses.
                s3={"addressing_style": "path" if endpoint else "auto"},
                # Blocks have their own checksums, and not every S3 server supports these.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def __call__(self, path: str, data: bytes) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = path.partition("/")
        for last in (*(False,) * (_TRIES - 1), True):
            try:
                self._client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
                return
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                # Another put of the same object was in progress. The next response says who won.
                if status == _CONFLICT and not last:
                    continue
                if status != _EXISTS:
                    raise OSError(f"{path} could not be written: {error}") from error
            except BotoCoreError as error:
                raise OSError(f"{path} could not be written: {error}") from error
            # If the response to our put was lost, the retry finds our own object.
            if self._read(bucket, key) == data:
                return
            raise AlreadyThere(path)

    def abort_uploads(self, path: str) -> None:
        """Abort the uploads of objects below `path` that their writers, killed perhaps, have not completed.

        A failure is logged, once as a warning: readers see none of these uploads, and not everyone may list them.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = path.partition("/")
        try:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=bucket, Prefix=f"{key}/"
            )
            for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
                # One may have been completed or aborted meanwhile.
                with suppress(self._client.exceptions.NoSuchUpload):
                    self._client.abort_multipart_upload(
                        Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        except (BotoCoreError, ClientError) as error:
            level, self._abort_level = self._abort_level, logging.DEBUG
            _log.log(level, "the unfinished uploads to %s could not be aborted: %s", path, error)

    def _read(self, bucket: str, key: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{bucket}/{key} could not be read: {error}") from error


class _Fsspec:
    def __init__(self, files: Any) -> None:
        self._files = files

    def __call__(self, path: str, data: bytes) -> None:
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileExistsError as error:
            raise AlreadyThere(path) from error


class _CheckThenPut:
    def __init__(self, files: fs.FileSystem) -> None:
        self._files = files

    def __call__(self, path: str, data: bytes) -> None:
        if self._files.get_file_info(path).type != fs.FileType.NotFound:
            raise AlreadyThere(path)
        with self._files.open_output_stream(path, compression=None) as stream:
            stream.write(data)
