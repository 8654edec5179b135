"""Loading the graphs of a project: every form an export may take, and messages a user can act on."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import structlog
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from portside.agent.config import load_config
from portside.executor import imports
from portside.executor.load import Graphs, load_graphs
from portside.executor.requests import GraphFacts
from portside.kernel.errors import NotFound, UserMistake
from portside.kernel.logs import configure_logs, listen_to_logs

GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    text: str

def make(text):
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"text": text})
    builder.add_edge(START, "node")
    return builder
"""

Project = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Write a project; what loading it did to this process is undone."""
    modules = set(sys.modules)
    path = list(sys.path)
    environ = dict(os.environ)

    def write(files: dict[str, str], **config: Any) -> Path:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))

        (tmp_path / "langgraph.json").write_text(json.dumps(config))
        return tmp_path / "langgraph.json"

    yield write

    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(
            getattr(sys.modules[name], "__file__", "") or getattr(sys.modules[name], "__path__", "")
        ):
            del sys.modules[name]

    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environ)


def load(file: Path) -> Graphs:
    return load_graphs(load_config(file).project)


def refusal(file: Path) -> str:
    with pytest.raises(UserMistake) as caught:
        load(file)
    return str(caught.value)


async def run_graph(graphs: Graphs, graph_id: str = "agent", **options: Any) -> Any:
    async with graphs.open(graph_id, {"configurable": {"thread_id": "t", "tone": "kind"}}, **options) as graph:
        return (await graph.ainvoke({}, {"configurable": {"thread_id": "t"}}))["text"]


@pytest.mark.parametrize(
    ("export", "said"),
    [
        ("graph = make('compiled').compile()", "compiled"),
        ("graph = make('builder')", "builder"),
        ("def graph(): return make('function').compile()", "function"),
        ("def graph(config): return make(config['configurable']['tone'])", "kind"),
        ("def graph(settings): return make(settings['configurable']['tone'])", "kind"),
        (
            "async def graph(config: RunnableConfig): return make('async ' + config['configurable']['tone'])",
            "async kind",
        ),
        ("def graph(config, flag=True): return make(str(flag))", "True"),
        ("@asynccontextmanager\nasync def graph(config):\n    yield make('managed')", "managed"),
        ("@contextmanager\ndef graph():\n    yield make('plainly managed')", "plainly managed"),
        ("class Maker:\n    def __call__(self, config): return make('object')\ngraph = Maker()", "object"),
    ],
)
async def test_every_form_of_export(project, export, said):
    prelude = """
from contextlib import asynccontextmanager, contextmanager
from langchain_core.runnables import RunnableConfig
"""

    file = project({"agent.py": GRAPH + prelude + export}, graphs={"agent": "./agent.py:graph"})
    assert await run_graph(load(file)) == said


@pytest.mark.needs("langgraph-sdk", "0.3.5")
@pytest.mark.parametrize(
    ("export", "said"),
    [
        ("def graph(runtime): return make(runtime.access_context)", "threads.create_run"),
        ("def graph(r: ServerRuntime): return make(r.execution_runtime.context['who'])", "me"),
        ("def graph(r: ServerRuntime[Context]): return make(r.context.who)", "me"),
        ("def graph(c: RunnableConfig, r: 'ServerRuntime'): return make(r.access_context)", "threads.create_run"),
    ],
)
async def test_every_way_to_ask_for_the_runtime(project, export, said):
    prelude = """
from dataclasses import dataclass
from langchain_core.runnables import RunnableConfig
from langgraph_sdk.runtime import ServerRuntime

@dataclass
class Context:
    who: str = "nobody"
"""

    file = project({"agent.py": GRAPH + prelude + export}, graphs={"agent": "./agent.py:graph"})
    assert await run_graph(load(file), context={"who": "me", "unknown": 1}) == said


async def test_an_entrypoint(project):
    code = """
    from langgraph.func import entrypoint
    @entrypoint()
    async def work(number):
        return number + 1
    """

    graphs = load(project({"agent.py": code}, graphs={"agent": "./agent.py:work"}))
    async with graphs.open("agent") as graph:
        assert await graph.ainvoke(1) == 2


@pytest.mark.needs("langgraph-sdk", "0.3.5")
async def test_factory_gets_the_purpose_and_is_closed(project):
    code = (
        GRAPH
        + """
from contextlib import asynccontextmanager

seen = []

@asynccontextmanager
async def graph(runtime):
    seen.append((runtime.access_context, runtime.execution_runtime is None, runtime.store))
    yield make('x')
    seen.append('closed')
