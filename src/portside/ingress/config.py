"""The configuration of Caddy, as JSON. These are pure functions; `caddy.py` runs the program.

There are up to three servers. `local` is the platform's own port, with plain HTTP. With a domain, `public` serves HTTPS
and `redirect` sends plain HTTP there. They route to agents, below /agents/ or by host name, and to the platform.

Caddy closes idle and new connections when it gets another configuration, and a request that a client sends at that
moment is lost. So there is one configuration for as long as the platform runs, and deployments are not part of it.
Caddy finds them in the folder `UPSTREAMS`: the folder NAME of a deployment has one file, whose name is host and port.
For a custom address, which its owner gave it, there are the folders `=HOST=SEGMENT=SEGMENT` with the same file, and
`==HOST`.

Paths are matched as the client sent them, before any decoding, and a path that servers could read in two ways is
refused. The responses of agents below /agents/ share the origin of the platform. So they cannot set cookies, and get a
policy that takes this origin away from their pages.
"""

import re
from typing import Any

import msgspec

from portside.control.addresses import PREFIX
from portside.identity.authentication import COOKIE_PREFIX
from portside.ingress.options import FrontOptions
from portside.kernel.local_addresses import to_local_url

Json = dict[str, Any]

# Relative to Caddy's working directory, because the path of a unix socket has at most 107 bytes.
ADMIN_SOCKET = "admin.sock"
PLATFORM_SOCKET = "platform.sock"
STORAGE = "storage"
UPSTREAMS = "upstreams"
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

_RETRY = {"Retry-After": ["1"]}
_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
# What may be the name of a deployment; the folder knows which are. A pattern that counts to 63 costs much more.
_NAME = "[-a-z0-9]+"
# The cookies of the platform. Agents neither see nor set one, with any prefix that browsers know and in any case: what
# reads a request may not distinguish cases.
_ANY_COOKIE_NAME = f"(?i:(?:__Host-|__Secure-)?{COOKIE_PREFIX})"
# A replaced replica keeps idle connections for 3 seconds. The front gives them up before, so that it never sends a
# request on a connection that the replica is about to close.
_AGENT_IDLE = "2s"
_PLATFORM_IDLE = "30s"
_MAX_IDLE = 512
_MAX_HEAD_BYTES = 128 * 1024
# Headers of a response that would change how a browser treats the platform's origin.
_ORIGIN_WIDE = [
    "Set-Cookie",
    "Clear-Site-Data",
    "Service-Worker-Allowed",
    "Strict-Transport-Security",
    "Alt-Svc",
    "NEL",
    "Report-To",
    "Reporting-Endpoints",
]
# The address that the last look into `UPSTREAMS` found, with the slash before it.
_UPSTREAM = "tcp{http.matchers.file.relative}"
_HOST_NAME = "{http.request.host}"
_URI = "{http.request.uri}"
# Of the last pattern that matched. No route to an agent has another one behind it.
_AGENT = "{http.regexp.1}"
_CUSTOM_PREFIX = "{http.regexp.own.1}"
# Caddy before 2.8 tries the patterns below with the text "<nil>" first, so none of them may match it.
# Dots and slashes in another form, and segments of dots. Agents' paths may hold no such form of a slash at all.
_DOT_SEGMENT = r"^[^?]*/(?:\.|%2e){1,2}(?:[/?;]|%2f|%5c|$)"
_HIDDEN = r"^/agents[^?]*(?:%2e|%2f|%5c|\\|%00)"
# Most paths have none of these characters. To read a path once for that costs much less than the patterns above.
_PLAIN = r"[^?%.\\]*"
# Servers of ours do not say what they are.
_QUIET: Json = {"handle": [{"handler": "headers", "response": {"delete": ["Server"]}}]}
# Other headers about the client that nobody has checked.
_CLAIMS = ["Forwarded", "X-Real-Ip", "True-Client-Ip"]
_LOCAL_HOSTS = r"localhost|host\.(?:docker|containers)\.internal|[0-9.]+|[0-9a-f.]*:[0-9a-f:.]*"

# The path of a custom address has up to this many segments of these characters.
MAX_SEGMENTS = 3
SEGMENT = "[A-Za-z0-9._~-]+"


