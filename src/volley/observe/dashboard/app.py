# SPDX-License-Identifier: Apache-2.0
"""The web application: pages and scripts from this package, data as JSON, changes as server-sent events.

    GET /                        the page; what it shows is chosen by the part of its address after #
    GET /static/...              its script and style
    GET /api/queries             a list of summaries: limit, before, engine, outcome, search
    GET /api/queries/{id}        one query in detail
    GET /api/compare?a=..&b=..   two of them
    GET /api/daemons             the health of workers and shuffle servers
    GET /api/frames              the cached frames that the program of this dashboard keeps
    GET /api/reasons             what the codes mean
    GET /api/changes             server-sent events: summaries of queries that began, went on or ended

Only GET is answered. Nothing is loaded from elsewhere, no script is inline, and no other site may frame or read it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from volley.frame_cache.store import KeptFrame
from volley.observe.dashboard import data
from volley.observe.history_store import HistoryReader
from volley.security import Security

COOKIE = "volley-dashboard"
_POLL_SECONDS = 0.5
_ALIVE_SECONDS = 15.0
_PAGE_ROWS = 100
_MAX_ROWS = 1_000

_FILES = {
    "app.js": "text/javascript",
    "draw.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(
    directories: Sequence[Path],
    *,
    hosts: Sequence[str],
    token: str | None = None,
    addresses: Callable[[], Sequence[str]] = tuple,
    security: Security | None = None,
    frames: Callable[[], Sequence[KeptFrame]] | None = None,
    is_closing: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The application over the histories in `directories`. `hosts` are the names by which it may be called.

    With a `token`, requests must present it: once as `?token=`, which the page's cookie then replaces, or as a bearer.
    Without `frames` this process keeps no cached frames. Streams end when `is_closing`.
    """
    readers = [HistoryReader(directory) for directory in directories]
    pages = _Pages(readers, addresses, security or Security(), is_closing)
    routes = [
        Route("/", _static("index.html", "text/html"), methods=["GET"]),
        *(Route(f"/static/{name}", _static(name, kind), methods=["GET"]) for name, kind in _FILES.items()),
        Route("/api/queries", pages.queries, methods=["GET"]),
        Route("/api/queries/{query}", pages.query, methods=["GET"]),
        Route("/api/compare", pages.compare, methods=["GET"]),
        Route("/api/daemons", pages.daemons, methods=["GET"]),
        Route("/api/frames", partial(_frames, frames), methods=["GET"]),
        Route("/api/reasons", pages.reasons, methods=["GET"]),
        Route("/api/changes", pages.changes, methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, hosts=frozenset(hosts), token=token)])


def _static(name: str, kind: str) -> Callable[[Request], Response]:
    content = (resources.files("volley.observe.dashboard") / "static" / name).read_bytes()

    def serve(request: Request) -> Response:
        return Response(content, media_type=kind)

    return serve


async def _frames(frames: Callable[[], Sequence[KeptFrame]] | None, request: Request) -> Response:
    return JSONResponse(None if frames is None else [asdict(frame) for frame in frames()])


class _Pages:
    def __init__(
        self,
        readers: Sequence[HistoryReader],
        addresses: Callable[[], Sequence[str]],
        security: Security,
        is_closing: Callable[[], bool],
    ) -> None:
        self._readers = readers
        self._addresses = addresses
        self._security = security
        self._is_closing = is_closing
        # SQLite's connections are not for several threads at a time.
        self._lock = asyncio.Lock()

    async def queries(self, request: Request) -> Response:
        asked = request.query_params
        try:
            limit = min(_MAX_ROWS, max(1, int(asked.get("limit", _PAGE_ROWS))))
            before = float(asked["before"]) if "before" in asked else None
        except ValueError:
            return JSONResponse({"error": "limit and before are numbers"}, 400)
        words = {name: asked.get(name, "") for name in ("engine", "outcome", "search")}

        def find() -> dict[str, Any]:
            found = [s for reader in self._readers for s in reader.summaries(limit, before=before, **words)]
            found.sort(key=lambda summary: summary["started"], reverse=True)
            return {"queries": found[:limit], "count": sum(reader.count() for reader in self._readers)}

        return JSONResponse(await self._read(find))

    async def query(self, request: Request) -> Response:
        record = await self._read(lambda: self._get(request.path_params["query"]))
        if record is None:
            return JSONResponse({"error": "no such query"}, 404)
        return JSONResponse(await run_in_threadpool(data.query_page, record))

    async def compare(self, request: Request) -> Response:
        ids = [request.query_params.get(name, "") for name in ("a", "b")]
        records = [await self._read(partial(self._get, id)) for id in ids]
        if None in records:
            return JSONResponse({"error": "no such query"}, 404)
        return JSONResponse(await run_in_threadpool(data.compare, *records))

    async def daemons(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(data.daemons, self._addresses(), self._security))

    async def reasons(self, request: Request) -> Response:
        return JSONResponse(data.reasons())

    async def changes(self, request: Request) -> Response:
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        since, told = time.time() - 1.0, time.monotonic()
        yield "retry: 2000\n\n"
        while not self._is_closing() and not await request.is_disconnected():
            changed = await self._read(partial(self._changed_since, since))
            for summary in changed:
                since = max(since, summary["updated"])
                yield f"event: query\ndata: {json.dumps(summary)}\n\n"
            now = time.monotonic()
            if changed or now - told > _ALIVE_SECONDS:
                told = now
                yield ": alive\n\n"
            await asyncio.sleep(_POLL_SECONDS)

    def _changed_since(self, updated: float) -> list[dict[str, Any]]:
        return [summary for reader in self._readers for summary in reader.changed_since(updated)]

    def _get(self, query: str) -> dict[str, Any] | None:
        return next((record for reader in self._readers if (record := reader.get(query))), None)

    async def _read(self, read: Callable[[], Any]) -> Any:
        async with self._lock:
            return await run_in_threadpool(read)


class _Guard:
    """Refuses what is not meant for this server, and adds the headers that keep other sites out.

    Another site may resolve its own name to this host (DNS rebinding), so only known host names are accepted.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        request = Request(scope)
        answer = self._refuse(request)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refuse(self, request: Request) -> Response | None:
        if request.url.hostname not in self._hosts:
            return PlainTextResponse("unknown host", 421)
        if request.method != "GET":
            return PlainTextResponse("only GET", 405)
        if self._token is None or self._is_token(request.cookies.get(COOKIE, "")):
            return None
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer):
            return None
        if self._is_token(request.query_params.get("token", "")):
            # From here on the cookie, so that the token is not in the history of the browser.
            answer = RedirectResponse(request.url.path, 303)
            secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", secure=secure)
            return answer
        return PlainTextResponse("token required: open the address that the dashboard printed", 401)

    def _is_token(self, shown: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(shown.encode(), self._token.encode())
