"""Serve MLflow's pages to their owner only. ``pipeline.ui`` starts this application with uvicorn.

Every account of a machine can reach its 127.0.0.1, and MLflow does not authenticate. So each request needs
the token of the printed link. A browser keeps the token as a cookie until it is closed; an MLflow client
sends it as MLFLOW_TRACKING_TOKEN. Requests from pages of other origins are refused, and artifacts can only be
read.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

STORE, TOKEN = "PIPELINE_UI_STORE", "PIPELINE_UI_TOKEN"
"""Environment variables with the store's URI and the token."""

READS = {"GET", "HEAD", "OPTIONS"}
ARTIFACTS = ("/mlflow-artifacts/", "/upload-artifact", "/create-promptlab-run")
"""Parts of the request paths that let a client write artifacts."""

REFUSED = (
    "These pages are shown to the person who started them. Open the link that `make ui` has printed; after "
    "that this address works in the same browser, too.\n"
)

WELCOME = """<!doctype html>
<script>location.replace(location.pathname + location.hash)</script>
"""
"""A page that removes the token from the browser's address. It keeps the fragment, which a server never
receives."""


def application() -> ASGIApp:
    """Return MLflow's application behind a guard. uvicorn calls this once."""
    from mlflow.server import constants

    # MLflow's own command passes its options to the server in such variables. Without the second one the
    # server is no proxy of an artifact store: it serves only the artifacts of runs.
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = os.environ.pop(STORE)
    os.environ.pop(constants.SERVE_ARTIFACTS_ENV_VAR, None)
    from mlflow.server.fastapi_app import app

    return Guard(app, os.environ.pop(TOKEN))


class Guard:
    """An ASGI application that needs a token."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (answer := self._answer(HTTPConnection(scope), scope["method"])):
            await answer(scope, receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close"})  # MLflow has no websockets

    def _answer(self, request: HTTPConnection, method: str) -> Response | None:
        """Return the welcome page for a request with the token, a refusal, or None if MLflow is to answer."""
        # Browsers share cookies among all ports of an address, so the port is in the cookie's name.
        cookie = f"pipeline-ui-{request.url.port}"
        if self._is_right(request.query_params.get("token", "")):
            found = HTMLResponse(
                WELCOME, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
            )
            found.set_cookie(cookie, self._token.decode(), httponly=True, samesite="lax")
            return found
        known = request.cookies.get(cookie, "")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not (self._is_right(known) or self._is_right(bearer)):
            return PlainTextResponse(REFUSED, status_code=403)
        # A page on another port sends the cookie, too, and MLflow would answer it.
        own = f"{request.url.scheme}://{request.url.netloc}"
        if request.headers.get("Origin", own) != own:
            return PlainTextResponse("a page of another address sent this request\n", status_code=403)
        if method not in READS and any(part in request.url.path for part in ARTIFACTS):
            return PlainTextResponse("artifacts can only be read here\n", status_code=403)
        return None

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)
