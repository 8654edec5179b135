"""Three agents that plan a trip: a supervisor hands over to one for flights and to one for hotels.

A handoff is a tool that returns a `Command` with the node to go to. The specialists are graphs of their own, with their
own instructions and tools; all share the conversation. Each returns to the supervisor, which decides what is missing.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command

from model import Rule, call_tool, choose_model

Node = Callable[[MessagesState], Awaitable[dict[str, list[BaseMessage]]]]
CITY = re.compile(r"\b(?:to|in) ([A-Z]\w+)")
FLIGHTS = {"Lisbon": "TP 531 at 9:40", "Oslo": "SK 804 at 7:15"}
HOTELS = {"Lisbon": "Casa Azul, 90 a night", "Oslo": "Fjord House, 140 a night"}


def build_responder(name: str, instructions: str, tools: Sequence[BaseTool], rule: Rule) -> Node:
    """Return the node of an agent in which its model answers, or asks for a tool."""
    model = choose_model(rule).bind_tools(tools)

    async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
        message = await model.ainvoke([SystemMessage(instructions), *state["messages"]])
        # Readers of the conversation, people and models, see who said it.
        return {"messages": [message.model_copy(update={"name": name})]}

    return respond


def build_specialist(name: str, instructions: str, lookup: BaseTool, rule: Rule) -> CompiledStateGraph:
    """Return an agent with one tool."""
    builder = StateGraph(MessagesState)
    builder.add_node("respond", build_responder(name, instructions, [lookup], rule))
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_edge(START, "respond")
    builder.add_conditional_edges("respond", tools_condition)
    builder.add_edge("tools", "respond")
    return builder.compile()


def build_handoff(specialist: str) -> BaseTool:
    """Return the tool with which the supervisor hands over."""

    @tool(f"ask_{specialist}", description=f"Hand over to the agent for {specialist}.")
    def hand_over(runtime: ToolRuntime) -> Command:
        # A model expects a result for each of its calls.
        result = ToolMessage(f"the agent for {specialist} takes over", tool_call_id=runtime.tool_call_id)
        return Command(goto=specialist, update={"messages": [result]})

    return hand_over


# The tools of the specialists


@tool
def find_flight(city: str) -> str:
    """Find the next flight to a city."""
    return FLIGHTS.get(city, "no flight")


@tool
def find_hotel(city: str) -> str:
    """Find a hotel in a city."""
    return HOTELS.get(city, "no hotel")


# The rules: what the three say without a model


def build_lookup_rule(lookup: BaseTool) -> Rule:
    """Return the rule of a specialist: it looks the city up, and repeats what it found."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if isinstance(last, ToolMessage) and last.name == lookup.name:
            return AIMessage(last.text)

        cities = [
            city for message in messages if isinstance(message, HumanMessage) for city in CITY.findall(message.text)
        ]
        return call_tool(lookup.name, city=cities[-1] if cities else "nowhere")

    return answer


def supervise(messages: list[BaseMessage]) -> AIMessage:
    """Ask each specialist that the last question is about, one after the other, and sum up what they said."""
    asked_at = max(number for number, message in enumerate(messages) if isinstance(message, HumanMessage))
    question = messages[asked_at].text.lower()
    said = {message.name: message.text for message in messages[asked_at:] if isinstance(message, AIMessage)}

    for specialist, topic in (("flights", "fl"), ("hotels", "hotel")):
        if topic in question and specialist not in said:
            return call_tool(f"ask_{specialist}")

    answers = [f"{specialist}: {said[specialist]}" for specialist in ("flights", "hotels") if specialist in said]
    return AIMessage("; ".join(answers) or "Ask me for a flight to Lisbon, or a hotel in Oslo.")


handoffs = [build_handoff("flights"), build_handoff("hotels")]
supervisor = build_responder("supervisor", "Hand over what you need, then sum up.", handoffs, supervise)
flights = build_specialist("flights", "You find flights.", find_flight, build_lookup_rule(find_flight))
hotels = build_specialist("hotels", "You find hotels.", find_hotel, build_lookup_rule(find_hotel))

builder = StateGraph(MessagesState)
builder.add_node("supervisor", supervisor)
# Where it goes next is what the handoff says; `destinations` is for pictures of the graph.
builder.add_node("tools", ToolNode(handoffs), destinations=("flights", "hotels"))
builder.add_node("flights", flights)
builder.add_node("hotels", hotels)
builder.add_edge(START, "supervisor")
builder.add_conditional_edges("supervisor", tools_condition)
builder.add_edge("flights", "supervisor")
builder.add_edge("hotels", "supervisor")
graph = builder.compile()
