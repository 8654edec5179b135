"""The graph configuration file: which graphs there are, where their code and environment come from.

The file is shared with the image builders of the ecosystem, so it holds more than a server needs. What only a build
reads is skipped with a warning. What would change how this server behaves and is not acted on is refused: an agent that
configured auth must not be served without it. The tables below say which is which; contract: the file's own schema.

Images that were built from such a file bring its sections along as JSON in the environment. A section from there
replaces the file's, and with the graphs from there no file is needed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from portside.agent.types.access import AuthConfig
from portside.agent.types.encryption import EncryptionConfig, SerdeConfig
from portside.agent.types.webhooks import WebhooksConfig
from portside.kernel.errors import UserMistake
from portside.kernel.http.cors import CorsRules
from portside.kernel.http.header_rules import HeaderRules
from portside.kernel.http.prefixes import A_PREFIX
from portside.kernel.logs import get_logger
from portside.kernel.spellings import CONFIG_FILES, environment_names

log = get_logger(__name__)

BUILD_ONLY = frozenset(
    {
        "api_version", "base_image", "build_command", "dockerfile_lines", "image_distro", "install_command",
        "keep_pkg_tools", "node_version", "pip_config_file", "pip_installer", "python_version", "source",
    }
)  # fmt: skip

ACTED_ON = object()
# Sections that change how a server behaves, each with the settings this server acts on, or the value
# under which it behaves as this server does.
NOT_SERVED: dict[str, dict[str, Any]] = {
    "auth": dict.fromkeys(AuthConfig.__struct_fields__, ACTED_ON),
    "checkpointer": {"backend": "default", "serde": ACTED_ON, "ttl": ACTED_ON},
    "encryption": {"path": ACTED_ON},
    "http": {
        "cors": ACTED_ON, "disable_a2a": ACTED_ON, "disable_assistants": ACTED_ON, "disable_mcp": ACTED_ON,
        "disable_meta": ACTED_ON, "disable_runs": ACTED_ON, "disable_store": ACTED_ON, "disable_threads": ACTED_ON,
        "disable_ui": True, "app": ACTED_ON, "configurable_headers": ACTED_ON, "enable_custom_route_auth": ACTED_ON,
        "logging_headers": ACTED_ON, "middleware_order": ACTED_ON, "mount_prefix": ACTED_ON,
        "disable_webhooks": ACTED_ON,
    },
    "priority": {},
    "store": {"index": ACTED_ON, "ttl": ACTED_ON},
    "ui": {},
    "ui_config": {},
    "webhooks": dict.fromkeys(WebhooksConfig.__struct_fields__, ACTED_ON),
}  # fmt: skip
_READ = frozenset({"$schema", "dependencies", "graphs", "env"})
GRAPHS_VARIABLE = "LANGSERVE_GRAPHS"
_VARIABLES: dict[str, tuple[str, ...]] = {
    "graphs": (GRAPHS_VARIABLE,),
    **{section: environment_names(f"GRAPH_{section.upper()}") for section in NOT_SERVED},
}
_JAVASCRIPT = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")


class GraphSource(msgspec.Struct, frozen=True):
    """Where a graph is: `path` is `file.py:name` or `package.module:name`."""

    path: str
    description: str | None = None


class ThreadTtl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long threads are kept by default, in minutes since their last change, and how they are swept."""

    strategy: Literal["delete", "keep_latest"] = "delete"
    default_ttl: Annotated[float, msgspec.Meta(gt=0)] | None = None
    sweep_interval_minutes: Annotated[float, msgspec.Meta(gt=0)] = 5
    sweep_limit: Annotated[int, msgspec.Meta(ge=1)] = 1000


class StoreIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which fields of store items are embedded for semantic search, by what, into how many dimensions."""

    embed: str
    dims: Annotated[int, msgspec.Meta(ge=1, le=16_000)]
    fields: list[str] = msgspec.field(default_factory=lambda: ["$"])


class StoreTtl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long store items are kept by default, in minutes since they were written or read."""

    refresh_on_read: bool = True
    default_ttl: Annotated[float, msgspec.Meta(gt=0)] | None = None
    sweep_interval_minutes: Annotated[float, msgspec.Meta(gt=0)] = 5


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the key-value store searches and forgets."""

    index: StoreIndex | None = None
    ttl: StoreTtl | None = None


class HttpConfig(msgspec.Struct, frozen=True):
    """Which groups of routes there are, below which path, which web pages may call them, and what the project adds.

    `app` names the project's own web application, like a graph.
    """

    cors: CorsRules | None = None
    disable_assistants: bool = False
    disable_threads: bool = False
    disable_runs: bool = False
    disable_store: bool = False
    disable_a2a: bool = False
    disable_mcp: bool = False
    disable_meta: bool = False
    disable_webhooks: bool = False
    mount_prefix: Annotated[str, A_PREFIX] = ""
    app: Annotated[str, msgspec.Meta(pattern=r"^.*\S.*:[A-Za-z_]\w*$", max_length=1000)] | None = None
    middleware_order: Literal["middleware_first", "auth_first"] = "middleware_first"
    enable_custom_route_auth: bool = False
    configurable_headers: HeaderRules | None = None
    logging_headers: HeaderRules | None = None


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A graph configuration file that this server can act on; paths in it are relative to `folder`.

    Where the environment alone describes the agent, `file` is the name of its variable in the working directory.
    """

    file: Path
    graphs: dict[str, GraphSource]
    dependencies: list[str]
    env: dict[str, str]
    thread_ttl: ThreadTtl = ThreadTtl()
    store: StoreConfig = StoreConfig()
    http: HttpConfig = HttpConfig()
    auth: AuthConfig = AuthConfig()
    encryption: EncryptionConfig = EncryptionConfig()
    serde: SerdeConfig = SerdeConfig()
    webhooks: WebhooksConfig | None = None

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return self.file.parent


