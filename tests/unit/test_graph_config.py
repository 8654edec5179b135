"""What is said of a graph configuration file that cannot be read, and of keys that nobody knows."""

from pathlib import Path

import pytest

from portside.agent import config as agent_config
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import (
    CONFIG_KEYS,
    find_configs,
    find_misspelt_keys,
    missing_graphs,
    parse_config,
    with_paths_from_above,
)
from portside.kernel.spelling import did_you_mean, find_nearest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"graphs": {"a": "a.py:g",}}', r"line 1, column \d+\); remove the comma after the last entry"),
        ('{"dependencies": [\n  ".",\n]}', r"line [23], column \d+\); remove the comma after the last entry"),
        ('{\n  // the agent\n  "graphs": {}\n}', r"line 2, column 3\); JSON has no comments: remove it"),
        ('{\n  "graphs" {}\n}', r'line 2, column 12\): "graphs" \{\}'),
        ("{'graphs': {}}", r"line 1, column 2\): \{'graphs': \{\}\}"),
        ("[]", "must be a JSON object such as"),
        ('{"a": ' * 100_000, "nested too deeply|line 1"),
    ],
)
def test_mistakes_in_json_are_found_by_line_and_column(text: str, says: str):
    with pytest.raises(UserMistake, match=f"^langgraph.json .*{says}"):
        parse_config(text, "langgraph.json")


def test_byte_order_marks_are_no_mistake_and_other_encodings_are():
    assert parse_config(b'\xef\xbb\xbf{"graphs": {}}', "x") == {"graphs": {}}
    with pytest.raises(UserMistake, match="x is not UTF-8 text"):
        parse_config(b'{"graphs": "\xff"}', "x")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("graph", "graphs"),
        ("Graphs", "graphs"),
        ("dependancies", "dependencies"),
        ("dependency", "dependencies"),
        ("python", "python_version"),
        ("python-version", "python_version"),
        ("web_hooks", "webhooks"),
    ],
)
def test_misspelt_keys_have_the_nearest_known_one(key: str, meant: str):
    assert find_misspelt_keys({key: 1}) == {key: meant}


def test_keys_of_others_and_keys_beside_the_right_one_are_not_misspelt():
    assert find_misspelt_keys({"name": 1, "package_manager": "uv", "agents": {}, "port": 1}) == {}
    assert find_misspelt_keys({"graph": 1, "graphs": 1}) == {}


def test_missing_graphs_name_the_key_that_was_written_instead():
    assert missing_graphs({"graph": {}}, "f").startswith('f: there is a key "graph", which must be "graphs"')
    assert missing_graphs({"graphs": []}, "f").startswith('f: "graphs" must name at least one graph')


def test_names_without_similar_ones_suggest_nothing():
    assert find_nearest("xyz", CONFIG_KEYS) is None
    assert did_you_mean("xyz", CONFIG_KEYS) == ""
    assert did_you_mean("deployment:read", {"deployments:read"}) == "; did you mean 'deployments:read'?"


def test_every_key_that_the_server_reads_or_ignores_is_known():
    ignored = {key for key in agent_config._IGNORED if "." not in key}
    sections = {key for key in agent_config._KEYS if "." not in key}
    assert agent_config._READ | sections | ignored == CONFIG_KEYS


def test_configuration_files_are_found_near_the_top(tmp_path):
    for name in ("apps/one/langgraph.json", "graph.json", "node_modules/x/langgraph.json", "a/b/c/langgraph.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")

    assert find_configs(tmp_path) == ["graph.json", "apps/one/langgraph.json"]


def test_a_path_counts_from_the_folder_of_the_file_or_else_from_one_above(tmp_path: Path):
    sub = tmp_path / "top" / "sub"

    for name in ("sub/agent.ts", "sub/both.ts", "both.ts", "lib/x", "requirements.txt", "cards.tsx", "auth.ts"):
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).touch()

    (tmp_path / "outside.ts").touch()
    content = {
        "graphs": {
            "above": "./sub/agent.ts:graph",
            "own": {"path": "both.ts:graph"},
            "python": "./sub/agent.py:graph",
            "outside": "./outside.ts",
        },
        "dependencies": [".", "./lib", "./requirements.txt", "./gone", "httpx"],
        "ui": {"agent": "cards.tsx"},
        "auth": {"path": "./auth.ts:auth"},
    }

    assert with_paths_from_above(content, sub, tmp_path / "top") == {
        "graphs": {
            "above": "./agent.ts:graph",
            "own": {"path": "both.ts:graph"},
            "python": "./sub/agent.py:graph",
            "outside": "./outside.ts",
        },
        "dependencies": [".", "../lib", "../requirements.txt", "./gone", "httpx"],
        "ui": {"agent": "../cards.tsx"},
        "auth": {"path": "../auth.ts:auth"},
    }


def test_the_env_file_may_be_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sub").mkdir()
    config = tmp_path / "sub" / "langgraph.json"
    config.write_text('{"graphs": {"a": "./a.py:graph"}, "env": ".env"}')
    (tmp_path / ".env").write_text("FROM=above")
    assert agent_config.load_config(config).env == {}
    monkeypatch.chdir(tmp_path)
    assert agent_config.load_config(config).env == {"FROM": "above"}

    (tmp_path / "sub" / ".env").write_text("FROM=beside")
    assert agent_config.load_config(config).env == {"FROM": "beside"}
