"""The configuration of Caddy, as JSON. These are pure functions; `caddy.py` runs the program.

There are up to three servers. `local` is the platform's own port, with plain HTTP. With a domain, `public` serves HTTPS
and `redirect` sends plain HTTP there. They route to agents, below /agents/ or by host name, and to the platform.

Caddy closes idle connections when it gets another configuration, and a request that a client sends at that moment is
lost. So the addresses of agents are not part of it. Caddy finds them in the folder `UPSTREAMS`, where the only file in
the folder of a deployment is named after its address.

Paths are matched as the client sent them, before any decoding, and a path that servers could read in two ways is
refused. The responses of agents below /agents/ share the origin of the platform. So they cannot set cookies, and get a
policy that takes this origin away from their pages.
"""

import re
from typing import Any

import msgspec

from portside.control.addresses import PREFIX
from portside.identity.authentication import SESSION_COOKIE
from portside.ingress.options import FrontOptions

Json = dict[str, Any]

# Relative to Caddy's working directory, because the path of a unix socket has at most 107 bytes.
ADMIN_SOCKET, PLATFORM_SOCKET, STORAGE, UPSTREAMS = "admin.sock", "platform.sock", "storage", "upstreams"
POLICY = "sandbox allow-scripts allow-forms"
ASK_PATH = "/internal/front/names"

# Without the headers and queries of requests, which hold keys. The proxy would log each client that leaves a stream.
LOGGING: Json = {
    "logs": {
        "default": {
            "level": "WARN",
            "exclude": ["http.handlers.reverse_proxy"],
            "encoder": {
                "format": "filter",
                "wrap": {"format": "json"},
                "fields": {
                    "request>headers": {"filter": "delete"},
                    "request>uri": {"filter": "regexp", "regexp": r"\?.*", "value": ""},
                },
            },
        }
    }
}

_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
# The cookie of browsers' sessions. Agents neither see nor set it, with any prefix that browsers know.
_ANY_COOKIE_NAME = f"(?:__Host-|__Secure-)?{SESSION_COOKIE}"
# A replaced replica keeps idle connections for 3 seconds. The front gives them up before, so that it never sends a
# request on a connection that the replica is about to close.
_AGENT_IDLE, _PLATFORM_IDLE = "2s", "30s"
_MAX_IDLE = 512
# WebSockets of routes that a change of the configuration does not concern stay open for a day.
_STREAM_CLOSE_DELAY = "24h"
_MAX_HEAD_BYTES = 128 * 1024
# Headers of a response that would change how a browser treats the platform's origin.
_ORIGIN_WIDE = [
    "Set-Cookie", "Clear-Site-Data", "Service-Worker-Allowed", "Strict-Transport-Security", "Alt-Svc", "NEL",
    "Report-To", "Reporting-Endpoints",
]  # fmt: skip
_UPSTREAM, _HOST_NAME, _URI = "{http.regexp.upstream.1}", "{http.request.host}", "{http.request.uri}"
_AGENT = "{http.regexp.agent.1}"
# Dots and slashes in another form, and segments of dots. Agents' paths may hold no such form of a slash at all.
_DOT_SEGMENT = r"^[^?]*/(?:\.|%2e){1,2}(?:[/?;]|%2f|%5c|$)"
_HIDDEN = r"^/agents[^?]*(?:%2e|%2f|%5c|\\|%00)"
# Servers of ours do not say what they are.
_QUIET: Json = {"handle": [{"handler": "headers", "response": {"delete": ["Server"]}}]}
# Other headers about the client that nobody has checked.
_CLAIMS = ["Forwarded", "X-Real-Ip", "True-Client-Ip"]
_LOCAL_HOSTS = r"localhost|host\.(?:docker|containers)\.internal|[0-9.]+|[0-9a-f.]*:[0-9a-f:.]*"


class OwnAddress(msgspec.Struct, frozen=True, order=True):
    """Host and path that the owner of a deployment gave it."""

    host: str
    prefix: str
    name: str


def configuration(options: FrontOptions, own: list[OwnAddress], *, is_old: bool = False) -> Json:
    """Return the whole configuration. `is_old` is for a Caddy before 2.8, which lacks some fields."""
    writer = _Writer(options, own, is_old=is_old)
    servers = {"local": writer.local()}
    apps: Json = {"http": {"servers": servers, "http_port": options.http_port, "https_port": options.https_port}}
    if options.is_public:
        servers |= {"public": writer.public(), "redirect": writer.redirect()}
        apps |= {"tls": writer.tls(), "pki": {"certificate_authorities": {"local": {"install_trust": False}}}}
    return {
        "admin": {"listen": f"unix/{ADMIN_SOCKET}", "config": {"persist": False}},
        "logging": LOGGING,
        "storage": {"module": "file_system", "root": STORAGE},
        "apps": apps,
    }