def custom_folder(host: str, prefix: str) -> str:
    """Return the folder of a custom address; `prefix` is "" or begins with a slash."""
    return f"={host}{prefix.replace('/', '=')}"


def custom_host_folder(host: str) -> str:
    """Return the folder that exists if a deployment has a custom address with this host."""
    return f"=={host}"


def build_configuration(options: FrontOptions, *, is_old: bool = False) -> Json:
    """Return the whole configuration. `is_old` is for a Caddy before 2.9, which has other fields and no WebSockets."""
    writer = _Writer(options, is_old=is_old)
    servers = {"local": writer.local()}
    apps: Json = {"http": {"servers": servers, "http_port": options.http_port, "https_port": options.https_port}}

    if options.is_public:
        servers["public"] = writer.public()
        servers["redirect"] = writer.redirect()
        apps["tls"] = writer.tls()
        apps["pki"] = {"certificate_authorities": {"local": {"install_trust": False}}}

    return {
        "admin": {"listen": f"unix/{ADMIN_SOCKET}", "config": {"persist": False}},
        "logging": LOGGING,
        "storage": {"module": "file_system", "root": STORAGE},
        "apps": apps,
    }


class _Writer:
    """Writes the parts of one configuration."""

    def __init__(self, options: FrontOptions, *, is_old: bool) -> None:
        self._options = options
        self._is_old = is_old

    def local(self) -> Json:
        """The platform's own port: the platform, and every agent by its path."""
        options = self._options
        routes = [self._by_path(), self._platform()]
        hosts = _LOCAL_HOSTS

        usual_hosts = {"localhost", "127.0.0.1", options.host.lower()}

        if options.domain is None:
            # The front does not know what other machines call the platform.
            other_hosts = _at_other_hosts(hosts, self._at_custom_host())
        elif options.tls == "off":
            # Another proxy sends everything here: requests to the domain, to agents and to custom addresses.
            hosts += f"|{re.escape(options.host)}|{self._known_hosts()}"
            usual_hosts.add(options.domain.lower())
            if options.agents == "host":
                routes.insert(0, self._by_host())

            other_hosts = _at_other_hosts(hosts, self._at_custom_host(), _misdirected())
        else:
            hosts += f"|{re.escape(options.host)}"
            other_hosts = _at_other_hosts(hosts, _misdirected())

        host = f"[{options.host}]" if ":" in options.host else options.host
        usual_routes = [self._by_usual_path(sorted(usual_hosts))]
        return self._server(f"{host}:{options.port}", usual_routes, [other_hosts, *routes])

    def public(self) -> Json:
        """HTTPS for the domain, and for custom addresses."""
        is_by_host = self._options.agents == "host"
        agents = self._by_host() if is_by_host else self._by_path()
        usual_routes = [] if is_by_host else [self._by_usual_path([self._options.domain or ""])]
        ask = _route([_uri(rf"^[^?]*{ASK_PATH}")], _refusal(404, "Not found"))
        others = _at_other_hosts(self._known_hosts(), self._at_custom_host(), _misdirected())
        routes = [others, ask, agents, self._platform()]
        server = self._server(f":{self._options.https_port}", usual_routes, routes)

        return server | {"tls_connection_policies": [{"alpn": ["h2", "http/1.1"]}], "protocols": ["h1", "h2"]}

    def redirect(self) -> Json:
        """Plain HTTP, which is redirected to HTTPS. Caddy answers the challenges of ACME before."""
        address = f"https://{_HOST_NAME}{self._options.port_suffix}{_URI}"
        handler = {"handler": "static_response", "status_code": 308, "headers": {"Location": [address]}}
        redirected = _route(None, handler)
        others = _at_other_hosts(self._known_hosts(), _for_custom_hosts(redirected), _misdirected())
        routes = [others, redirected]

        return self._server(f":{self._options.http_port}", [], routes)

    def tls(self) -> Json:
        """Certificates: of the domain at once, of other names with their first client, if the platform agrees."""
        options = self._options
        if options.tls == "files":
            return {"certificates": {"load_files": [{"certificate": options.certificate, "key": options.key}]}}

        issuer: Json = {"module": "internal"} if options.tls == "internal" else self._acme()
        endpoint = to_local_url(options.host, options.port) + ASK_PATH

        permission: Json = {"permission": {"module": "http", "endpoint": endpoint}}
        on_demand = {"ask": endpoint} if self._is_old else permission

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
        return rf"{domain}|{_LABEL}\.{domain}" if self._options.agents == "host" else domain

    def _server(self, address: str, usual_routes: list[Json], routes: list[Json]) -> Json:
        """Return a server. It refuses paths with two readings behind the `usual_routes`, which match none of them."""
        refusal = _refusal(400, "The path has segments of dots or encoded slashes")
        ambiguous = _route([_uri(_DOT_SEGMENT), _uri(_HIDDEN)], refusal)
        ambiguous_paths: Json = {"match": [{"not": [_uri(rf"^/{_PLAIN}(?:\?|$)")]}], "handle": [_sub(ambiguous)]}

        # Caddy before 2.8 does not change the headers of the response that opens a WebSocket, so an agent could set a
        # cookie of the platform there.
        upgrades = _route([{"header": {"Upgrade": ["*"]}}], _refusal(501, "WebSockets need Caddy 2.9 or newer"))
        return {
            "listen": [address],
            "automatic_https": {"disable": True},
            "protocols": ["h1"],
            # A connection without a request holds a descriptor, and Caddy has no limit of connections.
            "read_header_timeout": "10s",
            "idle_timeout": "75s",
            "max_header_bytes": _MAX_HEAD_BYTES,
            "routes": [
                _QUIET,
                *([upgrades] if self._is_old else []),
                *usual_routes,
                ambiguous_paths,
                *routes,
            ],
            "errors": {"routes": [_not_sent(), _route(None, _failed())]},
        }

    def _platform(self) -> Json:
        request = {"delete": ["X-Forwarded-Prefix", *_CLAIMS]}
        return _route(None, self._proxy(f"unix/{PLATFORM_SOCKET}", _PLATFORM_IDLE, request=request))

    def _by_path(self) -> Json:
        """Agents below /agents/NAME, on the platform's origin."""
        return _route([_uri(rf"^{PREFIX}({_NAME})(?:[/?]|$)", is_exact=True)], self._below_platform())

    def _by_usual_path(self, hosts: list[str]) -> Json:
        """The same at hosts that are certainly the platform's, for paths that have one reading: most requests.

        They need no other pattern, and each pattern costs.
        """
        usual = _uri(rf"^{PREFIX}({_NAME})(?:/{_PLAIN})?(?:\?|$)", is_exact=True)
        return _route([{"host": hosts, **usual}], self._below_platform())

    def _below_platform(self) -> Json:
        prefix = PREFIX + _AGENT
        worker = {"header": {"Service-Worker": ["script"]}}
        response = {"delete": _ORIGIN_WIDE, "add": {"Content-Security-Policy": [POLICY]}}
        request = {"set": {"X-Forwarded-Prefix": [prefix]}, "delete": _CLAIMS, **_without_own_cookies()}

        return _sub(
            _route([worker], _refusal(403, "Agents may not register service workers on the platform's address")),
            *self._to_agent(
                {"handler": "rewrite", "strip_path_prefix": prefix},
                _on_responses(response),
                self._proxy(_UPSTREAM, _AGENT_IDLE, request=request, prefix=prefix),
            ),
        )

    def _by_host(self) -> Json:
        """Agents at NAME.DOMAIN, each on an origin of its own."""
        domain = re.escape(self._options.domain or "")
        pattern = {_HOST_NAME: {"name": "", "pattern": rf"^((?i:{_NAME}))\.(?i:{domain})$"}}
        return _route([{"vars_regexp": pattern}], _sub(*self._to_agent(*self._own_origin(""))))

    def _at_custom_host(self) -> Json:
        """The deployments whose owner gave them a host name; of two paths of one host, the longer comes first."""
        routes: list[Json] = []
        for count in range(MAX_SEGMENTS, 0, -1):
            path = {"name": "own", "pattern": rf"^({f'/({SEGMENT})' * count})(?:[/?]|$)"}
            # Group 1 of the pattern is the whole prefix; the segments follow.
            segments = [f"/{{http.regexp.own.{number}}}" for number in range(2, count + 2)]
            folder = custom_folder(_HOST_NAME, "".join(segments))

            strip_prefix = {"handler": "rewrite", "strip_path_prefix": _CUSTOM_PREFIX}
            upstream = self._to_upstream(folder, strip_prefix, *self._own_origin(_CUSTOM_PREFIX))
            routes.append({"match": [{"vars_regexp": {_URI: path}}], "handle": [_sub(*upstream)]})

        routes += self._to_upstream(custom_folder(_HOST_NAME, ""), *self._own_origin(""))
        not_found = _route(None, _refusal(404, "No deployment has this address"))
        return _for_custom_hosts(*routes, not_found)

    def _to_agent(self, *handlers: Json) -> list[Json]:
        """Return routes that find the address of a deployment for the handlers, and answer 404 if it has none."""
        not_found = _route(None, _refusal(404, "No deployment that runs has this name"))
        return [*self._to_upstream(_AGENT, *handlers), not_found]

    def _to_upstream(self, folder: str, *handlers: Json) -> list[Json]:
        """Return routes for requests whose address is in a folder."""
        address: Json = {"root": f"{UPSTREAMS}/{folder}", "try_files": ["*"]}
        if not self._is_old:
            # Caddy has just read the name in the folder; otherwise it would open the file to see that it exists.
            address["try_policy"] = "first_exist_fallback"

        return [
            _route([{"file": address}], *handlers),
            # It is there now, or Caddy had no descriptor a moment ago.
            _route([_in_upstreams(f"{folder}/")], _full()),
            _unless_looked_up(),
        ]

    def _own_origin(self, prefix: str) -> list[Json]:
        """An agent with an origin of its own. Its cookies stay on its host; none is named like the platform's."""
        cookies = [
            {"search_regexp": rf"(?i)^\s*{_ANY_COOKIE_NAME}.*$", "replace": ""},
            {"search_regexp": r"(?i);\s*domain\s*=[^;]*", "replace": ""},
        ]

        request: Json
        if prefix:
            request = {"delete": _CLAIMS, "set": {"X-Forwarded-Prefix": [prefix]}}
        else:
            request = {"delete": [*_CLAIMS, "X-Forwarded-Prefix"]}

        request |= _without_own_cookies()
        responses = _on_responses({"replace": {"Set-Cookie": cookies}})
        return [responses, self._proxy(_UPSTREAM, _AGENT_IDLE, request=request, prefix=prefix)]

    def _proxy(self, dial: str, idle: str, *, request: Json, prefix: str = "") -> Json:
        """Pass requests on to an address; `request` says how their headers change."""
        keep_alive = {"idle_timeout": idle, "max_idle_conns_per_host": _MAX_IDLE}
        headers = {"request": request}
        if prefix:
            headers["response"] = _on_redirects(prefix)

        # No `flush_interval`: Caddy flushes event streams and responses of unknown length at once. With -1 it would not
        # end the request of a client that has left, and the agent would not notice.
        proxy = {
            "handler": "reverse_proxy",
            "upstreams": [{"dial": dial}],
            "transport": {
                "protocol": "http",
                "versions": ["1.1"],
                "compression": False,
                "dial_timeout": "5s",
                "keep_alive": keep_alive,
            },
            "headers": headers,
        }

        if self._options.trusted_proxies:
            proxy["trusted_proxies"] = list(self._options.trusted_proxies)

        return proxy


