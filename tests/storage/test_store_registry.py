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


def test_signatures_are_removed_in_any_order() -> None:
    stores = Stores()
    text = "GET 'https://acct.example/lake/a?se=1&sig=aB%2F%3D&sp=r' and ?SIG=x and design=y: 403"
    hidden = "GET 'https://acct.example/lake/a?se=1&sig=***&sp=r' and ?SIG=*** and design=y: 403"
    assert stores.redact("another", text) == stores.redact_all(text) == hidden


def test_credentials_are_asked_for_again() -> None:
    """An id stays; newer credentials replace older ones, and older ones that come late are ignored."""
    first = settings("first")
    answers: list[S3Settings | None] = [settings("second"), None, settings("second")]
    driver, worker = Stores(renew_seconds=0), Stores()
    driver.add((first,), lambda: answers.pop(0))
    worker.add(driver.settings((first.id,)))
    (second,) = driver.renewed_settings((first.id,))
    assert isinstance(second, S3Settings)
    assert (second.id, second.secret_key, second.renewals) == (first.id, Hidden("second"), 1)
    # No answer, and the same answer, change nothing.
    assert driver.renewed_settings((first.id,)) == driver.renewed_settings((first.id,)) == (second,)
    worker.add((second,))
    worker.add((first,))
    assert worker.settings((first.id,)) == worker.renewed_settings((first.id,)) == (second,)
    assert answers == []


def test_credentials_are_not_asked_for_all_the_time() -> None:
    stores, first = Stores(), settings("first")
    stores.add((first,), lambda: settings("second"))
    assert stores.renewed_settings((first.id,)) == (first,)