class _Writer:
    """Writes the parts of one configuration."""

    def __init__(self, options: FrontOptions, own: list[OwnAddress], *, is_old: bool) -> None:
        self._options, self._is_old = options, is_old
        # Of two paths of one host, the longer comes first.
        self._own = sorted(own, reverse=True)

    def local(self) -> Json:
        """The platform's own port: the platform, and every agent by its path."""
        options = self._options
        routes = [self._by_path(), *self._own_hosts(), self._platform()]
        if options.domain is not None:
            known = (
                _LOCAL_HOSTS
                + f"|{re.escape(options.host)}"
                + (f"|{self._known_hosts()}" if options.tls == "off" else "")
            )
            routes.insert(0, _misdirected(known))
            if options.tls == "off" and options.agents == "host":
                routes[1:1] = [self._by_host()]
        host = f"[{options.host}]" if ":" in options.host else options.host
        return self._server(f"{host}:{options.port}", routes)

    def public(self) -> Json:
        """HTTPS for the domain, and for the addresses that owners gave their deployments."""
        agents = self._by_host() if self._options.agents == "host" else self._by_path()
        ask = _route([_uri(rf"^[^?]*{ASK_PATH}")], _refusal(404, "Not found"))
        routes = [_misdirected(self._known_hosts()), ask, agents, *self._own_hosts(), self._platform()]
        server = self._server(f":{self._options.https_port}", routes)
        return server | {"tls_connection_policies": [{"alpn": ["h2", "http/1.1"]}], "protocols": ["h1", "h2"]}

    def redirect(self) -> Json:
        """Plain HTTP, which is redirected to HTTPS. Caddy answers the challenges of ACME before."""
        address = f"https://{_HOST_NAME}{self._options.port_suffix}{_URI}"
        handler = {"handler": "static_response", "status_code": 308, "headers": {"Location": [address]}}
        routes = [_misdirected(self._known_hosts()), _route(None, handler)]
        return self._server(f":{self._options.http_port}", routes)

    def tls(self) -> Json:
        """Certificates: of the domain at once, of other names with their first client, if the platform agrees."""
        options = self._options
        if options.tls == "files":
            return {"certificates": {"load_files": [{"certificate": options.certificate, "key": options.key}]}}
        issuer: Json = {"module": "internal"} if options.tls == "internal" else self._acme()
        ask = f"http://127.0.0.1:{options.port}{ASK_PATH}" if options.host in {"127.0.0.1", "0.0.0.0", "::"} else None  # noqa: S104
        endpoint = ask or f"http://{options.host}:{options.port}{ASK_PATH}"
        on_demand: Json = (
            {"ask": endpoint} if self._is_old else {"permission": {"module": "http", "endpoint": endpoint}}
        )
        policies = [{"subjects": [options.domain], "issuers": [issuer]}, {"on_demand": True, "issuers": [issuer]}]
        return {
            "certificates": {"automate": [options.domain]},
            "automation": {"policies": policies, "on_demand": on_demand},
        }

    def _acme(self) -> Json:
        options = self._options
        issuer: Json = {"module": "acme"}
        if options.acme_server:
            issuer["ca"] = options.acme_server
        if options.acme_email:
            issuer["email"] = options.acme_email
        if options.acme_root:
            issuer["trusted_roots_pem_files"] = [options.acme_root]
        return issuer

    def _known_hosts(self) -> str:
        domain = re.escape(self._options.domain or "")
        below = rf"{_LABEL}\.{domain}" if self._options.agents == "host" else None
        own = (re.escape(address.host) for address in self._own)
        return "|".join(filter(None, (domain, below, *own)))

    def _server(self, address: str, routes: list[Json]) -> Json:
        tricks = _route(
            [_uri(_DOT_SEGMENT), _uri(_HIDDEN)], _refusal(400, "The path has segments of dots or encoded slashes")
        )
        return {
            "listen": [address],
            "automatic_https": {"disable": True},
            "protocols": ["h1"],
            "read_header_timeout": "30s",
            "idle_timeout": "75s",
            "max_header_bytes": _MAX_HEAD_BYTES,
            "routes": [_QUIET, tricks, *routes],
            "errors": {"routes": [_route(None, _failed())]},
        }

    def _platform(self) -> Json:
        return _route(
            None,
            self._proxy(f"unix/{PLATFORM_SOCKET}", _PLATFORM_IDLE, {"delete": ["X-Forwarded-Prefix", *_CLAIMS]}),
        )

    def _by_path(self) -> Json:
        """Agents below /agents/NAME, on the platform's origin."""
        prefix = PREFIX + _AGENT
        worker = {"header": {"Service-Worker": ["script"]}}
        response = {"delete": _ORIGIN_WIDE, "add": {"Content-Security-Policy": [POLICY]}}
        request = {"set": {"X-Forwarded-Prefix": [prefix]}, "delete": _CLAIMS, **_without_session()}
        return _route(
            [_uri(rf"^{PREFIX}({_LABEL})(?:[/?]|$)", "agent")],
            _sub(
                _route([worker], _refusal(403, "Agents may not register service workers on the platform's address")),
                *_to_agent(
                    _AGENT,
                    {"handler": "rewrite", "strip_path_prefix": prefix},
                    _on_responses(response),
                    self._proxy(_UPSTREAM, _AGENT_IDLE, request),
                ),
            ),
        )

    def _by_host(self) -> Json:
        """Agents at NAME.DOMAIN, each on an origin of its own."""
        domain = re.escape(self._options.domain or "")
        pattern = {_HOST_NAME: {"name": "agent", "pattern": rf"^({_LABEL})\.{domain}$"}}
        return _route([{"vars_regexp": pattern}], _sub(*_to_agent(_AGENT, *self._own_origin(""))))

    def _own_hosts(self) -> list[Json]:
        """The deployments whose owner gave them a host name."""
        found = []
        for host, prefix, name in map(msgspec.structs.astuple, self._own):
            match = {"host": [host]} | ({"path": [prefix, f"{prefix}/*"]} if prefix else {})
            handlers: list[Json] = [{"handler": "rewrite", "strip_path_prefix": prefix}] if prefix else []
            found.append(_route([match], _sub(*_to_agent(name, *handlers, *self._own_origin(prefix)))))
        if hosts := sorted({address.host for address in self._own}):
            found.append(_route([{"host": hosts}], _refusal(404, "No deployment has this address")))
        return found

    def _own_origin(self, prefix: str) -> list[Json]:
        """An agent with an origin of its own. Its cookies stay on its host, and none is named like the session's."""
        cookies = [
            {"search_regexp": rf"(?i)^\s*{_ANY_COOKIE_NAME}.*$", "replace": ""},
            {"search_regexp": r"(?i);\s*domain\s*=[^;]*", "replace": ""},
        ]
        claims = [*_CLAIMS, *([] if prefix else ["X-Forwarded-Prefix"])]
        request: Json = {"delete": claims} | ({"set": {"X-Forwarded-Prefix": [prefix]}} if prefix else {})
        responses = _on_responses({"replace": {"Set-Cookie": cookies}})
        return [responses, self._proxy(_UPSTREAM, _AGENT_IDLE, request | _without_session())]

    def _proxy(self, dial: str, idle: str, request: Json) -> Json:
        keep_alive = {"idle_timeout": idle, "max_idle_conns_per_host": _MAX_IDLE}
        # No `flush_interval`: Caddy flushes event streams and responses of unknown length at once. With -1 it would not
        # end the request of a client that has left, and the agent would not notice.
        proxy = {
            "handler": "reverse_proxy",
            "upstreams": [{"dial": dial}],
            "transport": {
                "protocol": "http", "versions": ["1.1"], "compression": False, "dial_timeout": "5s",
                "keep_alive": keep_alive,
            },
            "headers": {"request": request},
        }  # fmt: skip
        if self._options.trusted_proxies:
            proxy["trusted_proxies"] = list(self._options.trusted_proxies)
        if not self._is_old:
            proxy["stream_close_delay"] = _STREAM_CLOSE_DELAY
        return proxy


