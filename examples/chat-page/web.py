"""Serves the page beside the agent: one address, so no other origin has to be allowed."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"

app = Starlette(routes=[Mount("/chat", StaticFiles(directory=STATIC, html=True))])