"""
    )

    store = InMemoryStore()
    graphs = load(project({"watched.py": code}, graphs={"agent": "./watched.py:graph"})).attach(InMemorySaver(), store)
    async with graphs.open("agent", access="threads.read") as graph:
        assert isinstance(graph.checkpointer, InMemorySaver)
        assert graph.store is store

    assert sys.modules["watched"].seen == [("threads.read", True, store), "closed"]


async def test_attaching_prepares_once_and_leaves_the_original_alone(project):
    file = project(
        {
            "agent.py": GRAPH + "from langgraph.checkpoint.memory import InMemorySaver\n"
            "graph = make('x').compile(checkpointer=InMemorySaver())"
        },
        graphs={"agent": {"path": "./agent.py:graph", "description": "Says x"}},
    )

    graphs = load(file)
    saver = InMemorySaver()
    attached = graphs.attach(saver)
    async with attached.open("agent") as one, attached.open("agent") as two, graphs.open("agent") as original:
        assert one is two is not original
        assert one.checkpointer is saver is not original.checkpointer
        assert one.name == "agent"

    assert attached.facts() == {"agent": GraphFacts("Says x", is_fixed=True)}
    with pytest.raises(NotFound, match=r"Graph 'x' not found. Expected one of: \['agent'\]"):
        attached.open("x")


async def test_packages_modules_and_source_folders(project):
    file = project(
        {
            "src/pkg/__init__.py": "",
            "src/pkg/tools.py": "TEXT = 'relative'",
            "src/pkg/agent.py": GRAPH + "from .tools import TEXT\nfrom pkg.tools import TEXT as SAME\n"
            "assert TEXT is SAME\ngraph = make(TEXT)",
            "agents/first/agent.py": GRAPH + "from agents.shared import TEXT\ngraph = make(TEXT + ' first')",
            "agents/second/agent.py": GRAPH + "from agents.shared import TEXT\ngraph = make(TEXT + ' second')",
            "agents/shared.py": "TEXT = 'shared'",
            "lib/helper.py": GRAPH + "graph = make('from a dependency')",
            "json.py": GRAPH + "graph = make('named like the standard library')",
        },
        dependencies=[".", "./lib", "requests"],
        graphs={
            "file": "./src/pkg/agent.py:graph",
            "module": "pkg.agent:graph",
            "first": "./agents/first/agent.py:graph",
            "second": "agents/second/agent.py:graph",
            "lib": "helper:graph",
            "json": "./json.py:graph",
        },
    )

    graphs = load(file)
    async with graphs.open("file") as one, graphs.open("module") as two:
        assert one.builder is two.builder

    assert [await run_graph(graphs, graph_id) for graph_id in graphs.list_ids()] == [
        "relative",
        "relative",
        "shared first",
        "shared second",
        "from a dependency",
        "named like the standard library",
    ]

    assert json.dumps({}) == "{}"


def test_the_environment_is_there_before_the_code_and_does_not_override_the_servers(project, monkeypatch):
    monkeypatch.setenv("FROM_SERVER", "server")
    code = "import os\nassert os.environ['FROM_FILE'] == 'file'\nassert os.environ['FROM_SERVER'] == 'server'\n"
    load(
        project(
            {"agent.py": GRAPH + code + "graph = make('x')"},
            graphs={"agent": "./agent.py:graph"},
            env={"FROM_FILE": "file", "FROM_SERVER": "file"},
        )
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nimport missing", "No module named 'missing' (agent.py, line 2: import missing); add the package"),
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero (agent.py, line 2: return 1 / 0)"),
        ("x = (\n", "SyntaxError: '(' was never closed (agent.py, line 1: x = ()"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (agent.py, line 2: sys.exit(3))"),
        ("raise KeyError", "KeyError (agent.py, line 1: raise KeyError)"),
        ("from langgraph.graph import StateGraph\ngraph = StateGraph(dict)", "does not load: ValueError: "),
        ("def graph(config, database): ...", "but this one has database"),
        ("graph = 3", "is of type int; export a compiled graph"),
        ("from os import getcwd\ndef make_graph(): ...\nx = 1\n_y = 1", "has no 'graph'; it defines make_graph, x"),
        ("", "it defines nothing that could be a graph"),
    ],
)
def test_a_failure_names_the_graph_the_line_and_the_remedy(project, code, said):
    message = refusal(project({"agent.py": code}, graphs={"agent": "./agent.py:graph"}))
    assert "graph 'agent'" in message
    assert said in message


SETTINGS = """
import logging
import os
from pydantic import Field
from pydantic_settings import BaseSettings
os.environ["APP_OTHER"] = "a-value-that-is-secret"
class Settings(BaseSettings, env_prefix="app_"):
    other: str
    model_key: str
    search: str = Field(validation_alias="SEARCH_URL")