def _route(match: list[Json] | None, *handlers: Json) -> Json:
    return ({"match": match} if match else {}) | {"handle": list(handlers), "terminal": True}


def _sub(*routes: Json) -> Json:
    return {"handler": "subroute", "routes": list(routes)}


def _on_responses(operations: Json) -> Json:
    """Change the headers of every response, also of those that open a WebSocket, which the proxy's own would not."""
    # Browsers apply it to cookies of the whole domain: an agent's host would sign people out of the platform.
    kept_out = {"delete": ["Clear-Site-Data"]}
    return {"handler": "headers", "response": {"deferred": True, **kept_out, **operations}}


def _uri(pattern: str, name: str = "") -> Json:
    case = "" if name else "(?i)"
    return {"vars_regexp": {_URI: {"name": name, "pattern": case + pattern}}}


def _to_agent(name: str, *handlers: Json) -> list[Json]:
    """Return routes that find the address of a deployment for the handlers, and answer 404 if it has none."""
    found = {"file": {"root": UPSTREAMS, "try_files": [f"{name}/*"]}}
    address = {"{http.matchers.file.relative}": {"name": "upstream", "pattern": "([^/]+)$"}}
    return [
        _route([found], _sub(_route([{"vars_regexp": address}], *handlers))),
        _route(None, _refusal(404, "No deployment that runs has this name")),
    ]


def _misdirected(known: str) -> Json:
    pattern = {_HOST_NAME: {"name": "", "pattern": f"^(?i:{known})$"}}
    return _route(
        [{"not": [{"vars_regexp": pattern}]}], _refusal(421, "This server does not serve the host of the request")
    )


def _without_session() -> Json:
    pattern = rf"(?:^|;)\s*{_ANY_COOKIE_NAME}[^;=]*=[^;]*"
    return {"replace": {"Cookie": [{"search_regexp": pattern, "replace": ""}]}}


def _refusal(status: int, detail: str) -> Json:
    return _error(status, detail)


def _failed() -> Json:
    return _error("{http.error.status_code}", "The server behind this address does not answer", {"Retry-After": ["1"]})


def _error(status: int | str, detail: str, headers: dict[str, list[str]] | None = None) -> Json:
    return {
        "handler": "static_response",
        "status_code": str(status),
        "headers": {"Content-Type": ["application/json"], **(headers or {})},
        "body": msgspec.json.encode({"detail": detail}).decode(),
    }
