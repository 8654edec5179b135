"""Reading the graph configuration file."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from portside.agent.config import AgentConfig, GraphSource, HttpConfig, SerdeConfig, find_config, load_config
from portside.kernel.errors import UserMistake
from portside.kernel.http.cors import CorsRules

GRAPHS = {"agent": "./agent.py:graph"}


def read_config(folder: Path, **keys: Any) -> AgentConfig:
    file = folder / "langgraph.json"
    file.write_text(json.dumps({"graphs": GRAPHS, **keys}))
    return load_config(file)


def refusal(folder: Path, **keys: Any) -> str:
    with pytest.raises(UserMistake) as caught:
        read_config(folder, **keys)

    message = str(caught.value)
    assert message.startswith(str(folder / "langgraph.json"))
    return message


def test_a_whole_file(tmp_path):
    config = read_config(
        tmp_path,
        graphs={"agent": "./agent.py:graph", "other": {"path": "pkg.mod:make", "description": "Makes things"}},
        dependencies=[".", "langchain"],
        env={"A": "1", "B": 2, "C": True},
        **{"$schema": "https://example.org/schema.json"},
    )

    assert config.folder == tmp_path
    assert config.graphs == {
        "agent": GraphSource("./agent.py:graph"),
        "other": GraphSource("pkg.mod:make", "Makes things"),
    }

    assert config.dependencies == [".", "langchain"]
    assert config.env == {"A": "1", "B": "2", "C": "true"}


def test_the_environment_may_be_a_file(tmp_path):
    (tmp_path / ".env").write_text("# comment\nKEY='a b'\nEMPTY=\nBARE\nexport OTHER=x\n")
    assert read_config(tmp_path, env=".env").env == {"KEY": "a b", "EMPTY": "", "OTHER": "x"}


@pytest.mark.parametrize("env", ["missing.env", "../.env", "/nowhere/at/all/.env", "."])
def test_a_missing_env_file_counts_as_empty_and_is_named_once(tmp_path, env: str):
    with capture_logs() as logged:
        assert read_config(tmp_path, env=env).env == {}
    assert [(line["event"], line["env"]) for line in logged] == [("the env file is missing and counts as empty", env)]


def test_an_env_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / ".env").write_bytes(b"KEY=\xff\n")
    with pytest.raises(UserMistake, match=r"langgraph\.json: env: .*\.env cannot be read as UTF-8 text"):
        read_config(tmp_path, env=".env")


def test_the_env_file_may_bring_sections_and_the_process_wins_over_it(tmp_path):
    (tmp_path / ".env").write_text(
        'LANGGRAPH_HTTP=\'{"disable_store": true}\'\nLANGGRAPH_AUTH=\'{"path": "a.py:auth"}\'\n'
    )
    config = read_config(tmp_path, env=".env")
    assert config.http.disable_store
    assert config.auth.path == "a.py:auth"
    own = {"LANGGRAPH_HTTP": '{"disable_runs": true}'}
    assert load_config(tmp_path / "langgraph.json", own).http == HttpConfig(disable_runs=True)


def test_a_variable_without_a_value_is_left_out(tmp_path):
    assert read_config(tmp_path, env={"A": None, "B": "x"}).env == {"B": "x"}


def test_graph_json_is_found_before_langgraph_json(tmp_path):
    with pytest.raises(UserMistake, match=r"graph\.json or langgraph\.json"):
        find_config(tmp_path)

    (tmp_path / "langgraph.json").write_text("{}")
    assert find_config(tmp_path).name == "langgraph.json"
    (tmp_path / "graph.json").write_text("{}")
    assert find_config(tmp_path).name == "graph.json"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("auth", {"paths": "./auth.py:auth"}, "auth.paths"),
        ("encryption", {"keys": ["k"]}, "encryption.keys"),
        ("http", {"disable_system": True}, "http.disable_system"),
        ("webhooks", {"retries": 3}, "webhooks.retries"),
    ],
)
def test_protection_that_would_be_missing_stops_the_start(tmp_path, key, value, named):
    assert f"unknown key {named}" in refusal(tmp_path, **{key: value})


@pytest.mark.parametrize("key", ["auth", "encryption", "http", "webhooks"])
def test_a_section_of_protection_that_is_no_object_stops_the_start(tmp_path, key):
    assert f"{key}: Expected `object" in refusal(tmp_path, **{key: "./auth.py:auth"})


def list_ignored(folder: Path, **keys: Any) -> dict[str, str]:
    """Read a file, and return which keys the log names as ignored, with the reasons."""
    with capture_logs() as logged:
        read_config(folder, **keys)

    assert {line["event"] for line in logged} <= {"a configuration key is ignored"}
    assert {line["log_level"] for line in logged} <= {"warning"}
    return {line["key"]: line["reason"] for line in logged}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"http": {"something": "./app.py:app"}}, {"http.something"}),
        ({"checkpointer": {"path": "./c.py:c"}}, {"checkpointer.path"}),
        ({"checkpointer": {"backend": "mongo"}}, {"checkpointer.backend"}),
        ({"checkpointer": {"ttl": {"default_ttl": 5, "unit": "m"}}}, {"checkpointer.ttl.unit"}),
        ({"checkpointer": "sqlite", "store": "redis"}, {"checkpointer", "store"}),
        ({"store": {"scopes": ["user"], "path": "s.py:s"}}, {"store.path", "store.scopes"}),
        ({"store": {"index": {"embed": "a:b", "dims": 3, "kind": "x"}}}, {"store.index.kind"}),
        ({"store": {"type": "postgres", "ttl": {"refresh_on_read": False, "on": 1}}}, {"store.type", "store.ttl.on"}),
        ({"ui": {"agent": "./ui.tsx"}, "ui_config": {"shared": ["nuqs"], "entry": "x"}}, {"ui_config.entry"}),
        ({"priority": {"path": "./p.py:p"}}, {"priority"}),
        ({"recursion_limit": 1000, "disable_persistence": True}, {"recursion_limit", "disable_persistence"}),
        ({"package_manager": "uv", "name": "x"}, {"package_manager", "name"}),
        ({"agents": {"a": {}}, "port": 8001}, {"agents", "port"}),
        ({"base_image": "x", "dockerfile_lines": ["RUN x"]}, {"base_image", "dockerfile_lines"}),
        ({"api_version": "0.2", "image_distro": "wolfi"}, {"api_version", "image_distro"}),
        ({"pip_installer": "uv", "keep_pkg_tools": True}, {"pip_installer", "keep_pkg_tools"}),
        ({"graphs": {"a": {"path": "a.py:g", "input": {}, "schema": "x"}}}, {"graphs.a.schema"}),
        ({"dockerfile_lines": [], "keep_pkg_tools": False, "ui": {}, "store": None}, set()),
        ({"python_version": "3.12", "pip_config_file": "pip.conf", "node_version": "20"}, set()),
        ({"source": {"kind": "uv"}, "$schema": "https://example.org/schema.json"}, set()),
    ],
)
def test_ignored_keys_are_reported_and_accepted(tmp_path, keys: dict[str, Any], named: set[str]):
    found = list_ignored(tmp_path, **keys)
    assert set(found) == named
    assert all(found.values())


def test_unknown_keys_have_the_nearest_known_one(tmp_path):
    assert "did you mean 'dependencies'?" in list_ignored(tmp_path, dependancies=["."])["dependancies"]
    assert "did you mean 'app'?" in list_ignored(tmp_path, http={"apps": "./web.py:app"})["http.apps"]
    assert "did you mean 'path'?" in refusal(tmp_path, auth={"paths": "./auth.py:auth"})
    assert 'there is a key "graph"' in refusal(tmp_path, graphs=None, graph=GRAPHS)


def test_what_is_known_of_a_section_is_kept(tmp_path):
    section = {"scopes": ["user"], "ttl": {"refresh_on_read": False, "default_ttl": 5, "on": 1}}
    ttl = read_config(tmp_path, store=section).store.ttl
    assert ttl is not None
    assert (ttl.refresh_on_read, ttl.default_ttl) == (False, 5)
    config = read_config(tmp_path, checkpointer={"path": "c.py:c", "ttl": {"strategy": "keep_latest", "unit": "m"}})
    assert config.thread_ttl.strategy == "keep_latest"


@pytest.mark.parametrize("name", ["LANGGRAPH_CONFIG", "GRAPH_CONFIG", "LANGGRAPH_RUNTIME_EDITION"])
def test_a_variable_for_other_servers_is_named(tmp_path, name: str):
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": GRAPHS}))
    with capture_logs() as logged:
        load_config(tmp_path / "langgraph.json", {name: "langgraph.json", "HOME": "/root"})

    assert [(line["event"], line["variable"]) for line in logged] == [("a variable is ignored", name)]


def test_keys_with_their_default_values_are_accepted(tmp_path):
    read_config(
        tmp_path, auth=None, webhooks={}, http={"app": None, "disable_mcp": False}, checkpointer={"backend": "default"}
    )


def test_what_is_encrypted_and_what_checkpoints_may_hold_is_read(tmp_path):
    serde = {"allowed_msgpack_modules": [["a.b", "C"]], "allowed_json_modules": None, "pickle_fallback": True}
    config = read_config(tmp_path, encryption={"path": "./e.py:e"}, checkpointer={"serde": serde})
    assert config.encryption.path == "./e.py:e"
    assert config.serde == SerdeConfig(allowed_msgpack_modules=[["a.b", "C"]], pickle_fallback=True)
    assert read_config(tmp_path).serde == SerdeConfig(allowed_msgpack_modules=True, pickle_fallback=False)


def test_the_http_section_is_read(tmp_path):
    cors = {"allow_origins": ["https://a.example"], "allow_credentials": True, "max_age": 5}
    http = read_config(tmp_path, http={"cors": cors, "mount_prefix": "/my/api", "disable_threads": True}).http
    assert http.cors == CorsRules(allow_origins=["https://a.example"], allow_credentials=True, max_age=5)
    assert (http.mount_prefix, http.disable_threads, http.disable_runs) == ("/my/api", True, False)
    assert read_config(tmp_path, http={"cors": {}, "mount_prefix": "", "disable_ui": False}).http == HttpConfig()


@pytest.mark.parametrize(
    ("http", "named"),
    [
        ({"mount_prefix": "api"}, "http.mount_prefix"),
        ({"mount_prefix": "/api/"}, "http.mount_prefix"),
        ({"mount_prefix": "/a b"}, "http.mount_prefix"),
        ({"mount_prefix": "/{x}"}, "http.mount_prefix"),
        ({"disable_runs": "yes"}, "http.disable_runs"),
        ({"app": "web.py"}, "http.app"),
        ({"middleware_order": "last"}, "http.middleware_order"),
        ({"enable_custom_route_auth": "maybe"}, "http.enable_custom_route_auth"),
        ({"configurable_headers": {"includes": "x"}}, "http.configurable_headers.includes"),
        ({"logging_headers": {"only": []}}, "http.logging_headers"),
        ({"cors": {"allow_origin": ["x"]}}, "allow_origin"),
        ({"cors": {"allow_origin_regex": "("}}, "regular expression"),
        ({"cors": {"max_age": -1}}, "http.cors.max_age"),
    ],
)
def test_a_bad_http_section_is_named(tmp_path, http, named):
    assert named in refusal(tmp_path, http=http)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\n", "x" * 101])
def test_names_of_components_are_names_of_folders(tmp_path, name):
    assert ": ui: " in refusal(tmp_path, ui={name: "./ui.tsx"})
    assert read_config(tmp_path, ui={"my agent.2": "./ui.tsx"}).ui == {"my agent.2": "./ui.tsx"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("agent.py", "./agent.py:graph"),
        ("agent.py:", "./agent.py:graph"),
        (":graph", "./agent.py:graph"),
        ("agent.py:not a name", "./agent.py:graph"),
        ({"description": "no path"}, "missing required field `path`"),
        ({"path": 3}, "`graphs.agent.path`"),
        (3, "graphs.agent"),
    ],
)
def test_a_bad_graph_entry_is_named(tmp_path, entry, said):
    message = refusal(tmp_path, graphs={"agent": entry})
    assert "graphs.agent" in message
    assert said in message


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ("./agent.ts", "./agent.ts:default"),
        ("./agent.mjs:default", "./agent.mjs:default"),
        ("./agent.cts:$agent1", "./agent.cts:$agent1"),
        ({"path": "./agent.js:graph"}, "./agent.js:graph"),
    ],
)
def test_javascript_export_is_named_or_default(tmp_path, entry, path):
    config = read_config(tmp_path, graphs={"agent": entry})
    assert config.graphs["agent"].path == path


def test_javascript_export_must_be_a_name(tmp_path):
    said = refusal(tmp_path, graphs={"agent": "./agent.ts:a graph"})
    assert 'graphs.agent is "./agent.ts:a graph"; it must name a file and an export of it' in said


def test_each_language_has_its_graphs(tmp_path):
    graphs = {"a": "./a.py:graph", "b": "./b.ts:graph", "c": "package.module:graph", "d": "./d.mjs:make"}
    config = read_config(tmp_path, graphs=graphs)
    assert (list(config.project.graphs), list(config.javascript.graphs)) == (["a", "c"], ["b", "d"])


def test_encryption_in_javascript_is_refused(tmp_path):
    message = refusal(tmp_path, encryption={"path": "./handlers.ts:handler"})
    assert "encryption.path" in message
    assert "write the handlers in Python" in message


@pytest.mark.parametrize(("given", "location"), [("./web.mts:api", "./web.mts:api"), ("./web.ts", "./web.ts:default")])
def test_handlers_in_javascript_name_an_export(tmp_path, given, location):
    config = read_config(tmp_path, auth={"path": given}, http={"app": given})
    assert (config.auth.path, config.http.app, config.has_javascript) == (location, location, True)
    assert "auth.path" in refusal(tmp_path, auth={"path": "./web.ts:an export"})
    assert not read_config(tmp_path, auth={"path": "./web.py:auth"}).has_javascript


@pytest.mark.parametrize("graphs", [None, {}, [], "agent.py:graph"])
def test_graphs_are_needed(tmp_path, graphs):
    assert '"graphs" must name at least one graph' in refusal(tmp_path, graphs=graphs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "graphs": {,}\n}', "line 2, column 14"),
        ("[]", "must be a JSON object"),
        ('{"graphs": {"a": "a.py:g"}, "dependencies": "x"}', "dependencies"),
        ('{"graphs": {"a": "a.py:g"}, "env": ["x"]}', "env"),
        ('{"graphs": {" ": "a.py:g"}}', "with an empty name"),
    ],
)
def test_a_broken_file_is_described(tmp_path, text, said):
    file = tmp_path / "graph.json"
    file.write_text(text)
    with pytest.raises(UserMistake) as caught:
        load_config(file)

    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_or_binary_file_is_described(tmp_path):
    with pytest.raises(UserMistake, match="cannot be read"):
        load_config(tmp_path / "graph.json")

    (tmp_path / "graph.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserMistake, match="not UTF-8"):
        load_config(tmp_path / "graph.json")


def test_a_byte_order_mark_is_no_problem(tmp_path):
    (tmp_path / "graph.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"graphs": GRAPHS}).encode())
    assert load_config(tmp_path / "graph.json").graphs["agent"].path == "./agent.py:graph"


def test_lifetimes_and_the_index_of_the_store_are_read(tmp_path):
    config = read_config(
        tmp_path,
        checkpointer={"ttl": {"strategy": "keep_latest", "default_ttl": 60}},
        store={"index": {"embed": "./embed.py:embed", "dims": 3}, "ttl": {"default_ttl": 5}},
    )

    assert (config.thread_ttl.strategy, config.thread_ttl.default_ttl) == ("keep_latest", 60)
    assert config.store.index is not None
    assert (config.store.index.dims, config.store.index.fields) == (3, ["$"])
    assert config.store.ttl is not None
    assert config.store.ttl.refresh_on_read


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("checkpointer", {"ttl": {"strategy": "burn"}}),
        ("checkpointer", {"ttl": {"default_ttl": 1e12}}),
        ("store", {"ttl": {"default_ttl": 1e12}}),
        ("store", {"index": {"embed": "./embed.py:embed"}}),
        ("store", {"ttl": {"default_ttl": -1}}),
    ],
)
def test_lifetimes_and_indexes_without_sense_are_refused(tmp_path, section, value):
    assert section in refusal(tmp_path, **{section: value})


def test_the_environment_of_an_image_brings_sections_along(tmp_path):
    (tmp_path / "langgraph.json").write_text(
        json.dumps({"graphs": GRAPHS, "http": {"disable_store": True}, "store": {"ttl": {"default_ttl": 5}}})
    )

    environ = {
        "LANGSERVE_GRAPHS": '{"agent": "/deps/agent/src/agent.py:graph"}',
        "LANGGRAPH_HTTP": '{"mount_prefix": "/mine"}',
        "LANGGRAPH_CHECKPOINTER": '{"ttl": {"default_ttl": 7}}',
        "LANGGRAPH_STORE": "null",
        "LANGGRAPH_AUTH": "",
        "LANGGRAPH_UI": "{}",
    }

    config = load_config(tmp_path / "langgraph.json", environ)
    assert config.graphs == {"agent": GraphSource("/deps/agent/src/agent.py:graph")}
    assert config.http == HttpConfig(mount_prefix="/mine"), "a section replaces the file's"
    assert config.thread_ttl.default_ttl == 7
    assert config.store.ttl is not None
    assert config.store.ttl.default_ttl == 5
    assert load_config(tmp_path / "langgraph.json").http == HttpConfig(disable_store=True)


def test_an_image_needs_no_file(tmp_path):
    environ = {"LANGSERVE_GRAPHS": '{"agent": {"path": "./agent.py:graph", "description": "Helps"}}'}
    config = load_config(find_config(tmp_path, environ), environ)
    assert (config.folder, config.graphs) == (tmp_path, {"agent": GraphSource("./agent.py:graph", "Helps")})
    (tmp_path / "langgraph.json").write_text("{}")
    assert find_config(tmp_path, environ).name == "langgraph.json"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LANGGRAPH_HTTP", "{", "LANGGRAPH_HTTP is not valid JSON"),
        ("LANGGRAPH_HTTP", '{"disable_x": true}', "LANGGRAPH_HTTP: unknown key http.disable_x"),
        ("LANGGRAPH_AUTH", '{"paths": "a.py:auth"}', "LANGGRAPH_AUTH: unknown key auth.paths"),
        ("LANGGRAPH_ENCRYPTION", '{"keys": 1}', "LANGGRAPH_ENCRYPTION: unknown key encryption.keys"),
        ("LANGGRAPH_CHECKPOINTER", '{"serde": {"pickle": true}}', "LANGGRAPH_CHECKPOINTER: checkpointer.serde"),
        ("LANGGRAPH_WEBHOOKS", '{"url": {}, "header": {"a": "b"}}', "LANGGRAPH_WEBHOOKS: unknown key webhooks.header"),
        ("LANGGRAPH_STORE", '{"ttl": {"default_ttl": -1}}', "LANGGRAPH_STORE: store"),
        ("LANGSERVE_GRAPHS", "{}", 'LANGSERVE_GRAPHS: "graphs" must name'),
    ],
)
def test_invalid_variables_are_refused_by_name(tmp_path, name: str, value: str, says: str):
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": GRAPHS}))
    with pytest.raises(UserMistake) as caught:
        load_config(tmp_path / "langgraph.json", {name: value})

    assert str(caught.value).startswith(says)
