"""A small HTTP server that takes over sockets as the agent server does, for tests of the compute that runs it.

Environment: NAME is what GET / answers; FAIL=exit ends at once, FAIL=deaf never answers; with GATE it answers once that
file exists; SLOW_S delays every answer to GET /slow. On SIGTERM it stops accepting, finishes what it has and exits; on
SIGINT it exits at once.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import uvloop


class FakeServer:
    def __init__(self) -> None:
        self.serving = False
        self.servers: list[asyncio.Server] = []
        self.open = 0
        self.idle = asyncio.Event()

        self.idle.set()

    async def listen(self, descriptor: int) -> None:
        listening = socket.socket(fileno=descriptor)
        listening.setblocking(False)
        self.servers.append(await asyncio.start_server(self.answer, sock=listening))

    def body(self, path: str) -> str:
        if not path.startswith("/metrics"):
            return ""

        pending = Path(os.environ["PENDING"]).read_text() if "PENDING" in os.environ else "0"
        problems = [os.environ["PROBLEM"]] if "PROBLEM" in os.environ else []
        return json.dumps({"queue": {"n_pending": int(pending), "n_running": 0}, "problems": problems})

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.idle.clear()
        try:
            path = (await reader.readline()).split()[1].decode()

            while (await reader.readline()).strip():
                pass

            if path == "/slow":
                await asyncio.sleep(float(os.environ.get("SLOW_S", "0")))

            ok = path != "/ok?serving=1" or self.serving
            body = self.body(path) or json.dumps(
                {"name": os.environ.get("NAME", ""), "pid": os.getpid(), "env": dict(os.environ)}
            )
            head = f"HTTP/1.1 {'200 OK' if ok else '503 Not Yet'}\r\nContent-Length: {len(body)}\r\nConnection: close"

            writer.write(f"{head}\r\n\r\n{body}".encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, IndexError):
            writer.close()
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()


def give_sockets(heir: socket.socket, public: int) -> None:
    with suppress(OSError):
        asking, _address = heir.accept()
        with asking:
            socket.send_fds(asking, [b"1"], [public, heir.fileno()])


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--tier")

    for name in ("fd", "handover-fd", "public-fd", "heir-fd"):
        parser.add_argument(f"--{name}", type=int)

    options = parser.parse_args()
    sys.stdout.write(f"plain words from {os.environ.get('NAME', 'the server')}\n")
    line = {"event": "ready", "level": "warning", "port": 1, "timestamp": "2026-01-02T03:04:05Z"}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stdout.flush()

    if os.environ.get("FAIL") == "exit":
        sys.exit("error: this module does not import")

    if os.environ.get("FAIL") == "deaf":
        await asyncio.Event().wait()

    server = FakeServer()
    loop = asyncio.get_running_loop()
    drain = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, drain.set)
    loop.add_signal_handler(signal.SIGINT, lambda: os._exit(0))
    await server.listen(options.fd)

    async def hand_over() -> None:
        loop.remove_reader(options.handover_fd)
        if os.read(options.handover_fd, 1) == b"1":
            await server.listen(options.public_fd)
            server.serving = True

    tasks: list[asyncio.Task[None]] = []

    if options.heir_fd is not None:
        kept = os.dup(options.public_fd)
        heir = socket.socket(fileno=options.heir_fd)
        loop.add_reader(heir, give_sockets, heir, kept)

    if options.tier == "queue":
        server.serving = True
    else:
        loop.add_reader(options.handover_fd, lambda: tasks or tasks.append(asyncio.create_task(hand_over())))

    await drain.wait()

    for accepting in server.servers:
        accepting.close()

    # An accepted connection is counted a few iterations of the event loop later.
    for _ in range(8):
        await asyncio.sleep(0)

    await server.idle.wait()


while not Path(os.environ.get("GATE", "/")).exists():
    time.sleep(0.02)
with suppress(KeyboardInterrupt):
    uvloop.run(main())
