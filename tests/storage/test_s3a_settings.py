# SPDX-License-Identifier: Apache-2.0
"""Hadoop's settings of a bucket become those of a store, or a reason; secrets are in no text."""

from __future__ import annotations

import pickle

import pytest

from volley.rpc.codec import decode, encode
from volley.storage.s3a import Unmapped, map_settings
from volley.storage.settings import Hidden, S3Settings

KEYS = {"access.key": "AKIA1", "secret.key": "hush", "endpoint.region": "eu-west-1"}
ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ENVIRONMENT = "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"


def mapped(
    settings: dict[str, str], variables: dict[str, str] | None = None, bucket: str = "b-1"
) -> S3Settings:
    return map_settings(bucket, settings, (variables or {}).get, lambda name: False)


@pytest.mark.parametrize(
    ("settings", "endpoint", "region", "tls", "virtual_hosted"),
    [
        ({}, "", "eu-west-1", True, True),
        ({"path.style.access": "true"}, "s3.eu-west-1.amazonaws.com", "eu-west-1", True, False),
        (
            {"path.style.access": "true", "endpoint.region": "cn-north-1"},
            "s3.cn-north-1.amazonaws.com.cn",
            "cn-north-1",
            True,
            False,
        ),
        ({"endpoint": "s3.amazonaws.com"}, "", "eu-west-1", True, True),
        ({"endpoint": "minio:9000"}, "minio:9000", "eu-west-1", True, True),
        ({"endpoint": "http://minio:9000/"}, "minio:9000", "eu-west-1", False, True),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false"},
            "minio:9000",
            "eu-west-1",
            False,
            True,
        ),
        ({"endpoint": "10.0.0.1:9000"}, "10.0.0.1:9000", "eu-west-1", True, False),
        ({"endpoint": "minio", "bucket.b-1.endpoint": "other"}, "other", "eu-west-1", True, True),
        ({"endpoint": "minio", "bucket.b-2.endpoint": "other"}, "minio", "eu-west-1", True, True),
    ],
)
def test_place(settings: dict[str, str], endpoint: str, region: str, tls: bool, virtual_hosted: bool) -> None:
    found = mapped(KEYS | settings)
    assert (found.endpoint, found.region, found.tls, found.virtual_hosted) == (
        endpoint,
        region,
        tls,
        virtual_hosted,
    )


def test_region_of_an_endpoint() -> None:
    keys = {"access.key": "a", "secret.key": "s"}
    assert mapped({**keys, "endpoint": "s3.eu-central-1.amazonaws.com"}).region == "eu-central-1"
    assert mapped({**keys, "endpoint": "minio:9000"}).region == "us-east-1"
    for settings in ({}, {"endpoint": "s3.amazonaws.com"}, {"endpoint": "x.vpce.amazonaws.com"}):
        with pytest.raises(Unmapped, match=r"endpoint\.region"):
            mapped(keys | settings)


@pytest.mark.parametrize(
    ("settings", "variables", "keys"),
    [
        ({}, {}, ("AKIA1", "hush", None)),
        ({"session.token": "t"}, {}, ("AKIA1", "hush", "t")),
        ({"aws.credentials.provider": SIMPLE, "session.token": "t"}, {}, ("AKIA1", "hush", None)),
        ({"aws.credentials.provider": ANONYMOUS}, {}, (None, None, None)),
        ({"aws.credentials.provider": f"{TEMPORARY},\n {ANONYMOUS}"}, {}, (None, None, None)),
        (
            {"aws.credentials.provider": ENVIRONMENT},
            {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "f", "AWS_SESSION_TOKEN": "g"},
            ("e", "f", "g"),
        ),
        ({"bucket.b-1.secret.key": "of the bucket"}, {}, ("AKIA1", "of the bucket", None)),
    ],
)
def test_credentials(
    settings: dict[str, str], variables: dict[str, str], keys: tuple[str | None, ...]
) -> None:
    found = mapped(KEYS | settings, variables)
    hidden = (found.access_key, found.secret_key, found.session_token)
    assert tuple(text and text.value for text in hidden) == keys


