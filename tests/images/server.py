"""A server of an image, for tests of containers: what it sees of where it runs, and ways to die.

`/slow` answers piece by piece over two seconds; on SIGTERM the server accepts no more and finishes what it began.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


def facts() -> dict[str, object]:
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        "name": os.environ.get("NAME"),
        "host": socket.gethostname(),
        "variables": dict(os.environ),
        "capabilities": status["CapEff"].strip(),
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "writes": {path: writes(path) for path in ("/", "/tmp", "/scratch")},
        "arguments": sys.argv,
        "disk": read_disk(os.environ.get("DISK_FOLDER")),
    }


def read_disk(folder: str | None) -> dict[str, object] | None:
    if folder is None:
        return None

    found = os.statvfs(folder)
    return {
        "size": found.f_blocks * found.f_frsize,
        "files": {file.name: file.read_text() for file in Path(folder).iterdir()},
        "writes": writes(folder),
    }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def writes(path: str) -> bool:
    try:
        Path(path, "probe").write_text("x")
    except OSError:
        return False

    return True


def reaches(url: str) -> bool:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as opened:
        # What Postgres answers to a request for TLS is one letter; anything that answers is there.
        opened.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
        return opened.recv(1) in {b"N", b"S"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/die":
            say("dying as asked")
            os._exit(3)

        if self.path == "/eat":
            hoard = [b"x" * (10_000_000 + number) for number in range(200)]
            say(f"ate {len(hoard)}")

        if self.path == "/slow":
            self.answer_slowly()
        elif self.path == "/database":
            self.answer(reaches(os.environ["DATABASE_URI"]))
        elif self.path == "/metrics?format=json":
            problems = [os.environ["PROBLEM"]] if "PROBLEM" in os.environ else []
            self.answer({"queue": {"n_pending": 2, "n_running": 1}, "problems": problems})
        else:
            self.answer(facts())

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_slowly(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "20")
        self.end_headers()

        for _ in range(20):
            self.wfile.write(b".")
            self.wfile.flush()
            time.sleep(0.1)

    def log_message(self, *_arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True


if __name__ == "__main__":
    if os.environ.get("NAME") == "unusable":
        sys.exit("this image is broken")
    server = Server(("0.0.0.0", int(os.environ["PORT"])), Handler)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    say(json.dumps({"event": "the server is up", "level": "warning"}))
    server.serve_forever()
    server.server_close()
