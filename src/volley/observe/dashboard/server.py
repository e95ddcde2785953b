# SPDX-License-Identifier: Apache-2.0
"""Serves the dashboard from a thread of this process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from volley.errors import ConfigError
from volley.frame_cache.store import KeptFrame
from volley.process.runtime import Phase, Shared
from volley.rpc.addresses import address_of
from volley.security import Security, is_loopback

_START_SECONDS = 30.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Site:
    """Where the dashboard listens. Beyond loopback it needs TLS, or `insecure`; a token is made if none is given."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    certificate_file: str = ""
    key_file: str = ""
    insecure: bool = False


class Dashboard:
    """A running dashboard. `url` is where a browser finds it; it ends with `close`, or with this process."""

    def __init__(
        self,
        directories: Sequence[Path],
        site: Site,
        addresses: Callable[[], Sequence[str]] = tuple,
        security: Security | None = None,
        frames: Callable[[], Sequence[KeptFrame]] | None = None,
    ) -> None:
        uvicorn, make_app = _web()
        local = is_loopback(site.host)
        if not local and not site.insecure and not site.certificate_file:
            raise ConfigError(
                f"{site.host} can be reached from other machines, and the dashboard has no TLS.",
                hint="Give a certificate and its key, listen on 127.0.0.1, or say insecure if the network is safe.",
            )
        token = site.token or (None if local else secrets.token_urlsafe(24))
        self._socket = _listen(site.host, site.port)
        port = self._socket.getsockname()[1]
        name = socket.getfqdn() if site.host in ("0.0.0.0", "::", "") else site.host
        hosts = (
            {name, site.host, "localhost", "127.0.0.1", "::1"}
            if local
            else {name, site.host, socket.gethostname()}
        )
        app = make_app(
            directories,
            hosts=sorted(hosts),
            token=token,
            addresses=addresses,
            security=security,
            frames=frames,
            is_closing=lambda: self._server.should_exit,
        )
        scheme = "https" if site.certificate_file else "http"
        self.url = f"{scheme}://{address_of(name, port)}/" + (f"?token={token}" if token else "")
        self._server: Any = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=3,
                ssl_certfile=site.certificate_file or None,
                ssl_keyfile=site.key_file or None,
            )
        )
        self._thread = threading.Thread(target=self._run, name="volley-dashboard", daemon=True)
        self._thread.start()
        _open.get(self, lambda: self)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it ends."""
        self._thread.join(seconds)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()
        with _open.locked() as dashboards:
            dashboards.pop(self, None)

    def __repr__(self) -> str:
        return f"<volley.dashboard {self.url}>"

    def _repr_html_(self) -> str:
        url = escape(self.url, quote=True)
        return f'Volley dashboard: <a href="{url}" target="_blank" rel="noopener">{url}</a>'

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


_open: Shared[Dashboard, Dashboard] = Shared(Phase.CONNECTIONS, close=Dashboard.close)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigError(f"the dashboard cannot listen on {host}:{port}: {error}.") from error
    return listening


def _web() -> tuple[Any, Any]:
    """The web server, which is optional: workers and most drivers need none."""
    try:
        import uvicorn

        from volley.observe.dashboard.app import make_app
    except ImportError as error:
        raise ConfigError(
            f"the dashboard needs {error.name}.", hint="Run: pip install 'volley-spark[dashboard]'"
        ) from error
    return uvicorn, make_app
