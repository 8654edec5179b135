"""`store.index.embed` with `openai:` calls the configured endpoint and no other address."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from uv import find_uv_bin

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
import asyncio, json, sys
from pathlib import Path

port, called = int(sys.argv[2]), []

def watch(event, arguments):
    # Names are looked up, and addresses connected to, in the Python part of a client.
    if event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", None):
        called.append(str(arguments[0]))
        raise OSError("this test allows one endpoint alone")
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][:2] != ("127.0.0.1", port):
        called.append(str(arguments[1]))
        raise OSError("this test allows one endpoint alone")

sys.addaudithook(watch)
from portside.agent.config import load_config
from portside.agent.store.search_index import Embedder
from portside.executor.embeddings import load_embeddings

config = load_config(Path(sys.argv[1]), {})

async def main():
    index = config.store.index
    embedder = Embedder(index.embed, load_embeddings(config.project, index.embed), index.dims)
    return [await embedder.embed(["first", "second"]), await embedder.embed_query("which?")]

try:
    vectors = asyncio.run(main())
except Exception as exc:
    vectors = str(exc)
print(json.dumps({"vectors": vectors, "called": called}))
"""


class Endpoint(BaseHTTPRequestHandler):
    """Answers as the provider does, with the number of a text's characters as its vector."""

    asked: list[object]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.asked.append((self.path, texts))

        data = [
            {"object": "embedding", "index": place, "embedding": [float(len(text)), 1.0]}
            for place, text in enumerate(texts)
        ]

        response = {"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 1}}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(response).encode())

    def log_message(self, *_said: object) -> None:
        """Keep quiet."""


def test_openai_embeddings_call_the_configured_endpoint_alone(tmp_path: Path):
    packages = tmp_path / "packages"
    asked = []
    subprocess.run(
        [
            find_uv_bin(),
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--target",
            str(packages),
            "langchain",
            "langchain-openai",
        ],
        check=True,
        timeout=300,
    )

    (tmp_path / "agent.py").write_text("")
    index = {"embed": "openai:text-embedding-3-small", "dims": 2}
    (tmp_path / "langgraph.json").write_text(
        json.dumps({"graphs": {"agent": "./agent.py:graph"}, "store": {"index": index}})
    )

    handler = type("Asked", (Endpoint,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "PYTHONPATH": f"{packages}:{REPOSITORY / 'src'}",
        }

        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "langgraph.json"), str(server.server_port)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

        server.shutdown()

    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["called"] == []
    assert reported["vectors"] == [["[5.0,1.0]", "[6.0,1.0]"], "[6.0,1.0]"]
    assert asked == [("/v1/embeddings", ["first", "second"]), ("/v1/embeddings", ["which?"])]
