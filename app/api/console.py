"""The console's page at `/` and the files it loads, read once from the package.

The page holds no secret, so anybody may load it. Separate from the endpoints that it calls, since it needs no gateway.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter, Response

from app.api.cors import PAGE_HEADERS
from app.api.operator_access import READ_METHODS

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
}


def console() -> APIRouter:
    """The routes of the console's files."""
    router = APIRouter()
    for path, (name, media_type) in FILES.items():
        router.add_api_route(path, _answer(name, media_type), methods=READ_METHODS)
    router.add_api_route("/favicon.ico", _no_icon, methods=READ_METHODS)
    return router


def _answer(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = (files("app") / "console" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, headers=PAGE_HEADERS, media_type=media_type)

    return answer


async def _no_icon() -> Response:
    return Response(status_code=204, headers=PAGE_HEADERS)