@pytest.mark.parametrize(
    "settings",
    [
        {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"},
        {"aws.credentials.provider": TEMPORARY},
        {"aws.credentials.provider": f"com.example.Mine,{SIMPLE}"},
        {"access.key": "", "secret.key": ""},
        {"proxy.host": "proxy"},
        {"encryption.algorithm": "SSE-C", "encryption.key": "hush"},
        {"encryption.algorithm": "CSE-KMS"},
        {"requester.pays.enabled": "true"},
        {"endpoint.fips": "true"},
        {"security.credential.provider.path": "jceks://file/hush"},
        {"signing-algorithm": "S3SignerType"},
        {"something.new": "hush"},
        {"bucket.b-1.something.new": "hush"},
        {"endpoint": "http://user:hush@minio"},
        {"endpoint": "http://minio/path"},
        {"endpoint.region": "sdk"},
        {"endpoint.region": ""},
        {"endpoint.region": "us-iso-east-1", "path.style.access": "true"},
    ],
)
def test_settings_without_a_counterpart(settings: dict[str, str]) -> None:
    with pytest.raises(Unmapped) as raised:
        mapped(KEYS | settings)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"threads.max": "7", "retry.limit": "3", "committer.name": "magic", "fast.upload.buffer": "disk"},
        {"encryption.algorithm": "SSE-KMS", "encryption.key": "arn", "requester.pays.enabled": "false"},
        {"proxy.port": "80", "bucket.other.proxy.host": "proxy"},
    ],
)
def test_settings_without_effect(settings: dict[str, str]) -> None:
    assert mapped(KEYS | settings) == mapped(KEYS)


def test_unknown_settings_with_their_default() -> None:
    settings = {**KEYS, "something.new": "7"}
    assert map_settings("b-1", settings, lambda name: None, lambda name: name == "fs.s3a.something.new")
    with pytest.raises(Unmapped):
        map_settings(
            "b-1", {**settings, "bucket.b-1.something.new": "8"}, lambda name: None, lambda name: True
        )


def test_providers_that_are_code() -> None:
    """The file system is asked where the chain reaches one, and not before."""
    settings = {**KEYS, "aws.credentials.provider": f"{TEMPORARY},com.example.Mine"}

    def ask() -> tuple[str, str, str]:
        return ("a", "s", "t")

    found = map_settings("b-1", settings, lambda name: None, lambda name: False, ask)
    hidden = (found.access_key, found.secret_key, found.session_token)
    assert [text and text.value for text in hidden] == ["a", "s", "t"]
    settings["session.token"] = "given"
    found = map_settings("b-1", settings, lambda name: None, lambda name: False, ask)
    assert found.session_token is not None
    assert found.session_token.value == "given"


def test_unusual_buckets() -> None:
    for bucket in ("user:hush@b", "Upper", "b_1", ""):
        with pytest.raises(Unmapped) as raised:
            mapped(KEYS, bucket=bucket)
        assert "hush" not in str(raised.value)


def test_equal_settings_have_one_id() -> None:
    assert mapped(KEYS).id == mapped({**KEYS, "threads.max": "7"}).id
    assert (
        len({mapped(KEYS).id, mapped({**KEYS, "secret.key": "x"}).id, mapped({**KEYS, "endpoint": "y"}).id})
        == 3
    )


def test_secrets_are_not_shown() -> None:
    found = mapped({**KEYS, "session.token": "quiet"})
    for text in (
        repr(found),
        str(found),
        f"{found}",
        repr([found.secret_key]),
        str(Hidden("hush")),
        found.id,
    ):
        assert not any(secret in text for secret in ("AKIA1", "hush", "quiet"))


def test_settings_travel() -> None:
    found = mapped(KEYS)
    assert decode(encode(found), S3Settings) == found
    assert pickle.loads(pickle.dumps(found)) == found
