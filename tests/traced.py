"""Traces as agents send them, with the stock client, for the tests of the pages and for looking at them.

python -m tests.traced URL KEY      conversations, a hostile run and a trace of 10,000 spans
"""

import random
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from langchain_core.tracers import LangChainTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langsmith import Client, evaluate
from langsmith.run_trees import RunTree
from langsmith.utils import get_env_var, get_tracer_project

NODES = ("plan", "research", "write")
MODEL = {"ls_model_name": "small-model-1", "ls_provider": "example"}
HOSTILE = "<script>window.hacked=1</script><svg onload='window.hacked=1'></svg><img src=x onerror='window.hacked=1'>"
MARKDOWN = (
    f"{HOSTILE}\n\n![pixel](http://192.0.2.1/pixel.png) [click](javascript:window.hacked=1)\n\n"
    "# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nlet x = 1;\n```"
)
ANSI = "\x1b[31mred\x1b[0m \x1b]8;;http://192.0.2.1\x07link\x1b]8;;\x07"
LARGE = "0123456789abcdef" * (5 * 1024 * 1024 // 16)


def forget_variables() -> None:
    """Let langsmith read its variables again: it reads each once in a process, and the name of the project apart."""
    get_env_var.cache_clear()
    get_tracer_project.cache_clear()


def open_tracing_client(url: str, key: str) -> Client:
    """A client that sends everything before `flush` returns."""
    return Client(api_url=url, api_key=key, auto_batch_tracing=True)


def send_turn(client: Client, project: str, thread: str, turn: int, **fields: Any) -> uuid.UUID:
    """Send one turn of a conversation: a graph with three nodes, each with a model, the second one with a tool."""
    start = datetime.now(UTC) - timedelta(minutes=30 - turn)
    question = f"Question {turn} about the weather in Lisbon?"
    answer = f"**Answer {turn}**: it is *sunny*, 24 °C."

    history = [
        message
        for each in range(1, turn)
        for message in (
            {"type": "human", "content": f"Question {each} about the weather in Lisbon?"},
            {"type": "ai", "content": f"**Answer {each}**: it is *sunny*, 24 °C."},
        )
    ]

    human = {"type": "human", "content": question}
    root = RunTree(
        name="weather agent",
        run_type="chain",
        inputs={"messages": [human]},
        project_name=project,
        ls_client=client,
        start_time=start,
        tags=["prod", f"turn-{turn}"],
        extra={"metadata": {"thread_id": thread, "user_id": f"user-{turn % 3}", "customer": "acme"}},
    )

    root.post()

    for number, node in enumerate(NODES):
        began = start + timedelta(milliseconds=50 + 700 * number)
        metadata = {"thread_id": thread, "langgraph_node": node, "langgraph_step": number + 1}
        step = root.create_child(
            name=node, run_type="chain", inputs={"messages": [human]}, start_time=began, extra={"metadata": metadata}
        )

        step.post()
        usage = {
            "input_tokens": 320 + 10 * turn,
            "output_tokens": 42,
            "total_tokens": 362 + 10 * turn,
            "total_cost": 0.0021,
        }

        model = step.create_child(
            name="ChatModel",
            run_type="llm",
            start_time=began + timedelta(milliseconds=20),
            inputs={"messages": [[{"role": "system", "content": "Answer."}, {"role": "user", "content": question}]]},
            extra={"metadata": {**metadata, **MODEL, "usage_metadata": usage}},
        )

        model.post()
        call = {"name": "get_weather", "args": {"city": "Lisbon"}, "id": "call-1"}
        text = {"role": "assistant", "content": "" if node == "research" else answer}

        model.end(
            outputs={"choices": [{"message": {**text, "tool_calls": [call] if node == "research" else []}}]},
            end_time=began + timedelta(milliseconds=480),
        )

        model.patch()

        if node == "research":
            tool = step.create_child(
                name="get_weather",
                run_type="tool",
                inputs={"city": "Lisbon"},
                start_time=began + timedelta(milliseconds=490),
            )

            tool.post()
            tool.end(outputs={"output": {"celsius": 24, "sky": "clear"}}, end_time=began + timedelta(milliseconds=640))
            tool.patch()

        step.end(
            outputs={"messages": [{"type": "ai", "content": answer}]}, end_time=began + timedelta(milliseconds=690)
        )
        step.patch()

    root.end(
        outputs=None if fields.get("error") else {"messages": [*history, human, {"type": "ai", "content": answer}]},
        end_time=start + timedelta(milliseconds=2200),
        **fields,
    )

    root.patch()
    return root.id


def send_question(client: Client, project: str) -> tuple[str, str]:
    """Run a graph that asks a person, answer it, and return the ids of the two traces."""

    def ask(_state: dict[str, str]) -> dict[str, str]:
        return {"city": interrupt({"question": "Which city?"})}

    def choose(_state: dict[str, str]) -> Command[str]:
        return Command(goto="thank", graph=Command.PARENT)

    asking = StateGraph(dict).add_node("ask", ask).add_edge(START, "ask").compile()
    choosing = StateGraph(dict).add_node("choose", choose).add_edge(START, "choose").compile()
    builder = StateGraph(dict).add_node("asking", asking).add_node("choosing", choosing)
    builder = builder.add_node("thank", lambda state: state).add_edge(START, "asking").add_edge("asking", "choosing")

    graph = builder.compile(checkpointer=InMemorySaver(), name="booking agent")
    traces: list[str] = []
    for given in ({"city": ""}, Command(resume="Lisbon")):
        tracer = LangChainTracer(project_name=project, client=client)
        graph.invoke(given, {"callbacks": [tracer], "configurable": {"thread_id": "booking"}})
        assert tracer.latest_run is not None
        traces.append(str(tracer.latest_run.id))

    client.flush()
    return traces[0], traces[1]


def send_hostile(client: Client, project: str) -> uuid.UUID:
    """Send a run whose data tries to run scripts, to call out, and to stop the page."""
    run = RunTree(
        name=f"hostile {HOSTILE}",
        run_type="chain",
        project_name=project,
        ls_client=client,
        tags=[HOSTILE],
        inputs={"messages": [{"role": "user", "content": MARKDOWN}], HOSTILE: HOSTILE, "ansi": ANSI},
        extra={"metadata": {HOSTILE: MARKDOWN}},
    )

    run.post()
    run.end(outputs={"large": LARGE, "text": MARKDOWN}, error=f"{ANSI}\nTraceback (most recent call last):\n{HOSTILE}")
    run.patch()

    return run.id


def large_trace(spans: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the runs of one trace as `POST /runs/batch` takes them; the first one is the root."""
    dice = random.Random(seed)
    start = datetime.now(UTC) - timedelta(minutes=10)
    root = uuid.UUID(int=dice.getrandbits(128), version=4)
    first = f"{start:%Y%m%dT%H%M%S%fZ}"
    places = [(root, f"{first}{root}", 0)]

    yield _span(root, root, places[0][1], None, "large agent", "chain", start, 600.0)

    for number in range(1, spans):
        parent, place, depth = dice.choice(places[-40:]) if number % 7 else places[0]
        run_id = uuid.UUID(int=dice.getrandbits(128), version=4)
        began = start + timedelta(seconds=590 * number / spans)
        here = f"{place}.{began:%Y%m%dT%H%M%S%fZ}{run_id}"
        kind = ("chain", "llm", "tool", "chain", "retriever")[number % 5]

        if depth < 8:
            places.append((run_id, here, depth + 1))

        yield _span(run_id, root, here, parent, f"{kind} {number}", kind, began, dice.random() * 8)


def _span(
    run_id: uuid.UUID,
    root: uuid.UUID,
    place: str,
    parent: uuid.UUID | None,
    name: str,
    kind: str,
    start: datetime,
    took: float,
) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, "total_cost": 0.0004}
    model = {"usage_metadata": usage, **MODEL} if kind == "llm" else {}
    return {
        "id": str(run_id),
        "trace_id": str(root),
        "dotted_order": place,
        "parent_run_id": parent and str(parent),
        "name": name,
        "run_type": kind,
        "start_time": start.isoformat(),
        "end_time": (start + timedelta(seconds=took)).isoformat(),
        "inputs": {"question": "What is the answer? " * 40, "of": name},
        "outputs": {"answer": "It is forty-two. " * 60},
        "extra": {"metadata": {"langgraph_node": f"node {kind}", **model}},
        "error": "It failed." if name.endswith("77") else None,
    }


def send_large(client: Client, project: str, spans: int) -> str:
    """Send a trace of many spans and return its id."""
    runs = [{**run, "session_name": project} for run in large_trace(spans)]
    for first in range(0, len(runs), 500):
        client.request_with_retries("POST", "/runs/batch", json={"post": runs[first : first + 500]})

    return str(runs[0]["id"])


def run_experiments(client: Client, name: str, examples: int = 6) -> str:
    """Create a dataset and two experiments on it, the second one worse on the last example; return its id."""
    dataset = client.create_dataset(name, description="Cities and their countries.")
    client.create_examples(
        dataset_id=dataset.id,
        examples=[
            {
                "inputs": {"question": f"Where is city {number}?"},
                "outputs": {"answer": f"In country {number}."},
                "split": "test" if number % 2 else "train",
            }
            for number in range(1, examples + 1)
        ],
    )

    def answer(inputs: dict[str, Any], *, is_worse: bool) -> dict[str, Any]:
        number = int(inputs["question"].removesuffix("?").split()[-1])
        is_wrong = number == examples if is_worse else number == 1
        return {"answer": HOSTILE if is_wrong else f"In country {number}."}

    def correct(outputs: dict[str, Any], reference_outputs: dict[str, Any]) -> bool:
        return outputs == reference_outputs

    for prefix, is_worse in (("first", False), ("second", True)):
        evaluate(
            partial(answer, is_worse=is_worse), data=name, evaluators=[correct], client=client, experiment_prefix=prefix
        )

    client.flush()
    return str(dataset.id)


def send_results(client: Client, name: str, examples: int) -> tuple[str, list[str]]:
    """Send two experiments on many examples, of which the last fails in the second one; return their ids."""
    dataset = client.create_dataset(name)
    ids = [uuid.UUID(int=number, version=4) for number in range(1, examples + 1)]
    for first in range(0, examples, 1000):
        some = [{"id": each, "inputs": {"q": f"Question {each.int & 0xFFFF}"}} for each in ids[first : first + 1000]]
        client.create_examples(dataset_id=dataset.id, examples=some)

    projects = [client.create_project(f"{name}-{word}", reference_dataset_id=dataset.id) for word in ("one", "two")]
    now = datetime.now(UTC).isoformat()
    for project in projects:
        runs = [
            {
                "id": str(uuid.uuid4()),
                "name": "answer",
                "run_type": "chain",
                "session_name": project.name,
                "start_time": now,
                "end_time": now,
                "inputs": {},
                "outputs": {"a": "An answer."},
                "reference_example_id": str(each),
                "error": "It failed." if each == ids[-1] and project is projects[1] else None,
            }
            for each in ids
        ]

        for first in range(0, examples, 1000):
            client.request_with_retries("POST", "/runs/batch", json={"post": runs[first : first + 1000]})

    return str(dataset.id), [str(project.id) for project in projects]


def main(url: str, key: str) -> None:
    client = open_tracing_client(url, key)
    for thread in range(1, 4):
        for turn in range(1, 5):
            run_id = send_turn(client, "weather", str(uuid.UUID(int=thread, version=4)), turn)
            if turn % 2:
                client.create_feedback(run_id, "correct", score=turn / 4, comment="Sounds right.")

    send_turn(client, "weather", "failing", 1, error="ValueError: no such city\n  File 'agent.py', line 3")
    send_hostile(client, "weather")
    send_large(client, "large", 10_000)
    client.flush()
    run_experiments(client, "cities")


if __name__ == "__main__":
    main(*sys.argv[1:])
