"""`portside ingress`: configurations for proxies in front of the platform: nginx, Traefik, another Caddy.

Such a proxy ends TLS and sends everything to the platform's port, where the front does the rest: it knows no
deployment. It must not buffer, must pass WebSockets and large bodies, and must wait for long responses.
"""

from collections.abc import Callable

import click
import msgspec

from portside.cli.output import CommandGroup, show_text

_NGINX = """\
# nginx before Portside: `portside up --domain {domain}{agents} --tls off` with TRUSTED_PROXIES={proxy}
map $http_upgrade $portside_connection {{
    default upgrade;
    ''      '';
}}

upstream portside {{
    server {address};
    keepalive 64;
    # The front closes idle connections after 75 seconds.
    keepalive_timeout 60s;
}}

server {{
    listen 80;
    server_name {names};
    return 308 https://$host$request_uri;
}}

server {{
    listen 443 ssl http2;
    server_name {names};
    ssl_certificate     /etc/ssl/{domain}.pem;
    ssl_certificate_key /etc/ssl/{domain}.key;

    # The platform has its own limits.
    client_max_body_size 0;

    location / {{
        # Without a path here nginx passes the path on as it came, encoded.
        proxy_pass http://portside;
        proxy_http_version 1.1;
        proxy_set_header Host $host;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Forwarded-Proto https;
        proxy_set_header X-Forwarded-Host $host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $portside_connection;
        # Streams arrive event by event, and uploads are not stored first.
        proxy_buffering off;
        proxy_request_buffering off;
        proxy_read_timeout 1d;
        proxy_send_timeout 1d;
    }}
}}
"""
_CADDY = """\
# Caddy before Portside: `portside up --domain {domain}{agents} --tls off` with TRUSTED_PROXIES={proxy}
{names} {{
    reverse_proxy {address} {{
        # Caddy flushes event streams at once. A flush_interval of -1 would hide clients that leave from agents.
        transport http {{
            versions 1.1
            keepalive 60s
        }}
    }}
}}
"""
_TRAEFIK = """\
# Traefik 3 before Portside: `portside up --domain {domain}{agents} --tls off` with TRUSTED_PROXIES={proxy}
# This is a file for `providers.file`. The static configuration of Traefik needs:
#   entryPoints:
#     web:
#       address: ":80"
#     websecure:
#       address: ":443"
#       transport:
#         respondingTimeouts:
#           readTimeout: 0
#   certificatesResolvers:
#     default:
#       acme:
#         storage: acme.json
#         {challenge}
# With the usual readTimeout, an upload that takes longer than 60 seconds fails.
http:
  routers:
    portside:
      rule: "{rule}"
      entryPoints: [websecure]
      service: portside
      tls:
        certResolver: default
        domains:
          - main: "{domain}"{wildcard}
    portside-plain:
      rule: "{rule}"
      entryPoints: [web]
      service: portside
      middlewares: [portside-https]
  middlewares:
    portside-https:
      redirectScheme:
        scheme: https
        permanent: true
  services:
    portside:
      loadBalancer:
        passHostHeader: true
        responseForwarding:
          flushInterval: 1ms
        servers:
          - url: "http://{address}"
        serversTransport: portside
  serversTransports:
    portside:
      forwardingTimeouts:
        # The front closes idle connections after 75 seconds.
        idleConnTimeout: 60s
"""
_TRAEFIK_CHALLENGE = "tlsChallenge: {}"
_TRAEFIK_WILDCARD_CHALLENGE = (
    "dnsChallenge: {provider: NAME}  # only DNS proves *.DOMAIN; or give Traefik a certificate"
)


class OuterProxy(msgspec.Struct, frozen=True):
    """The platform behind another proxy: its domain and port, and where the proxy runs."""

    domain: str
    address: str
    is_by_host: bool
    proxy: str = "127.0.0.1"

    @property
    def names(self) -> list[str]:
        """The host names that the proxy serves."""
        return [self.domain, *([f"*.{self.domain}"] if self.is_by_host else [])]


def nginx(outer: OuterProxy) -> str:
    """Return a file for `/etc/nginx/conf.d`."""
    return _fill(_NGINX, outer, names=" ".join(outer.names))


def caddy(outer: OuterProxy) -> str:
    """Return a Caddyfile."""
    return _fill(_CADDY, outer, names=", ".join(outer.names))


def traefik(outer: OuterProxy) -> str:
    """Return a dynamic configuration file, with the static configuration in comments."""
    rule = f"Host(`{outer.domain}`)"
    if not outer.is_by_host:
        return _fill(_TRAEFIK, outer, rule=rule, wildcard="", challenge=_TRAEFIK_CHALLENGE)

    label = outer.domain.replace(".", r"\\.")
    return _fill(
        _TRAEFIK,
        outer,
        rule=rf"{rule} || HostRegexp(`^[a-z0-9-]+\\.{label}$`)",
        wildcard=f'\n            sans: ["*.{outer.domain}"]',
        challenge=_TRAEFIK_WILDCARD_CHALLENGE,
    )


def _fill(template: str, outer: OuterProxy, **more: str) -> str:
    agents = " --agents host" if outer.is_by_host else ""
    return template.format(domain=outer.domain, address=outer.address, agents=agents, proxy=outer.proxy, **more)


PRINTERS: dict[str, Callable[[OuterProxy], str]] = {"nginx": nginx, "caddy": caddy, "traefik": traefik}


@click.group(cls=CommandGroup)
def ingress() -> None:
    """Print configurations of proxies in front of the platform."""


@ingress.command("print")
@click.argument("kind", type=click.Choice(list(PRINTERS)))
@click.option("--domain", default="portside.example.com", show_default=True, help="Public host name of the platform.")
@click.option(
    "--agents",
    type=click.Choice(["path", "host"]),
    default="path",
    show_default=True,
    help="Addresses of agents, as for 'portside up'.",
)
@click.option(
    "--address", default="127.0.0.1:8700", show_default=True, help="Address at which the proxy reaches the platform."
)
@click.option(
    "--proxy", default="127.0.0.1", show_default=True, help="Address from which the proxy connects to the platform."
)
def print_configuration(kind: str, domain: str, agents: str, address: str, proxy: str) -> None:
    """Print the configuration of nginx, Caddy or Traefik in front of a platform that runs with --tls off."""
    show_text(PRINTERS[kind](OuterProxy(domain, address, agents == "host", proxy)), end="")
