"""Receives alerts of a platform: checks their signatures and prints them. Needs nothing but Python.

python receiver.py whsec_… [port]
"""

import base64
import hashlib
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

TOLERANCE_S = 300
# Alerts are far smaller. Without a limit, anybody could fill the memory before the signature is checked.
MAX_BODY_BYTES = 1_000_000


def is_signed(secret, headers, body):
    """Whether a message is signed with the secret, and recent."""
    moment = headers.get("webhook-timestamp", "")
    if not moment.isascii() or not moment.isdigit() or abs(time.time() - int(moment)) > TOLERANCE_S:
        return False

    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id')}.{moment}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))

    return any(hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").encode().split())


def say(text):
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to a message that is signed, 401 to any other, and 413 to a large one or one of unknown length."""

    def do_POST(self):
        """Print the text of a message."""
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.send_error(413)
            return

        body = self.rfile.read(int(length))
        is_ours = is_signed(sys.argv[1], self.headers, body)
        self.send_response(204 if is_ours else 401)
        self.end_headers()

        if is_ours:
            say(json.loads(body)["text"])

    def log_message(self, *_):
        """Print only messages."""


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 9009
    server = HTTPServer(("127.0.0.1", port), Receiver)
    say(f"waiting at http://127.0.0.1:{server.server_port}/")
    server.serve_forever()
