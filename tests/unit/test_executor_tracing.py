"""The trace of a run shows its input, also where an attempt continues from a checkpoint without one."""

from typing import Any
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableLambda

from portside.executor.tracer import build_tracer


class Recorder:
    """Stands for the tracing client of the project's libraries."""

    tracing_queue = None

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []

    def create_run(self, **run: Any) -> None:
        self.posted.append(run)

    def update_run(self, **_run: Any) -> None:
        """Ends of runs are not looked at."""


@pytest.mark.parametrize("given", [{"a": 1}, "text"])
def test_the_root_of_a_continued_attempt_has_the_input_of_the_run(given: Any):
    client = Recorder()
    tracer = build_tracer(given, {"client": client, "project_name": "p"})
    chain = RunnableLambda(lambda _none: {"b": 2}).with_config(run_name="root") | RunnableLambda(lambda state: state)
    run_id = uuid4()

    chain.invoke(None, {"callbacks": [tracer], "run_id": run_id, "metadata": {"m": 1}})
    root, *children = client.posted
    assert (root["id"], root["inputs"]) == (run_id, given if isinstance(given, dict) else {"input": given})
    assert [child["inputs"] for child in children] == [{"input": None}, {"b": 2}]


def test_a_copied_tracer_keeps_the_input():
    tracer = build_tracer({"a": 1}, {"client": Recorder()})
    copied = type(tracer)(client=tracer.client)
    copied.on_chain_start({}, None, run_id=uuid4())
    assert [run.inputs for run in copied.run_map.values()] == [{"a": 1}]
