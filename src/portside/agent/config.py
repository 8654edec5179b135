"""The graph configuration file: the graphs of a project, their code, and their environment.

Published projects share the file with image builders and other servers, so it has more keys than this server reads. The
server logs a key that it ignores, and starts. One exception: it refuses an unknown key that asks for protection, such
as one of `auth`, because it must not serve the agent without that protection.

Images built from such a file have its sections as JSON in the environment, and the file that `env` names may have them
as well. A section from there replaces the file's. If the graphs come from there, no file is needed.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from portside.agent.types.access import AuthConfig
from portside.agent.types.store import MAX_TTL_MINUTES
from portside.agent.types.threads import Minutes
from portside.agent.types.webhooks import WebhooksConfig
from portside.executor.project import GraphSource, Project
from portside.kernel.aliases import CONFIG_FILES, environment_names, is_javascript
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import (
    CONFIG_KEYS,
    find_env_file,
    missing_graphs,
    parse_config,
    parse_json,
    read_env_file,
    with_paths_from_above,
)
from portside.kernel.http.cors import CorsRules
from portside.kernel.http.forwarded_headers import HeaderRules
from portside.kernel.http.prefixes import PATH_PREFIX
from portside.kernel.logs import get_logger
from portside.kernel.spelling import did_you_mean

log = get_logger(__name__)

# Only builds use these keys.
_READ_BY_BUILDS = frozenset(
    {
        "build_command",
        "install_command",
        "node_version",
        "pip_config_file",
        "python_version",
        "source",
    }
)
_READ = frozenset({"$schema", "dependencies", "graphs", "env", "ui", *_READ_BY_BUILDS})
_IMAGES = "it only matters for building an image"
_POSTGRES = "this server keeps its data in Postgres"
# Why this server ignores keys that published projects use. A key of a section is named `section.key`.
_IGNORED = {
    **dict.fromkeys(
        (
            "api_version",
            "base_image",
            "dockerfile_lines",
            "image_distro",
            "keep_pkg_tools",
            "pip_installer",
        ),
        _IMAGES,
    ),
    **dict.fromkeys(
        ("checkpointer", "checkpointer.backend", "checkpointer.path", "disable_persistence", "store", "store.path"),
        _POSTGRES,
    ),
    "priority": "this server orders runs by the priority of their assistants",
    "recursion_limit": "set it in the configuration of an assistant or a run",
    "store.scopes": "restrict namespaces in an @auth.on.store handler",
}
# An ignored key with one of these prefixes would ask for protection, so the server refuses to start.
_PROTECTING = ("auth.", "encryption.", "webhooks.", "http.disable_")
# Ignored keys whose value asks for what this server does anyway.
_SATISFIED = {"checkpointer.backend": "default"}
_SECTIONS = ("auth", "checkpointer", "encryption", "http", "priority", "store", "ui", "ui_config", "webhooks")
GRAPHS_VARIABLE = "LANGSERVE_GRAPHS"
_VARIABLES: dict[str, tuple[str, ...]] = {
    "graphs": (GRAPHS_VARIABLE,),
    **{section: environment_names(f"GRAPH_{section.upper()}") for section in _SECTIONS},
}
# Variables that published images and compose files set for other servers.
_IGNORED_VARIABLES = {
    **dict.fromkeys(environment_names("GRAPH_CONFIG"), "name the configuration file with --config"),
    "LANGGRAPH_DISABLE_FILE_PERSISTENCE": _POSTGRES,
    "LANGGRAPH_RUNTIME_EDITION": _POSTGRES,
    "LS_DEFAULT_CHECKPOINTER_BACKEND": _POSTGRES,
}
_JAVASCRIPT_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
Modules = list[list[str]] | bool | None
SweepMinutes = Annotated[float, msgspec.Meta(gt=0, le=525_600)]
# Names of components are names of folders, and parts of URLs.
UiName = Annotated[str, msgspec.Meta(pattern=r"^[^/\\.\x00-\x1f][^/\\\x00-\x1f]{0,99}\Z")]
UiFiles = dict[UiName, str]


class ThreadTtl(msgspec.Struct, frozen=True):
    """How long threads live by default, in minutes since their last change, and how they are deleted."""

    strategy: Literal["delete", "keep_latest"] = "delete"
    default_ttl: Minutes | None = None
    sweep_interval_minutes: SweepMinutes = 5
    sweep_limit: Annotated[int, msgspec.Meta(ge=1)] = 1000


class StoreIndex(msgspec.Struct, frozen=True):
    """The fields of store items to embed for semantic search, the embedding model, and its dimensions."""

    embed: str
    dims: Annotated[int, msgspec.Meta(ge=1, le=16_000)]
    fields: list[str] = msgspec.field(default_factory=lambda: ["$"])


class StoreTtl(msgspec.Struct, frozen=True):
    """How long store items live by default, in minutes since they were written or read."""

    refresh_on_read: bool = True
    default_ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_MINUTES)] | None = None
    sweep_interval_minutes: SweepMinutes = 5


class StoreConfig(msgspec.Struct, frozen=True):
    """The search index and the lifetimes of the key-value store."""

    index: StoreIndex | None = None
    ttl: StoreTtl | None = None


class EncryptionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `encryption`: the path of the project's `langgraph_sdk.Encryption`."""

    path: str | None = None


class SerdeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `checkpointer.serde`: the classes that may be restored from checkpoints.

    Lists name modules and classes; true allows all classes that hold data, null those that langgraph itself stores.
    With `pickle_fallback` everything else is pickled, and reading a pickle runs the code that it names.
    """

    allowed_json_modules: Modules = None
    allowed_msgpack_modules: Modules = True
    pickle_fallback: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for false, which means nothing here; older versions of msgspec have no literal booleans."""
        if self.allowed_json_modules is False or self.allowed_msgpack_modules is False:
            raise ValueError("must be a list of modules, true or null, but is false")


class HttpConfig(msgspec.Struct, frozen=True):
    """The routes that a server serves, their prefix, CORS, and the project's own web application.

    `app` names that application as `graphs` names a graph.
    """

    cors: CorsRules | None = None
    disable_assistants: bool = False
    disable_threads: bool = False
    disable_runs: bool = False
    disable_store: bool = False
    disable_a2a: bool = False
    disable_mcp: bool = False
    disable_meta: bool = False
    disable_ui: bool = False
    disable_webhooks: bool = False
    mount_prefix: Annotated[str, PATH_PREFIX] = ""
    app: Annotated[str, msgspec.Meta(pattern=r"^.*\S.*:[A-Za-z_]\w*$", max_length=1000)] | None = None
    middleware_order: Literal["middleware_first", "auth_first"] = "middleware_first"
    enable_custom_route_auth: bool = False
    configurable_headers: HeaderRules | None = None
    logging_headers: HeaderRules | None = None


class UiConfig(msgspec.Struct, frozen=True):
    """The section `ui_config`: packages that the page offers to components. The program that bundles them reads it."""

    shared: list[str] = []


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed graph configuration file; paths in it are relative to `folder`.

    If the environment alone describes the agent, `file` is the variable's name in the working directory.
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
    ui: UiFiles = {}
    """Files with React components for browsers, by names."""
    overrides: dict[str, str] = {}
    """Variables of executors that win over those of the server."""

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return self.file.parent

    @property
    def project(self) -> Project:
        """The project with its Python graphs, for their executors."""
        return self._with({name: graph for name, graph in self.graphs.items() if not is_javascript(graph.path)})

    @property
    def javascript(self) -> Project:
        """The project with its JavaScript graphs, for their executors."""
        return self._with({name: graph for name, graph in self.graphs.items() if is_javascript(graph.path)})

    @property
    def has_javascript(self) -> bool:
        """Whether graphs or handlers of the project are in JavaScript."""
        embed = None if self.store.index is None else self.store.index.embed
        handlers = [path for path in (self.auth.path, self.http.app, embed) if path is not None]
        return bool(self.javascript.graphs) or any(map(is_javascript, handlers))

    def _with(self, graphs: dict[str, GraphSource]) -> Project:
        return Project(file=self.file, graphs=graphs, dependencies=self.dependencies, env=self.env)


# The keys of each section that this server reads.
_KEYS = {
    "auth": AuthConfig.__struct_fields__,
    "checkpointer": ("serde", "ttl"),
    "checkpointer.ttl": ThreadTtl.__struct_fields__,
    "encryption": EncryptionConfig.__struct_fields__,
    "http": HttpConfig.__struct_fields__,
    "store": StoreConfig.__struct_fields__,
    "store.index": StoreIndex.__struct_fields__,
    "store.ttl": StoreTtl.__struct_fields__,
    "ui_config": UiConfig.__struct_fields__,
    "webhooks": WebhooksConfig.__struct_fields__,
}