def _route(match: list[Json] | None, *handlers: Json) -> Json:
    """Return a route that ends here, for requests with any of the matches; None for all requests."""
    route: Json = {"match": match} if match else {}
    return route | {"handle": list(handlers), "terminal": True}


def _sub(*routes: Json) -> Json:
    """Return a handler that tries routes."""
    return {"handler": "subroute", "routes": list(routes)}


def _on_responses(operations: Json) -> Json:
    """Change the headers of every response, also of those that open a WebSocket, which the proxy's own would not."""
    # Browsers apply it to cookies of the whole domain: an agent's host would sign people out of the platform.
    removal = {"delete": ["Clear-Site-Data"]}
    return {"handler": "headers", "response": {"deferred": True, **removal, **operations}}


def _on_redirects(prefix: str) -> Json:
    """Put the prefix, which agents do not know, into redirects to paths of the same host that lack it.

    Other responses of agents have a Location that their clients read relative to the agent's address. Patterns cannot
    hold values of the request, so a first step puts marks before the address: one space, which no header begins with,
    or two if it begins like one of this host. Prefixes that are there twice are taken off again.
    """
    here = "{http.request.hostport}"
    steps = [
        (r"^", " "),
        *[(f" {scheme}://{here}", f"  {scheme}:") for scheme in ("http", "https")],
        (r"^  (https?):([?#]|$)", "  $1:/$2"),
        (r"^  (https?):/", f" $1://{here}{prefix}/"),
        (r"^ /([^/\\]|$)", f" {prefix}/$1"),
        *[(f" {origin}{prefix}{prefix}", f" {origin}{prefix}") for origin in ("", f"http://{here}", f"https://{here}")],
        # An address that only begins like one of this host, such as that of a longer name.
        (r"^  (https?):", f" $1://{here}"),
        (r"^ ", ""),
    ]

    replace: list[Json] = []
    for search, replacement in steps:
        kind = "search_regexp" if search.startswith("^") else "search"
        replace.append({kind: search, "replace": replacement})

    return {"require": {"status_code": [201, 3]}, "replace": {"Location": replace}}


