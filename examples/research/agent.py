"""An agent that works for a while: it plans questions, looks them up side by side, and writes a report.

Nobody waits for it with an open connection. A client starts a background run with a webhook, and the server calls when
the report is there. The state is saved after each step, so the run goes on after a restart of the server.
"""

import asyncio
import operator
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from model import choose_model

# Stands for the web, or for whatever your agent searches.
LIBRARY = {
    "history": "The first ones were made long before there were machines.",
    "use": "People use them every day, mostly in the evening.",
    "cost": "A simple one costs little, and a good one lasts for decades.",
}


class Context(TypedDict, total=False):
    """What a client may set for a run."""

    seconds: float
    """How long each question takes; it stands for slow searches."""


class State(TypedDict, total=False):
    """The topic, the questions of the plan, what was found about them, and the report."""

    topic: str
    questions: list[str]
    findings: Annotated[list[str], operator.add]
    report: str


class Question(TypedDict):
    """One question, for one of the parallel steps."""

    question: str


async def make_plan(state: State) -> dict[str, list[str]]:
    """Let the model split the topic into questions, one on each line."""
    prompt = SystemMessage("Write three short questions to research this topic, one on each line.")
    plan = await planner.ainvoke([prompt, ("user", state["topic"])])
    return {"questions": plan.text.splitlines()}


def look_up_all(state: State) -> list[Send]:
    """Start a step for each question. They run side by side."""
    return [Send("look_up", {"question": question}) for question in state["questions"]]


async def look_up(step: Question, runtime: Runtime[Context]) -> dict[str, list[str]]:
    """Answer one question."""
    await asyncio.sleep((runtime.context or {}).get("seconds", 1))
    prompt = SystemMessage("Answer in one sentence.")
    answer = await reader.ainvoke([prompt, ("user", step["question"])])

    # For clients that watch with stream_mode="custom".
    get_stream_writer()({"answered": step["question"]})
    return {"findings": [answer.text]}


async def write_report(state: State) -> dict[str, str]:
    """Write the report from all findings."""
    prompt = SystemMessage(f"Write a short report about {state['topic']} from these findings.")
    report = await writer.ainvoke([prompt, ("user", "\n".join(state["findings"]))])
    return {"report": report.text}


# What the three say without a model


def plan_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Ask for whatever the library has."""
    return AIMessage("\n".join(f"What is the {subject} of {messages[-1].text}?" for subject in LIBRARY))


def read_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Quote the library."""
    answers = [text for subject, text in LIBRARY.items() if subject in messages[-1].text]
    return AIMessage(answers[0] if answers else "Nothing is known about that.")


def write_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Put the findings one after the other."""
    return AIMessage(messages[-1].text.replace("\n", " "))


planner = choose_model(plan_by_rule)
reader = choose_model(read_by_rule)
writer = choose_model(write_by_rule)

builder = StateGraph(State, context_schema=Context)
builder.add_node("make_plan", make_plan)
builder.add_node("look_up", look_up)
builder.add_node("write_report", write_report)
builder.add_edge(START, "make_plan")
builder.add_conditional_edges("make_plan", look_up_all, ["look_up"])
builder.add_edge("look_up", "write_report")
graph = builder.compile()
