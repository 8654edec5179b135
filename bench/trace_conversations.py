"""Measures the traces of one conversation, of 50 turns unless given: `python -m bench.trace_conversations [TURNS]`.

A langgraph agent with a stand-in model calls a tool in each turn, and the stock tracer delivers its spans to a server
that keeps their bodies. Those are then stored by the product's own ingest, once as they are and once with lists in
pieces, each in a database of its own. Bytes on disk, the log of Postgres (WAL) and CPU are measured rather than times.
"""

import asyncio
import gzip
import json
import os
import random
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

sys.path[:0] = [str(Path(__file__).parents[1])]

import msgspec  # noqa: E402
from bench.agent_server import find_postmaster  # noqa: E402
from bench.client import cpu_s  # noqa: E402
from bench.conversations import WAL  # noqa: E402
from langchain_core.language_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_core.tracers.langchain import wait_for_all_tracers  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import START, MessagesState, StateGraph  # noqa: E402
from langgraph.prebuilt import ToolNode, tools_condition  # noqa: E402

from portside.identity import first_start  # noqa: E402
from portside.identity.authentication import Authenticator  # noqa: E402
from portside.kernel.db import Database  # noqa: E402
from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402
from portside.kernel.migrations import migrate  # noqa: E402
from portside.tracing import pieces  # noqa: E402
from portside.tracing.ingest import store_batch  # noqa: E402
from portside.tracing.ingest_parser import parse_multipart  # noqa: E402
from portside.tracing.services import InstanceFlags, PlatformInfo  # noqa: E402

PACKAGES = ["portside.identity", "portside.tracing"]
TABLES = ("runs", "traces", "run_pieces", "piece_users")
WORDS = "".join(path.read_text() for path in sorted(Path(__file__).parents[1].glob("docs/why/*.md"))).split()


def text(characters: int) -> str:
    """Return some prose."""
    start = random.randrange(len(WORDS) - characters)
    return " ".join(WORDS[start : start + characters])[:characters]


class Receiver(BaseHTTPRequestHandler):
    """Keeps the bodies that the tracer sends, each with its content type."""

    protocol_version = "HTTP/1.1"
    bodies: ClassVar[list[tuple[bytes, str]]] = []

    def log_message(self, *_args) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        info = PlatformInfo(instance_flags=InstanceFlags(zstd_compression_enabled=False))
        self._answer(msgspec.json.encode(info))

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()

            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))

        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)

        self.bodies.append((body, self.headers["Content-Type"]))
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@tool
def search(query: str) -> str:
    """Search the knowledge base."""
    return json.dumps([{"title": text(40), "query": query, "snippet": text(450)} for _ in range(3)])


def converse(turns: int) -> None:
    """Have a conversation of which the stock tracer sends every span to the receiver."""
    call = {"name": "search", "args": {"query": "what"}}
    said = (
        each
        for turn in range(turns)
        for each in (AIMessage("", tool_calls=[{**call, "id": f"call_{turn}"}]), AIMessage(text(700)))
    )

    model = GenericFakeChatModel(messages=said)

    def agent(state: MessagesState) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("agent", agent).add_node("tools", ToolNode([search]))
    builder.add_edge(START, "agent").add_conditional_edges("agent", tools_condition).add_edge("tools", "agent")

    graph = builder.compile(checkpointer=InMemorySaver())
    for _ in range(turns):
        asked = {"messages": [{"role": "user", "content": text(200)}]}
        graph.invoke(asked, {"configurable": {"thread_id": "one"}})
        wait_for_all_tracers()


async def store(url: str) -> dict[str, float]:
    """Store all bodies; return what that took."""
    db = await Database.connect(url, max_size=2)
    await migrate(db, PACKAGES)
    actor = await Authenticator(db).authenticate(await first_start.set_up(db))
    postgres = await find_postmaster(url)
    before = time.process_time(), cpu_s(postgres), await db.pool.fetchval(WAL)

    for body, kind in Receiver.bodies:
        await store_batch(db, parse_multipart(body, kind), by=actor)

    found = {
        "CPU of the platform, s": time.process_time() - before[0],
        "CPU of Postgres, s": cpu_s(postgres) - before[1],
        "WAL, MB": (await db.pool.fetchval(WAL) - before[2]) / 1e6,
    }

    sizes = "select sum(pg_total_relation_size(to_regclass(name))) / 1e6::float8 from unnest($1::text[]) name"
    found["on disk, MB"] = await db.pool.fetchval(sizes, list(TABLES))
    began = cpu_s(postgres)
    read = "select sum(length(inputs) + length(outputs)) from readable_runs"
    found["inputs and outputs, million characters"] = await db.pool.fetchval(read) / 1e6
    found["CPU of Postgres to read them, s"] = cpu_s(postgres) - began

    await db.close()
    return found


def store_bodies(folder: Path) -> dict[str, float]:
    """Store all bodies in a new Postgres."""
    postgres = EmbeddedPostgres(folder)
    try:
        return asyncio.run(store(postgres.acquire()))
    finally:
        postgres.release()


def main() -> None:
    """Measure, and print both columns."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_API_KEY": "key",
        "LANGSMITH_DISABLE_RUN_COMPRESSION": "true",
        "LANGSMITH_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    }

    converse(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    with tempfile.TemporaryDirectory() as folder:
        in_pieces = store_bodies(Path(folder, "pieces"))
        pieces.MIN_CHARS = sys.maxsize
        whole = store_bodies(Path(folder, "whole"))

    print(f"{'':<42}{'whole':>10}{'in pieces':>12}")

    for name in whole:
        print(f"{name:<42}{whole[name]:>10.2f}{in_pieces[name]:>12.2f}")


if __name__ == "__main__":
    main()
