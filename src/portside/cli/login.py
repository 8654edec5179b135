"""Sessions of people: `portside login` and `logout` for this machine's commands, `portside console` for its browser.

Commands use the login if no key is named.

With a browser on this machine, the browser brings a code to a port that listens for this one sign-in (RFC 8252).
Without one, the user types a code in a browser anywhere (RFC 8628). The token is never shown.
"""

import base64
import hashlib
import hmac
import os
import queue
import re
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from portside.cli.client import (
    Platform,
    PlatformUnavailable,
    ask_secret,
    connection_options,
    get_default_url,
)
from portside.cli.logins import Login, normalize_url, open_user_logins
from portside.cli.output import say, show_text
from portside.kernel.errors import UserMistake
from portside.kernel.local_addresses import is_loopback, is_loopback_url

CLIENT_ID = "portside-cli"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
# People look for their password, or for a second factor.
SIGN_IN_WITHIN_S = 600.0
_MAX_INTERVAL_S = 60.0
_url_argument = click.argument("url", default=get_default_url)


@click.command()
@_url_argument
@click.option("--device", is_flag=True, help="Show a code to enter in a browser on any machine.")
@click.option("--email", help="Log in with a password, for 12 hours; prompts for it, or reads it from standard input.")
@click.option("--workspace", help="Workspace that later commands use. [default: yours, if you have only one]")
def login(url: str, email: str | None, workspace: str | None, *, device: bool) -> None:
    """Log in to the platform at URL, by default PORTSIDE_URL or this machine's.

    Opens a browser. Without one here (over SSH, or with --device) it shows a code to enter in a browser elsewhere.
    The login is stored in your configuration folder, where only you can read it. Commands use it unless a key is named.
    """
    address = _parse_address(url)
    before = open_user_logins().find(address)
    with closing(Platform(address, None)) as anonymous:
        if email is not None:
            body = {"email": email, "password": ask_secret("Password")}
            grant = anonymous.call_with_password("POST", "/login", body)
        elif device or not has_browser(os.environ, sys.platform):
            grant = _sign_in_with_code(anonymous)
        else:
            grant = _sign_in_with_browser(anonymous)

    new = Login(grant["access_token"], datetime.fromisoformat(grant["expires_at"]))
    open_user_logins().keep(address, new)

    if before is not None:
        _end_session(address, before)

    with closing(Platform(address, None, new)) as platform:
        default_workspace = _find_default_workspace(platform, workspace)
        who = platform.call("GET", "/auth")

    if default_workspace is not None:
        open_user_logins().keep(address, Login(new.token, new.expires_at, default_workspace["id"]))

    name = who["user_email"] or who["short_key"]
    place = f", in the workspace {default_workspace['display_name']}" if default_workspace else ""
    show_text(f"logged in as {name}{place}")

    if address != normalize_url(get_default_url()):
        say(f"for this platform, name it in each command with --url {address}, or set PORTSIDE_URL={address}")


@click.command()
@_url_argument
def logout(url: str) -> None:
    """Log out of the platform at URL, by default PORTSIDE_URL or this machine's.

    Ends the session there, and removes it here.
    """
    address = _parse_address(url)
    logins = open_user_logins()
    session = logins.find(address)
    if session is None:
        raise UserMistake(f"you are not logged in at {address}")

    logins.keep(address, None)
    try:
        _end_session(address, session)
    except PlatformUnavailable as exc:
        until = session.expires_at.isoformat(timespec="minutes")
        raise UserMistake(
            f"the login is removed here, but {address} does not respond, where it is valid until {until}; "
            "end it there with 'portside sessions end'"
        ) from exc

    show_text("logged out")


@click.command()
@click.option("--print", "is_printed", is_flag=True, help="Print the address, and open no browser.")
@connection_options
def console(platform: Platform, *, is_printed: bool) -> None:
    """Open the console.

    On the platform's own machine, the address also signs you in with your key or login. It works once, within a minute.
    """
    address = f"{platform.url}/console/"
    if is_loopback_url(platform.url):
        address = platform.url + str(platform.call("POST", "/users/me/sign-in-links")["path"])

    if is_printed or not has_browser(os.environ, sys.platform) or not webbrowser.open(address):
        show_text(address)


def _end_session(address: str, login: Login) -> None:
    """End a session. Raises PlatformUnavailable; a session that has ended already is no mistake."""
    with closing(Platform(address, None, login)) as platform:
        try:
            platform.call("POST", "/logout")
        except PlatformUnavailable:
            raise
        except UserMistake:
            return


def _find_default_workspace(platform: Platform, name: str | None) -> dict[str, str] | None:
    if name is not None:
        return platform.find_workspace(name)

    workspaces = platform.call("GET", "/workspaces")
    return workspaces[0] if len(workspaces) == 1 else None


def _parse_address(url: str) -> str:
    """Return the address of a platform; a name alone means https. Raises UserMistake."""
    address = normalize_url(url if "://" in url else f"https://{url}")
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise UserMistake(f"{url} is not the address of a platform, such as https://portside.example.com")

    if parts.scheme == "http" and not is_loopback(parts.hostname):
        say(f"the connection to {address} is not encrypted: others in the network can read the login")

    return address


