"""GET /: a page to try the server with, which speaks to its public routes."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from antislop.display import fill_page

router = APIRouter()


@router.get("/")
async def show_page() -> Response:
    page, policy = _render()
    return HTMLResponse(
        page,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


@cache
def _render() -> tuple[str, str]:
    page, policy = fill_page("serve.html", styles=("page.css", "serve.css"), script="serve.js")
    # The data: image is the empty icon.
    return page, f"{policy}; img-src data:; connect-src 'self'; frame-ancestors 'none'"