Settings()
"""
OPENAI = (
    "The api_key client option must be set either by passing api_key to the client or by setting the "
    "OPENAI_API_KEY environment variable"
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nos.environ['MODEL_KEY']", "MODEL_KEY is not set: deploy with --secret MODEL_KEY=…, "),
        (SETTINGS, "APP_MODEL_KEY, SEARCH_URL are not set: deploy with --secret APP_MODEL_KEY=… --secret SEARCH_URL=…"),
        (f"raise ValueError({OPENAI!r})", "OPENAI_API_KEY is not set: deploy with --secret OPENAI_API_KEY=…"),
        ("raise ValueError('GROQ_API_KEY not set')", "GROQ_API_KEY is not set: deploy with --secret GROQ_API_KEY=…"),
        (
            "import os\ntry:\n    os.environ['INNER_KEY']\nexcept KeyError:\n    raise RuntimeError('no key')",
            "INNER_KEY is not set: deploy with --secret INNER_KEY=…",
        ),
    ],
    ids=["environ", "settings", "provider", "words", "cause"],
)
def test_a_missing_variable_is_named_with_the_option_that_sets_it(project, monkeypatch, code, said):
    for name in ("MODEL_KEY", "OPENAI_API_KEY", "GROQ_API_KEY", "INNER_KEY"):
        monkeypatch.delenv(name, raising=False)

    message = refusal(project({"agent.py": code}, graphs={"agent": "./agent.py:graph"}))
    assert said in message
    assert "a-value-that-is-secret" not in message


def test_a_missing_package_is_explained_by_what_builds_read(project):
    config = project({"src/bot.py": "import missing"}, dependencies=["./src"], graphs={"agent": "./src/bot.py:graph"})
    assert 'the dependency "./src" has no requirements.txt and no pyproject.toml' in refusal(config)
    project({"src/pyproject.toml": "[tool.poetry]\n"}, dependencies=["./src"], graphs={"agent": "./src/bot.py:graph"})
    assert 'add [build-system] with requires = ["poetry-core"]' in refusal(config)


@pytest.mark.parametrize(
    "code", ["{}['MODEL_KEY']", "raise ValueError('GRAPH_RECURSION_LIMIT is missing')", "import os\nos.environ[3]"]
)
def test_other_failures_name_no_variable(project, code):
    assert "--secret" not in refusal(project({"agent.py": code}, graphs={"agent": "./agent.py:graph"}))


@pytest.fixture
def log_configuration() -> Iterator[None]:
    """Configure the logs as a server does, for one test: loggers keep nothing of it for the tests after it."""
    before = structlog.get_config()
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level

    configure_logs()
    structlog.configure(cache_logger_on_first_use=False)
    yield
    structlog.configure(**before)

    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("log_configuration")
def test_an_import_that_hangs_is_logged_with_its_stack(project, monkeypatch):
    """The graph goes on once the log has named it, so that the test waits for nothing else."""
    monkeypatch.setattr(imports, "SLOW_AFTER_S", 0.01)
    released = threading.Event()
    reported = []
    monkeypatch.setattr(sys, "released_by_test", released, raising=False)

    def hear(event: Mapping[str, Any]) -> None:
        if "is still importing" in event["event"] and "in hang" in event["stack"]:
            reported.append(dict(event))
            released.set()

    code = "import sys\ndef hang():\n    assert sys.released_by_test.wait(60)\nhang()\n"
    with listen_to_logs(hear):
        load(project({"agent.py": code + GRAPH + "graph = make('x')"}, graphs={"agent": "./agent.py:graph"}))

    assert "graph 'agent' (./agent.py:graph) is still importing after" in reported[0]["event"]
    assert "(agent.py, line 3: assert sys.released_by_test.wait(60))" in reported[0]["event"]
    assert 'agent.py", line 4, in <module>\n      hang()' in reported[0]["stack"]
    assert reported[0]["stack"].lstrip().startswith("File "), "it begins with the project's own frames"
    assert reported[0]["stack"].count("File ") <= 3
    assert reported[0]["level"] == "warning"


def test_a_folder_may_have_the_name_of_an_installed_package(project):
    """Python prefers a package with an `__init__.py`, wherever it is, to a folder without one."""
    files = {"httpx2/bot.py": "import httpx2\nhttpx2.AsyncClient\n" + GRAPH + "graph = make('x')\n"}
    assert load(project(files, graphs={"agent": "./httpx2/bot.py:graph"})).list_ids() == ["agent"]


def test_paths_may_be_those_from_the_folder_above(project, tmp_path):
    files = {"sub/agent.py": "from sub.helper import X\n" + GRAPH + "graph = make(X)\n", "sub/helper.py": "X = 'x'\n"}
    config = project(files, graphs={"agent": "./sub/agent.py:graph"})
    assert load(config.rename(tmp_path / "sub" / "langgraph.json")).list_ids() == ["agent"]


def test_files_and_modules_that_are_not_there(project):
    assert "does not exist" in refusal(project({}, graphs={"agent": "./agent.py:graph"}))
    assert "No module named 'nowhere'" in refusal(project({}, graphs={"agent": "nowhere.agent:graph"}))
    message = refusal(project({}, graphs={"agent": "x:graph"}, dependencies=["./gone"]))
    assert 'dependencies names "./gone"' in message


def test_a_dependency_may_name_a_file_of_its_folder(project):
    files = {
        "lib/pyproject.toml": "",
        "lib/helper.py": "X = 1\n",
        "agent.py": "import helper\n" + GRAPH + "graph = make('x')\n",
    }

    config = project(files, graphs={"agent": "./agent.py:graph"}, dependencies=["./lib/pyproject.toml", "", "httpx"])
    assert load(config).list_ids() == ["agent"]


async def test_a_factory_that_returns_no_graph(project):
    graphs = load(project({"agent.py": "def graph(): return 3"}, graphs={"agent": "./agent.py:graph"}))
    with pytest.raises(TypeError, match="returned a value of type int, not a graph"):
        await run_graph(graphs)
