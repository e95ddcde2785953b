# SPDX-License-Identifier: Apache-2.0
"""What the dashboard's server answers, to whom, and with which headers."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.records import node, query_record, stage_events
from volley.errors import ConfigError
from volley.observe.dashboard.server import Dashboard, Site
from volley.observe.history_store import HistoryStore
from volley.security import Security

QUERIES = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history")
    store = HistoryStore(directory)
    store.save(query_record(number) for number in range(QUERIES))
    started = time.time() - 3
    reasons = [{"reason": "OPERATOR_NOT_SUPPORTED", "what": "Generate", "detail": "why"}]
    events = stage_events(started, stages=4, tasks=250)
    failure = {
        "event": "TaskFailed",
        "at": started + 1,
        "part": 0,
        "stage": 1,
        "epoch": 0,
        "task": 3,
        "attempt": 0,
    }
    events.append(failure | {"code": "WORKER_LOST", "final": False})
    plan = [node(0, "Project [a]"), node(1, "Generate", False, tuple(reasons)), node(2, "FileScan parquet")]
    store.save(
        [
            query_record(0xA0000, started=started, engine="mixed", reasons=reasons, plan=plan, events=events),
            query_record(0xB0000, started=started + 1, seconds=4.0, plan=plan[2:]),
        ]
    )
    store.close()
    return directory


@pytest.fixture(scope="module")
def dashboard(directory: Path) -> Iterator[Dashboard]:
    serving = Dashboard([directory], Site(), lambda: ["127.0.0.1:1"], Security())
    yield serving
    serving.close()


def get(dashboard: Dashboard, path: str, **headers: str) -> Any:
    request = urllib.request.Request(f"{base(dashboard)}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def base(dashboard: Dashboard) -> str:
    return dashboard.url.partition("?")[0].rstrip("/")


def status(
    dashboard: Dashboard, method: str, path: str, **headers: str
) -> tuple[int, http.client.HTTPMessage]:
    parts = urlsplit(dashboard.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=120)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.headers


def test_queries_are_listed_in_pages(dashboard: Dashboard) -> None:
    first = get(dashboard, "/api/queries?limit=400")
    assert first["count"] == QUERIES + 2
    rest = get(dashboard, f"/api/queries?limit=1000&before={first['queries'][-1]['started']}")
    ids = [query["query"] for query in first["queries"] + rest["queries"]]
    assert len(ids) == len(set(ids)) == QUERIES + 2
    assert [q["query"] for q in get(dashboard, "/api/queries?engine=mixed")["queries"]] == [f"{0xA0000:012x}"]
    assert len(get(dashboard, "/api/queries?search=number+77")["queries"]) == 11
    assert status(dashboard, "GET", "/api/queries?limit=many")[0] == 400


def test_a_query_with_a_thousand_tasks(dashboard: Dashboard) -> None:
    page = get(dashboard, f"/api/queries/{0xA0000:012x}")
    assert [len(stage["tasks"]) for stage in page["stages"]] == [250] * 4
    assert [(e["from"], e["to"]) for e in page["exchanges"]] == [("0", "1"), ("1", "2"), ("2", "3")]
    assert page["exchanges"][0]["bytes"] == 2_000_000
    assert page["exchanges"][0]["wait_seconds"] == pytest.approx(2.5)
    assert sum(page["times"].values()) == pytest.approx(page["seconds"])
    assert page["times"]["native stages"] == pytest.approx(1.5, abs=0.01)
    assert [event["code"] for event in page["recovery"]] == ["WORKER_LOST"]
    assert "events" not in page
    assert status(dashboard, "GET", "/api/queries/ffffffffffff")[0] == 404


def test_two_queries_are_compared(dashboard: Dashboard) -> None:
    found = get(dashboard, f"/api/compare?a={0xA0000:012x}&b={0xB0000:012x}")
    figures = {figure["name"]: figure["values"] for figure in found["figures"]}
    assert figures["seconds"] == [2.0, 4.0]
    assert found["only"] == [["Project [a]", "Generate"], []]
    assert status(dashboard, "GET", "/api/compare?a=x&b=y")[0] == 404


def test_daemons_and_reasons(dashboard: Dashboard) -> None:
    (one,) = get(dashboard, "/api/daemons")
    assert (one["address"], one["status"]) == ("127.0.0.1:1", "unreachable")
    codes = {entry["reason"] for entry in get(dashboard, "/api/reasons")}
    assert codes == {str(reason) for reason in volley.Reason}


def test_changes_are_pushed(dashboard: Dashboard, directory: Path) -> None:
    with urllib.request.urlopen(f"{base(dashboard)}/api/changes", timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.readline() == b"retry: 2000\n"
        store = HistoryStore(directory)
        store.save([query_record(0xC0000, outcome="running", description="a\nb")])
        store.close()
        lines = iter(answer.readline, b"")
        told = next(json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
        while told["query"] != f"{0xC0000:012x}":
            told = next(json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
    assert told["description"] == "a\nb"


def test_nothing_can_be_changed_and_no_other_site_gets_in(dashboard: Dashboard) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert status(dashboard, method, "/api/queries")[0] == 405
    assert status(dashboard, "GET", "/", Host="evil.example")[0] == 421
    assert status(dashboard, "GET", "/static/../server.py")[0] == 404
    assert status(dashboard, "GET", "/static/%2e%2e/server.py")[0] == 404
    for path in ("/", "/static/app.js", "/api/queries", "/api/queries/none"):
        _, headers = status(dashboard, "GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    page = urllib.request.urlopen(f"{base(dashboard)}/", timeout=120).read().decode()
    assert "http://" not in page
    assert "https://" not in page


def test_a_token(directory: Path) -> None:
    serving = Dashboard([directory], Site(token="let-me-in"))
    try:
        assert serving.url.endswith("?token=let-me-in")
        for path in ("/", "/api/queries", "/api/changes", "/static/app.js", "/?token=wrong"):
            assert status(serving, "GET", path)[0] == 401, path
        code, headers = status(serving, "GET", "/?token=let-me-in")
        assert (code, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert status(serving, "GET", "/api/queries", Cookie=cookie.partition(";")[0])[0] == 200
        assert status(serving, "GET", "/api/queries", Authorization="Bearer let-me-in")[0] == 200
    finally:
        serving.close()


def test_beyond_loopback_it_wants_tls_and_makes_a_token(directory: Path) -> None:
    with pytest.raises(ConfigError, match="no TLS"):
        Dashboard([directory], Site(host="0.0.0.0"))
    serving = Dashboard([directory], Site(host="0.0.0.0", insecure=True))
    try:
        assert "?token=" in serving.url
    finally:
        serving.close()


def test_a_port_that_is_taken(dashboard: Dashboard, directory: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        Dashboard([directory], Site(port=urlsplit(dashboard.url).port or 0))


def test_the_dashboard_of_a_session(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.volley.history.dir", str(tmp_path / "history"))
    serving = volley.dashboard(spark)
    try:
        assert get(serving, "/api/queries")["queries"] == []
        spark.range(10).count()
        report = volley.last_query(spark)
        assert report is not None
        volley.history(spark)  # written by now
        assert get(serving, f"/api/queries/{report.query}")["rows"] == 1
        assert get(serving, "/api/daemons") == []
        assert get(serving, "/api/frames") == []
        spark.range(7).selectExpr("id", "id % 2 as k").createOrReplaceTempView("odd")
        spark.sql("cache table odd options ('storageLevel' 'DISK_ONLY')")
        spark.sql("select sum(id) from odd").collect()
        spark.sql("select sum(k) from odd").collect()
        (frame,) = get(serving, "/api/frames")
        assert (frame["label"]["name"], frame["rows"], frame["hits"]) == ("odd", 7, 2)
        assert "Disk" in frame["label"]["level"]
        assert frame["memory_bytes"] == 0 < frame["disk_bytes"]
        spark.catalog.clearCache()
        assert get(serving, "/api/frames") == []
        assert serving.url in serving._repr_html_()
    finally:
        serving.close()
    spark.conf.set("spark.volley.history.dir", "off")
    with pytest.raises(ConfigError, match="no history"):
        volley.dashboard(spark)
