# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: pages, keys, live changes, themes, and names that try to be scripts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.records import node, query_record, stage_events
from helpers.waiting import eventually
from volley.observe.dashboard.server import Dashboard, Site
from volley.observe.history_store import HistoryStore

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
if BROWSER is None or DRIVER is None:
    pytest.skip("no Chromium with its driver on this machine", allow_module_level=True)

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'";alert(1)//'
DETAIL, OTHER = f"{0xA0000:012x}", f"{0xB0000:012x}"
QUERIES = 10_000
"""As many as the list must be able to show."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history")
    store = HistoryStore(directory)
    store.save(query_record(number) for number in range(QUERIES))
    started = time.time() - 3
    reasons = [
        {"reason": "OPERATOR_NOT_SUPPORTED", "what": "Generate", "detail": HOSTILE},
        {"reason": "NOT_WORTH_A_HAND_OVER", "what": "plan", "detail": ""},
    ]
    plan = [
        node(0, "Sort by 1 keys"),
        node(1, "Aggregate Final by [customer]: Sum"),
        node(2, "Join inner on 1 keys"),
        node(3, f"Generate {HOSTILE}", False, tuple(reasons[:1])),
        node(4, "FileScan parquet, 12 files, 96,000,000 bytes [customer, price, items]"),
        node(3, "FileScan parquet, 1 files, 24,000 bytes [customer, nation]"),
    ]
    store.save(
        [
            query_record(
                0xA0000,
                started=started,
                engine="mixed",
                description=HOSTILE,
                caller=HOSTILE,
                reasons=reasons,
                plan=plan,
                events=stage_events(started, stages=4, tasks=250),
                native_tasks=1000,
                shuffle_bytes=6_000_000,
            ),
            query_record(0xB0000, started=started + 1, seconds=4.0, plan=plan[4:]),
        ]
    )
    store.close()
    return directory


@pytest.fixture(scope="module")
def dashboard(directory: Path) -> Iterator[Dashboard]:
    serving = Dashboard([directory], Site(token="secret"))
    yield serving
    serving.close()


@pytest.fixture(scope="module")
def browser(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "window-size=1400,1000",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{argument}")
    options.add_argument("--disable-dev-shm-usage")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    driver.get(dashboard.url)
    yield driver
    # Whatever the pages did, no script failed and nothing was refused by the policy.
    said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    hacked = driver.execute_script("return window.hacked")
    driver.quit()
    assert said == []
    assert hacked is None


def go(browser: Any, dashboard: Dashboard, page: str) -> None:
    browser.get(f"{dashboard.url.partition('?')[0]}#/{page}")


def texts(browser: Any, selector: str) -> list[str]:
    return [
        str(found)
        for found in browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )
    ]


def press(browser: Any, key: str) -> None:
    webdriver.ActionChains(browser).send_keys(key).perform()


def test_the_list(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, "")
    eventually(lambda: len(texts(browser, "tbody tr")) == 100)
    assert "token" not in browser.current_url
    assert "10,002 queries kept" in texts(browser, ".tools span")
    browser.execute_script("document.querySelector('p button').click()")
    eventually(lambda: len(texts(browser, "tbody tr")) == 200)
    press(browser, "/")
    press(browser, "query number 777")
    eventually(lambda: len(texts(browser, "tbody tr")) == 11)


def test_live_changes(browser: Any, dashboard: Dashboard, directory: Path) -> None:
    # A page that is left before it is drawn does not draw over the next one.
    go(browser, dashboard, "reasons")
    go(browser, dashboard, "")
    eventually(lambda: len(texts(browser, "tbody tr")) == 100)
    eventually(lambda: texts(browser, "#live") == ["live"])
    store = HistoryStore(directory)
    id = f"{0xC0000:012x}"
    running = query_record(
        0xC0000,
        outcome="running",
        ended=None,
        rows=None,
        bytes_read=10,
        bytes_to_read=40,
        rows_read=7,
        description=HOSTILE,
    )
    store.save([running])
    eventually(lambda: texts(browser, f"tr[data-query='{id}'] .running") == ["running"])
    share = browser.execute_script(f"return document.querySelector(\"tr[data-query='{id}'] progress\").value")
    assert share == pytest.approx(0.25)
    go(browser, dashboard, f"query/{id}")
    eventually(lambda: "read 7 rows" in " ".join(texts(browser, "main p")))
    store.save([running | {"outcome": "answered", "rows": 5, "updated": time.time()}])
    store.close()
    eventually(lambda: texts(browser, "h1 .answered") == ["answered"])


def test_one_query(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, f"query/{DETAIL}")
    eventually(lambda: len(texts(browser, ".timeline .task")) == 1000)
    assert len(texts(browser, ".plan .box.native")) == 5
    assert len(texts(browser, ".plan .box.spark")) == 1
    assert len(texts(browser, ".flow .edge")) == 3
    assert len(texts(browser, ".plan .edge")) == 5
    assert "skew" in texts(browser, "details summary")[0]
    assert HOSTILE in texts(browser, "main p")[0]
    links = browser.execute_script(
        "return [...document.querySelectorAll('.reasons a')].map((one) => one.hash)"
    )
    assert links == ["#/reasons/OPERATOR_NOT_SUPPORTED", "#/reasons/NOT_WORTH_A_HAND_OVER"]


def test_a_reason_leads_to_its_meaning(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, "reasons/OPERATOR_NOT_SUPPORTED")
    eventually(lambda: "has no native form" in " ".join(texts(browser, "tr.here")))


def test_two_queries(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, f"compare/{DETAIL}/{OTHER}")
    eventually(lambda: len(texts(browser, ".plan")) == 2)
    assert "2.00×" in texts(browser, "td.number")
    assert any(text.startswith("Generate") for text in texts(browser, "ul.card li"))


def test_keys_and_themes(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, "daemons")
    eventually(lambda: "None are known here" in " ".join(texts(browser, "main p")))
    press(browser, "g")
    eventually(lambda: len(texts(browser, "tbody tr")) == 100)
    press(browser, "jjk")
    assert len(texts(browser, "tr.here")) == 1
    press(browser, "c")
    press(browser, "j")
    press(browser, "c")
    assert len(texts(browser, "tr.marked")) == 2
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    press(browser, "t")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    press(browser, "t")
    browser.execute_script("document.activeElement.blur()")
    press(browser, webdriver.Keys.ENTER)
    eventually(lambda: "#/query/" in browser.current_url)


def test_a_query_that_is_not_there(browser: Any, dashboard: Dashboard) -> None:
    go(browser, dashboard, f"query/{HOSTILE.replace('/', '')}")
    eventually(lambda: "no such query" in " ".join(texts(browser, ".problem")))
    # The browser reports what the server answered; that is no fault of the page.
    assert all(
        "404" in entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    )