def find_config(folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the configuration file of a project, or a stand-in path if the environment describes the agent.

    Raises UserMistake if there is neither.
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
    """Read a configuration file and the sections of the environment, and log the keys that are ignored.

    Raises UserMistake that names the file or the variable, the key and the remedy.
    """
    path = path.resolve()
    content = {} if path.name == GRAPHS_VARIABLE else with_paths_from_above(_read_json(path), path.parent)
    env = _env(path, content.pop("env", None))

    environ = {**env, **(environ or {})}
    sources = {key: str(path) for key in content}
    for section, variable in _find_sections(environ).items():
        if (value := parse_json(environ[variable], variable)) is not None:
            content[section] = value
            sources[section] = variable

    for variable in sorted(_IGNORED_VARIABLES.keys() & environ.keys()):
        log.warning("a variable is ignored", variable=variable, reason=_IGNORED_VARIABLES[variable])

    if not isinstance(content.get("graphs"), dict) or not content["graphs"]:
        raise UserMistake(missing_graphs(content, sources.get("graphs", str(path))))

    config = _config(path, _read_sections(content, sources), sources, env)
    _refuse_javascript(config)
    return config


def _refuse_javascript(config: AgentConfig) -> None:
    """Raise UserMistake for encryption in JavaScript, instead of ignoring it and storing clear text."""
    location = config.encryption.path
    if location is not None and is_javascript(location):
        raise UserMistake(
            f'{config.file}: encryption.path is "{location}", and LangGraph\'s SDK for JavaScript has no encryption; '
            "write the handlers in Python, or set GRAPH_AES_KEY"
        )


def _read_sections(content: dict[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """Return the keys of a file that this server reads. Raises UserMistake if an ignored key asks for protection."""
    sections: dict[str, Any] = {}
    for key, value in content.items():
        # Other servers store their data in the backend that these keys name, so a string here is not a mistake.
        names_backend = key in {"checkpointer", "store"} and not isinstance(value, dict)
        if names_backend or key not in {*_READ, *_KEYS}:
            _ignore(sources[key], key, value, suggestion=did_you_mean(key, CONFIG_KEYS - content.keys()))
        else:
            sections[key] = _read_keys(sources[key], key, value)

    return sections


def _find_sections(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the sections that the environment has, with their variables."""
    return {
        section: next(name for name in names if environ.get(name))
        for section, names in _VARIABLES.items()
        if any(environ.get(name) for name in names)
    }


def _config(path: Path, content: dict[str, Any], sources: dict[str, str], env: dict[str, str]) -> AgentConfig:
    def get_source(section: str) -> str:
        return sources.get(section, str(path))

    checkpointer = content.get("checkpointer", {})
    _typed(get_source("ui_config"), "ui_config", content.get("ui_config") or {}, UiConfig)
    return AgentConfig(
        file=path,
        graphs=_graphs(get_source("graphs"), content["graphs"]),
        dependencies=_typed(get_source("dependencies"), "dependencies", content.get("dependencies") or [], list[str]),
        env=env,
        thread_ttl=_typed(get_source("checkpointer"), "checkpointer.ttl", checkpointer.get("ttl") or {}, ThreadTtl),
        store=_typed(get_source("store"), "store", content.get("store", {}), StoreConfig),
        http=_http(get_source("http"), content.get("http") or {}),
        auth=_auth(get_source("auth"), content.get("auth") or {}),
        encryption=_typed(get_source("encryption"), "encryption", content.get("encryption") or {}, EncryptionConfig),
        serde=_serde(get_source("checkpointer"), checkpointer),
        webhooks=_typed(get_source("webhooks"), "webhooks", content.get("webhooks") or None, WebhooksConfig | None),
        ui=_typed(get_source("ui"), "ui", content.get("ui") or {}, UiFiles),
    )


def _serde(source: str, section: dict[str, Any]) -> SerdeConfig:
    serde: SerdeConfig = _typed(source, "checkpointer.serde", section.get("serde") or {}, SerdeConfig)
    if serde.pickle_fallback:
        log.warning(
            "pickled checkpoints are allowed: anyone who can write to the database can run code in this server",
            file=source,
        )

    return serde


def _auth(source: str, section: Any) -> AuthConfig:
    # LangGraph's documentation writes the flags of this section as strings.
    auth: AuthConfig = _typed(source, "auth", section, AuthConfig, strict=False)
    if auth.path is None or not is_javascript(auth.path):
        return auth

    return msgspec.structs.replace(auth, path=_javascript_location(source, "auth.path", auth.path))


def _http(source: str, section: Any) -> HttpConfig:
    # Some projects write an empty prefix or an empty set of rules for none.
    is_object = isinstance(section, dict)
    settings = {key: value for key, value in section.items() if value not in ({}, "", None)} if is_object else section
    if is_object and isinstance(app := settings.get("app"), str) and is_javascript(app):
        settings["app"] = _javascript_location(source, "http.app", app)

    http: HttpConfig = _typed(source, "http", settings, HttpConfig)
    if http.cors and http.cors.allow_credentials and "*" in http.cors.allow_origins:
        log.warning("http.cors.allow_credentials has no effect while allow_origins is *; name the origins", file=source)

    for rules in (http.configurable_headers, http.logging_headers):
        if rules is not None and rules.ignored:
            log.warning(
                "headers that carry credentials are never passed to graphs or logs; remove them",
                file=source,
                headers=rules.ignored,
            )

    return http


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except IsADirectoryError as exc:
        raise UserMistake(f"{path} is a folder; name the graph configuration file in it") from exc
    except OSError as exc:
        raise UserMistake(f"{path} cannot be read: {exc.strerror}") from exc

    return parse_config(content, str(path))


def _read_keys(source: str, key: str, value: Any) -> Any:
    """Return the keys of a section that this server reads, and log the others.

    Raises UserMistake if one of the others asks for protection.
    """
    if key not in _KEYS or not isinstance(value, dict):
        return value

    return {
        name: _read_keys(source, f"{key}.{name}", setting)
        for name, setting in _keep_known(source, key, value, _KEYS[key]).items()
    }


def _keep_known(source: str, section: str, value: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the keys of a section with these names, and ignore the others."""
    for name in sorted(value.keys() - names):
        _ignore(source, f"{section}.{name}", value[name], suggestion=did_you_mean(name, names))
    return {name: setting for name, setting in value.items() if name in names}


def _ignore(source: str, key: str, value: Any, *, suggestion: str) -> None:
    """Log that a key is ignored. Raises UserMistake if it asks for protection.

    `suggestion` ends the message about an unknown key: the known key that somebody may have meant.
    """
    if _is_off(value) or (key in _SATISFIED and _SATISFIED[key] == value):
        return

    if key.startswith(_PROTECTING):
        raise UserMistake(
            f"{source}: unknown key {key}. It may ask for protection, which the server must not run without; remove "
            f"the key to start{suggestion}"
        )

    reason = _IGNORED.get(key, f"unknown key{suggestion}")
    log.warning("a configuration key is ignored", file=source, key=key, reason=reason)


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ({}, [], "")


def _graphs(source: str, value: dict[str, Any]) -> dict[str, GraphSource]:
    return {graph_id: _graph(source, graph_id, entry) for graph_id, entry in value.items()}


def _graph(source: str, graph_id: str, entry: Any) -> GraphSource:
    key = f"graphs.{graph_id}"
    if not graph_id.strip():
        raise UserMistake(f'{source}: "graphs" has a graph with an empty name')

    if isinstance(entry, dict):
        entry = _keep_known(source, key, entry, GraphSource.__slots__)

    graph = GraphSource(entry) if isinstance(entry, str) else _typed(source, key, entry, GraphSource)
    if is_javascript(graph.path):
        return GraphSource(_javascript_location(source, key, graph.path), graph.description)

    file, separator, name = graph.path.rpartition(":")
    if not (separator and file.strip() and name.isidentifier()):
        raise UserMistake(
            f'{source}: {key} is "{graph.path}"; it must name a file and an object in it, like "./agent.py:graph"'
        )

    return graph


def _javascript_location(source: str, key: str, location: str) -> str:
    """Return a location in JavaScript with the name of its export, which is `default` if none is given."""
    file, separator, name = location.rpartition(":")
    if not separator:
        file = location
        name = "default"

    if not _JAVASCRIPT_NAME.fullmatch(name):
        raise UserMistake(
            f'{source}: {key} is "{location}"; it must name a file and an export of it, like "./agent.ts:graph"'
        )

    return f"{file}:{name}"


def _env(path: Path, value: Any) -> dict[str, str]:
    """Read `env`: a map, or the path of a `.env` file. Raises UserMistake if the file cannot be read."""
    if value is None or value == "":
        return {}

    if not isinstance(value, str):
        variables = _typed(str(path), "env", value, dict[str, str | int | float | bool | None])
        return {name: _as_text(setting) for name, setting in variables.items() if setting is not None}

    here = Path.cwd()
    # Other servers read it from there. Not from other folders above: their files may belong to something else.
    folders = [path.parent, here] if path.is_relative_to(here) else [path.parent]
    file = find_env_file(value, folders)
    if file is None:
        log.info("the env file is missing and counts as empty", file=str(path), env=value)
        return {}

    try:
        return read_env_file(file)
    except (OSError, UnicodeDecodeError) as exc:
        raise UserMistake(f"{path}: env: {file} cannot be read as UTF-8 text: {exc}") from exc


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(source: str, key: str, value: Any, kind: Any, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        raise UserMistake(f"{source}: {key}: {str(exc).replace('`$', f'`{key}')}") from exc
