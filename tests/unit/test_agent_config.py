"""Reading the graph configuration file."""

import json
from pathlib import Path
from typing import Any

import pytest

from portside.agent.config import AgentConfig, GraphSource, HttpConfig, find_config, load_config
from portside.agent.types.encryption import SerdeConfig
from portside.kernel.errors import UserMistake
from portside.kernel.http.cors import CorsRules

GRAPHS = {"agent": "./agent.py:graph"}


def read(folder: Path, **keys: Any) -> AgentConfig:
    file = folder / "langgraph.json"
    file.write_text(json.dumps({"graphs": GRAPHS, **keys}))
    return load_config(file)


def refusal(folder: Path, **keys: Any) -> str:
    with pytest.raises(UserMistake) as caught:
        read(folder, **keys)
    message = str(caught.value)
    assert message.startswith(str(folder / "langgraph.json"))
    return message


def test_a_whole_file(tmp_path):
    config = read(
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
    assert read(tmp_path, env=".env").env == {"KEY": "a b", "EMPTY": "", "OTHER": "x"}
    assert 'env is "missing.env"' in refusal(tmp_path, env="missing.env")


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
        ("priority", {"path": "./p.py:p"}, "priority.path"),
        ("http", {"something": "./app.py:app"}, "http.something"),
        ("checkpointer", {"path": "./c.py:c"}, "checkpointer.path"),
        ("checkpointer", {"backend": "mongo"}, "checkpointer.backend"),
        ("webhooks", {"retries": 3}, "webhooks.retries"),
        ("ui", {"agent": "./ui.tsx"}, "ui.agent"),
        ("auth", "./auth.py:auth", "auth"),
    ],
)
def test_what_the_server_would_have_to_act_on_is_refused(tmp_path, key, value, named):
    assert f"{named} cannot be honoured" in refusal(tmp_path, **{key: value})


def test_settings_that_say_what_holds_anyway_are_accepted(tmp_path):
    read(
        tmp_path, auth=None, webhooks={}, http={"app": None, "disable_mcp": False}, checkpointer={"backend": "default"}
    )


def test_what_is_encrypted_and_what_checkpoints_may_hold_is_read(tmp_path):
    serde = {"allowed_msgpack_modules": [["a.b", "C"]], "allowed_json_modules": None, "pickle_fallback": True}
    config = read(tmp_path, encryption={"path": "./e.py:e"}, checkpointer={"serde": serde})
    assert config.encryption.path == "./e.py:e"
    assert config.serde == SerdeConfig(allowed_msgpack_modules=[["a.b", "C"]], pickle_fallback=True)
    assert read(tmp_path).serde == SerdeConfig(allowed_msgpack_modules=True, pickle_fallback=False)


def test_the_http_section_is_read(tmp_path):
    cors = {"allow_origins": ["https://a.example"], "allow_credentials": True, "max_age": 5}
    http = read(tmp_path, http={"cors": cors, "mount_prefix": "/my/api", "disable_threads": True}).http
    assert http.cors == CorsRules(allow_origins=["https://a.example"], allow_credentials=True, max_age=5)
    assert (http.mount_prefix, http.disable_threads, http.disable_runs) == ("/my/api", True, False)
    assert read(tmp_path, http={"cors": {}, "mount_prefix": "", "disable_ui": True}).http == HttpConfig()


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


def test_what_only_a_build_reads_and_what_nobody_knows_is_skipped(tmp_path):
    read(tmp_path, base_image="x", dockerfile_lines=["RUN x"], pip_config_file="p", python_version="3.12", colour="red")


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
        ("./agent.ts:graph", "JavaScript"),
    ],
)
def test_a_bad_graph_entry_is_named(tmp_path, entry, said):
    message = refusal(tmp_path, graphs={"agent": entry})
    assert "graphs.agent" in message
    assert said in message


@pytest.mark.parametrize("graphs", [None, {}, [], "agent.py:graph"])
def test_graphs_are_needed(tmp_path, graphs):
    assert '"graphs" must name at least one graph' in refusal(tmp_path, graphs=graphs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "graphs": {,}\n}', "line 2, column 14"),
        ("[]", "must hold a JSON object"),
        ('{"graphs": {"a": "a.py:g"}, "dependencies": "x"}', "dependencies"),
        ('{"graphs": {"a": "a.py:g"}, "env": ["x"]}', "env"),
        ('{"graphs": {" ": "a.py:g"}}', "without a name"),
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
    config = read(
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
        ("LANGGRAPH_HTTP", '{"something": 1}', "LANGGRAPH_HTTP: http.something cannot be honoured"),
        ("LANGGRAPH_AUTH", '{"paths": "./auth.py:auth"}', "LANGGRAPH_AUTH: auth.paths cannot be honoured"),
        ("LANGGRAPH_ENCRYPTION", '{"keys": 1}', "LANGGRAPH_ENCRYPTION: encryption.keys cannot"),
        ("LANGGRAPH_CHECKPOINTER", '{"serde": {"pickle": true}}', "LANGGRAPH_CHECKPOINTER: checkpointer.serde"),
        ("LANGGRAPH_WEBHOOKS", '{"url": {}, "header": {"a": "b"}}', "LANGGRAPH_WEBHOOKS: webhooks.header cannot"),
        ("LANGGRAPH_CHECKPOINTER", '{"backend": "mongo"}', "LANGGRAPH_CHECKPOINTER: checkpointer.backend cannot"),
        ("LANGGRAPH_STORE", '{"ttl": {"default_ttl": -1}}', "LANGGRAPH_STORE: store"),
        ("LANGSERVE_GRAPHS", "{}", 'LANGSERVE_GRAPHS: "graphs" must name'),
        ("GRAPH_PRIORITY", '{"path": "./p.py:p"}', "GRAPH_PRIORITY: priority.path cannot"),
    ],
)
def test_what_the_environment_asks_in_vain_is_refused_by_name(tmp_path, name: str, value: str, says: str):
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": GRAPHS}))
    with pytest.raises(UserMistake) as caught:
        load_config(tmp_path / "langgraph.json", {name: value})
    assert str(caught.value).startswith(says)