def _uri(pattern: str, *, is_exact: bool = False) -> Json:
    """Match the path and the query as the client sent them, in any case unless `is_exact`."""
    return {"vars_regexp": {_URI: {"name": "", "pattern": pattern if is_exact else f"(?i){pattern}"}}}


def _unless_looked_up() -> Json:
    """Return a route for requests whose address Caddy cannot look up: without a free descriptor it finds no file."""
    return _route([{"not": [{"file": {"root": ".", "try_files": [f"{UPSTREAMS}/"]}}]}], _full())


def _in_upstreams(path: str) -> Json:
    return {"file": {"root": UPSTREAMS, "try_files": [path]}}


def _for_custom_hosts(*routes: Json) -> Json:
    """Return a route for the hosts of custom addresses."""
    has_custom_address = _in_upstreams(f"{custom_host_folder(_HOST_NAME)}/")
    # Nothing else becomes part of a path of a file.
    pattern = {_HOST_NAME: {"name": "", "pattern": "^[a-z0-9.-]+$"}}
    return {
        "match": [{"vars_regexp": pattern}],
        "handle": [_sub(_route([has_custom_address], _sub(*routes)), _unless_looked_up())],
    }


def _at_other_hosts(hosts: str, *routes: Json) -> Json:
    """Return a route for hosts that do not match the pattern `hosts`; what none of its routes takes continues."""
    pattern = {_HOST_NAME: {"name": "", "pattern": f"^(?i:{hosts})$"}}
    return {"match": [{"not": [{"vars_regexp": pattern}]}], "handle": [_sub(*routes)]}


