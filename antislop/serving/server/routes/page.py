"""GET /: a page to try the server with."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from antislop.data import FOLDER
from antislop.serving.server.request_errors import RequestError

PAGE = FOLDER / "serve.html"

router = APIRouter()


@router.get("/")
async def show_page() -> Response:
    """Return the page; it is the same for everybody, and asks for the key itself."""
    if not PAGE.is_file():
        raise RequestError(404, "this version has no page: use the API, whose models are at /v1/models")
    return HTMLResponse(PAGE.read_text(encoding="utf-8"))
