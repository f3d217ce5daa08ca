"""GET /: a page to try the server with, which speaks to its public routes."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from antislop.data import FOLDER
from antislop.files import read_text

router = APIRouter()


@router.get("/")
async def show_page() -> Response:
    """Return the page; it is the same for everybody, and asks for the key itself."""
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
    """Return the page, and the policy that allows its own style and script and nothing else."""
    style = read_text(FOLDER / "page.css") + read_text(FOLDER / "serve.css")
    script = read_text(FOLDER / "serve.js")
    page = read_text(FOLDER / "serve.html").replace("{{ style }}", style).replace("{{ script }}", script)
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{_hash(script)}'",
        "style-src": f"'sha256-{_hash(style)}'",
        "img-src": "data:",  # the empty icon
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{name} {value}" for name, value in policy.items())


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