def _without_own_cookies() -> Json:
    pattern = rf"(?:^|;)\s*{_ANY_COOKIE_NAME}[^;=]*=[^;]*"
    return {"replace": {"Cookie": [{"search_regexp": pattern, "replace": ""}]}}


def _refusal(status: int, detail: str) -> Json:
    return _error(status, detail)


def _not_sent() -> Json:
    """Return a route for requests that reached no server, as before agents run again after a restart.

    They can be sent again, which others cannot: an agent whose connection broke may have begun a run.
    """
    failure = {"{http.error.message}": {"name": "", "pattern": "^dial "}}
    return _route(
        [{"vars_regexp": failure}], _error(503, "No server runs at this address now; try again later", _RETRY)
    )


def _failed() -> Json:
    return _error("{http.error.status_code}", "The server behind this address does not answer", _RETRY)


def _error(status: int | str, detail: str, headers: dict[str, list[str]] | None = None) -> Json:
    return {
        "handler": "static_response",
        "status_code": str(status),
        "headers": {"Content-Type": ["application/json"], **(headers or {})},
        "body": msgspec.json.encode({"detail": detail}).decode(),
    }


def _misdirected() -> Json:
    return _route(None, _refusal(421, "This server does not serve the host of the request"))


def _full() -> Json:
    return _error(503, "The front has too many connections", _RETRY)
