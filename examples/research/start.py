"""Starts the agent in the background, and waits until the server calls.

Usage: python start.py TOPIC [URL]

It listens on this machine, as your own program would at an address that the agent's server can reach. LG_WEBHOOK_SECRET
is the secret with which the server signs its calls.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from langgraph_sdk import get_sync_client

SECRET = os.environ["LG_WEBHOOK_SECRET"].encode()
TOLERANCE_S = 300
MAX_BYTES = 1_000_000


def is_signed(headers, body):
    """Whether the agent's server sent this call, and not long ago."""
    moment = headers.get("webhook-timestamp", "")
    if not moment.isascii() or not moment.isdigit() or abs(time.time() - int(moment)) > TOLERANCE_S:
        return False

    text = f"{headers.get('webhook-id')}.{moment}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(SECRET, text, hashlib.sha256))
    return any(hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").encode().split())


class Receiver(BaseHTTPRequestHandler):
    """Keeps the first call that is signed."""

    run = None

    def do_POST(self):
        """Answer at once: the server waits ten seconds at most, and calls again after a failure."""
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(min(length, MAX_BYTES))
        is_ours = is_signed(self.headers, body)
        if is_ours:
            Receiver.run = json.loads(body)

        self.send_response(204 if is_ours else 401)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing about requests."""


topic = sys.argv[1]
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:2024"
receiver = HTTPServer(("127.0.0.1", 0), Receiver)

client = get_sync_client(url=url)
thread = client.threads.create()
client.runs.create(
    thread["thread_id"],
    "agent",
    input={"topic": topic},
    webhook=f"http://127.0.0.1:{receiver.server_port}/report",
)
print("started")

while Receiver.run is None:
    receiver.handle_request()

receiver.server_close()
print(f"{Receiver.run['status']}: {Receiver.run['values']['report']}")