def find_config(folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the configuration file of a project, or what stands for the environment where that describes the agent.

    Raises UserMistake when there is neither.
    """
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return folder / name
    if environ and environ.get(GRAPHS_VARIABLE):
        return folder / GRAPHS_VARIABLE
    raise UserMistake(
        f"{folder} has no graph configuration file: add a {' or '.join(CONFIG_FILES)} that lists your graphs"
    )


def load_config(path: Path, environ: Mapping[str, str] | None = None) -> AgentConfig:
    """Read a configuration file and the sections of the environment.

    Raises UserMistake that names the file or the variable, the key and the remedy.
    """
    path = path.resolve()
    content = {} if path.name == GRAPHS_VARIABLE else _read_json(path)
    places = {key: str(path) for key in content}
    for section, variable in _given(environ or {}).items():
        if (value := _parse(variable, (environ or {})[variable])) is not None:
            content[section], places[section] = value, variable
    for key, value in content.items():
        _judge_key(places[key], key, value)
    return _config(path, content, places)


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return which variable of the environment brings which section."""
    return {
        section: next(name for name in names if environ.get(name))
        for section, names in _VARIABLES.items()
        if any(environ.get(name) for name in names)
    }


def _config(path: Path, content: dict[str, Any], places: dict[str, str]) -> AgentConfig:
    def place(section: str) -> str:
        return places.get(section, str(path))

    return AgentConfig(
        file=path,
        graphs=_graphs(place("graphs"), content.get("graphs")),
        dependencies=_typed(place("dependencies"), "dependencies", content.get("dependencies") or [], list[str]),
        env=_env(path, content.get("env")),
        thread_ttl=_thread_ttl(place("checkpointer"), _section(content, "checkpointer")),
        store=_typed(place("store"), "store", _section(content, "store"), StoreConfig),
        http=_http(place("http"), _section(content, "http")),
        # Documentation of LangGraph writes its flags as texts.
        auth=_typed(place("auth"), "auth", _section(content, "auth"), AuthConfig, strict=False),
        encryption=_typed(place("encryption"), "encryption", _section(content, "encryption"), EncryptionConfig),
        serde=_serde(place("checkpointer"), _section(content, "checkpointer")),
        webhooks=_typed(place("webhooks"), "webhooks", content.get("webhooks"), WebhooksConfig | None),
    )


def _thread_ttl(place: str, section: dict[str, Any]) -> ThreadTtl:
    ttl: ThreadTtl = _typed(place, "checkpointer.ttl", section.get("ttl") or {}, ThreadTtl)
    return ttl


def _serde(place: str, section: dict[str, Any]) -> SerdeConfig:
    serde: SerdeConfig = _typed(place, "checkpointer.serde", section.get("serde") or {}, SerdeConfig)
    if serde.pickle_fallback:
        log.warning("pickles_are_read", file=place, reason="whoever can write to the database can run code here")
    return serde


def _http(place: str, section: dict[str, Any]) -> HttpConfig:
    # An empty prefix or set of rules is how some say that there is none.
    given = {key: value for key, value in section.items() if value not in ({}, "", None)}
    http: HttpConfig = _typed(place, "http", given, HttpConfig)
    if http.cors and http.cors.allow_credentials and "*" in http.cors.allow_origins:
        log.warning("cors_without_credentials", file=place, reason="pages that may send them have to be named")
    for rules in (http.configurable_headers, http.logging_headers):
        if rules is not None and rules.never:
            log.warning("headers_never_passed_on", file=place, headers=rules.never, reason="they carry secrets")
    return http


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as exc:
        raise UserMistake(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise UserMistake(f"{path} is not UTF-8 text") from exc
    content = _parse(str(path), text)
    if not isinstance(content, dict):
        raise UserMistake(f'{path} must hold a JSON object such as {{"graphs": {{"agent": "./agent.py:graph"}}}}')
    return content


def _parse(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        raise UserMistake(f"{place} is not valid JSON: {exc.msg} (line {exc.lineno}, column {exc.colno})") from exc


def _judge_key(place: str, key: str, value: Any) -> None:
    """Pass what the server reads, warn of what it skips. Raises UserMistake on what it would have to act on."""
    if key in NOT_SERVED:
        _refuse_settings(place, key, value)
    elif key in BUILD_ONLY:
        log.warning("config_key_skipped", file=place, key=key, reason="it only matters for building an image")
    elif key not in _READ:
        log.warning("config_key_unknown", file=place, key=key)


def _refuse_settings(place: str, section: str, value: Any) -> None:
    """Raise UserMistake unless every setting of a section says what holds anyway."""
    if not isinstance(value, dict):
        settings = {} if _is_off(value) else {section: value}
    else:
        same = NOT_SERVED[section]
        settings = {
            f"{section}.{name}": given
            for name, given in value.items()
            if not (_is_off(given) or same.get(name) is ACTED_ON or (name in same and same[name] == given))
        }
    if settings:
        raise UserMistake(
            f"{place}: {', '.join(sorted(settings))} cannot be honoured by this server yet, and serving the agent "
            f"without it would not be what you configured; remove it to start"
        )


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ({}, [], "")


def _graphs(place: str, value: Any) -> dict[str, GraphSource]:
    if not isinstance(value, dict) or not value:
        raise UserMistake(
            f'{place}: "graphs" must name at least one graph, for example {{"agent": "./agent.py:graph"}}'
        )
    return {graph_id: _graph(place, graph_id, entry) for graph_id, entry in value.items()}


def _graph(place: str, graph_id: str, entry: Any) -> GraphSource:
    key = f"graphs.{graph_id}"
    if not graph_id.strip():
        raise UserMistake(f'{place}: "graphs" has a graph without a name')
    source = GraphSource(entry) if isinstance(entry, str) else _typed(place, key, entry, GraphSource)
    file, separator, name = source.path.rpartition(":")
    if not (separator and file.strip() and name.isidentifier()):
        raise UserMistake(
            f'{place}: {key} is "{source.path}"; it must name a file and what to take from it, like "./agent.py:graph"'
        )
    if file.endswith(_JAVASCRIPT):
        raise UserMistake(f"{place}: {key} is a JavaScript graph ({file}); this server runs Python graphs")
    return source


def _env(path: Path, value: Any) -> dict[str, str]:
    """Read the environment: a map in the file itself, or the path of a `.env` file beside it."""
    if value is None or value == "":
        return {}
    if not isinstance(value, str):
        given = _typed(str(path), "env", value, dict[str, str | int | float | bool])
        return {name: _as_text(setting) for name, setting in given.items()}
    file = path.parent / value
    if not file.is_file():
        raise UserMistake(f'{path}: env is "{value}", but there is no such file; create it or remove the key')
    from dotenv import dotenv_values

    return {name: setting for name, setting in dotenv_values(file).items() if setting is not None}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(place: str, key: str, value: Any, kind: Any, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        raise UserMistake(f"{place}: {key}: {str(exc).replace('`$', f'`{key}')}") from exc