def has_browser(environment: Mapping[str, str], system: str) -> bool:
    """Whether a browser can be opened on the machine in front of which the user sits."""
    if environment.get("BROWSER"):
        return True
    if any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")):
        return False

    return not system.startswith("linux") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


# With a browser on this machine


def _sign_in_with_browser(platform: Platform) -> Any:
    verifier = secrets.token_urlsafe(48)
    state = secrets.token_urlsafe(32)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _receiver(state) as (redirect_uri, responses):
        query = {
            "response_type": "code",
            "client_id": CLIENT_ID,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "host_name": get_host_name(),
        }

        page = f"{platform.url}/oauth/authorize?{urlencode(query)}"
        say(f"sign in with the browser; if none opens, visit {page}")

        # Some browsers run in the terminal, and return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
        try:
            response = responses.get(timeout=SIGN_IN_WITHIN_S)
        except queue.Empty:
            raise UserMistake("nobody signed in within ten minutes; try again, or use --device") from None

    if "code" not in response:
        raise UserMistake("the sign-in was refused in the browser; run 'portside login' again to try once more")

    form = {
        "grant_type": "authorization_code",
        "client_id": CLIENT_ID,
        "code": response["code"],
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
    }

    status, grant = platform.post_form("/oauth/token", form)
    if status != 200:
        raise UserMistake(f"the platform refused the sign-in: {grant['detail']}")

    return grant


class _Receiver(ThreadingHTTPServer):
    """Listens on a port of this machine for the browser that comes back."""

    daemon_threads = True

    def __init__(self, state: str) -> None:
        super().__init__(("127.0.0.1", 0), _ReturnPage)
        self.state = state
        self.responses: queue.Queue[dict[str, str]] = queue.Queue()
        self.host = f"127.0.0.1:{self.server_port}"


class _ReturnPage(BaseHTTPRequestHandler):
    """Takes the authorization response for the state of this sign-in.

    Any page may send a request here, so others change nothing.
    """

    server: _Receiver
    timeout = 30

    def do_GET(self) -> None:
        """Respond to the browser."""
        parts = urlsplit(self.path)
        response = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
        is_ours = (
            self.headers.get("Host") == self.server.host
            and parts.path == "/callback"
            and hmac.compare_digest(response.get("state", "").encode(), self.server.state.encode())
            and bool({"code", "error"} & response.keys())
        )

        try:
            self._show(is_ours=is_ours)
        finally:
            # After the page: the command ends with it, and the browser would show an error instead.
            if is_ours:
                self.server.responses.put(response)

    def _show(self, *, is_ours: bool) -> None:
        text = (
            "You can close this page and go back to the terminal."
            if is_ours
            else "This is not the response that the terminal waits for."
        )

        body = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Portside</title><p>{text}</p></html>'
        self.send_response(200 if is_ours else 400)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "default-src 'none'",
            "Referrer-Policy": "no-referrer",
        }

        for name, value in headers.items():
            self.send_header(name, value)

        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing: the address of the request has the code."""


@contextmanager
def _receiver(state: str) -> Iterator[tuple[str, "queue.Queue[dict[str, str]]"]]:
    """Listen during the block; yields the address for the browser, and where its response arrives."""
    with _Receiver(state) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield f"http://{server.host}/callback", server.responses
        finally:
            server.shutdown()
            thread.join()


# Without a browser


def _sign_in_with_code(platform: Platform) -> Any:
    status, device = platform.post_form("/oauth/device", {"client_id": CLIENT_ID, "host_name": get_host_name()})
    if status != 200:
        raise UserMistake(f"the platform refused the sign-in: {device['detail']}")

    # The address as the user wrote it; a proxy may hide it from the platform.
    page = f"{platform.url}/device"
    show_text(f"open {page} in any browser, and enter the code {device['user_code']}", err=True)
    show_text(f"or open {page}?{urlencode({'user_code': device['user_code']})}", err=True)

    form = {"grant_type": _DEVICE_GRANT, "client_id": CLIENT_ID, "device_code": device["device_code"]}
    interval = float(device["interval"])
    until = time.monotonic() + device["expires_in"]
    while time.monotonic() < until:
        time.sleep(interval)
        try:
            status, grant = platform.post_form("/oauth/token", form)
        except PlatformUnavailable:
            # RFC 8628, 3.5: ask less often while the server is away.
            interval = min(2 * interval, _MAX_INTERVAL_S)
            continue

        if status == 200:
            return grant

        error = grant.get("error")
        if error == "slow_down":
            interval += 5
        elif error == "access_denied":
            raise UserMistake("the sign-in was refused in the browser; run 'portside login' again to try once more")
        elif error not in {"authorization_pending", "expired_token"}:
            raise UserMistake(f"the platform refused the sign-in: {grant['detail']}")

    raise UserMistake("the code has expired; run the command again")


def get_host_name() -> str:
    """Return this machine's name, in characters that the platform accepts."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:100]
