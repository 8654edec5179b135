"""System routes, CORS, methods and paths."""

from typing import Any

from bench.parity.talk import Talk, alone

CORS = (
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-max-age",
    "access-control-expose-headers",
    "access-control-allow-credentials",
    "vary",
)


async def health(talk: Talk) -> None:
    await talk.get("ok", "/ok")
    await talk.get("root", "/")
    await talk.get("with database", "/ok?check_db=1")
    await talk.send("head", "HEAD", "/ok")


def keep_names(metrics: Any) -> Any:
    """The names of metrics: their values differ from run to run."""
    return {name: sorted(value) if isinstance(value, dict) else "given" for name, value in metrics.items()}


async def information(talk: Talk) -> None:
    await talk.get("info", "/info")
    await talk.get("metrics json", "/metrics?format=json", keep=keep_names)
    await talk.get("metrics", "/metrics", keep=lambda _body: "text")
    await talk.get("docs", "/docs", keep=lambda _body: "html")
    await talk.get("openapi", "/openapi.json", keep=lambda body: body["openapi"])

    for path in ("/heapdump", "/profile", "/debug/x", "/health", "/redoc"):
        await talk.get(f"nothing at {path}", path)


@alone
async def documented_paths(talk: Talk) -> None:
    await talk.get("paths", "/openapi.json", keep=_paths)


def _paths(body: dict) -> dict:
    return {
        path: sorted(set(found) & {"get", "post", "put", "patch", "delete"}) for path, found in body["paths"].items()
    }


async def cors(talk: Talk) -> None:
    origin = {"origin": "http://localhost:5173"}
    await talk.get("simple", "/ok", headers=origin, look=CORS)
    await talk.post("search", "/threads/search", {"metadata": {"tag": "nobody"}}, headers=origin, look=CORS)
    await talk.get("error", "/threads/abc", headers=origin, look=CORS)

    preflight = {
        **origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-api-key",
    }

    await talk.send("preflight", "OPTIONS", "/threads", headers=preflight, look=CORS)
    await talk.send(
        "preflight private network",
        "OPTIONS",
        "/threads",
        headers={**preflight, "access-control-request-private-network": "true"},
        look=("access-control-allow-private-network",),
    )

    await talk.send("preflight unknown path", "OPTIONS", "/nope", headers=preflight, look=CORS)
    await talk.send("preflight without method", "OPTIONS", "/threads", headers=origin)


async def paths(talk: Talk) -> None:
    await talk.get("unknown", "/nope")
    await talk.get("trailing slash", "/threads/")
    await talk.post("trailing slash post", "/threads/search/", {})
    await talk.get("wrong method", "/threads")
    await talk.delete("wrong method below", "/threads/search")
    await talk.send("head of a thread", "HEAD", "/threads/abc")


async def bodies(talk: Talk) -> None:
    await talk.send("empty", "POST", "/threads/search", content=b"")
    await talk.send("broken", "POST", "/threads/search", content=b"{")
    await talk.send("not utf-8", "POST", "/threads", content=b'{"metadata": {"a": "\xff"}}')
    await talk.send("a list", "POST", "/threads", content=b"[]")
    await talk.send("a number", "POST", "/threads", content=b"5")
    await talk.send("null", "POST", "/threads", content=b"null")

    plain = {"content-type": "text/plain"}
    await talk.send("text/plain", "POST", "/threads/count", content=b'{"metadata": {"tag": "nobody"}}', headers=plain)
    form = {"content-type": "application/x-www-form-urlencoded"}
    await talk.send("form", "POST", "/threads/count", content=b'{"metadata": {"tag": "nobody"}}', headers=form)
    await talk.send("NaN", "POST", "/threads", content=b'{"metadata": {"a": NaN}}')
    await talk.send("duplicate keys", "POST", "/threads", content=b'{"metadata": {"a": 1}, "metadata": {"a": 2}}')
    await talk.send("deep", "POST", "/threads", content=b'{"metadata": ' + b'{"a":' * 2000 + b"1" + b"}" * 2001)

    await talk.send("nul character", "POST", "/threads", content=b'{"metadata": {"a": "x\\u0000y"}}')
    await talk.send("lone surrogate", "POST", "/threads", content=b'{"metadata": {"a": "\\ud800"}}')
    await talk.send("big number", "POST", "/threads", content=b'{"metadata": {"a": 123456789012345678901234567890}}')
