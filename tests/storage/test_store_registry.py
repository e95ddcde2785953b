# SPDX-License-Identifier: Apache-2.0
"""The stores that a process holds."""

from __future__ import annotations

import pytest

from volley.errors import DataError
from volley.storage.registry import Stores
from volley.storage.settings import Hidden, S3Settings


def settings(secret: str) -> S3Settings:
    keys = (Hidden("key of tests"), Hidden(secret))
    return S3Settings("127.0.0.1:1", "us-east-1", False, False, *keys).with_id()


def test_stores_by_id() -> None:
    stores = Stores(most=2)
    first, second, third = map(settings, ("one", "two", "three"))
    stores.add((first, second))
    client = stores.file_system(first.id)
    stores.add((first, third))
    assert stores.file_system(first.id) is client
    assert stores.settings((third.id, second.id, first.id)) == (third, first)
    with pytest.raises(DataError, match="not known here"):
        stores.file_system(second.id)


def test_secrets_are_removed_from_texts() -> None:
    stores = Stores()
    stores.add((settings("hush"),))
    text = "HTTP 403 for key of tests: hush is not the secret"
    assert stores.redact(settings("hush").id, text) == "HTTP 403 for ***: *** is not the secret"
    assert stores.redact("another", text) == text
    stores.add((settings("hush is not"),))
    assert stores.redact_all(text) == "HTTP 403 for ***: *** the secret"
