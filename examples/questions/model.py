"""The chat model of this example: rules, or a real model once the environment has a key for one.

Without a key nothing thinks here. The example's own rule decides what to say, the same each time, so that the agent
runs and is tested anywhere. With OPENAI_API_KEY or ANTHROPIC_API_KEY the same graph uses a model of that provider.
"""

import os
import re
from collections.abc import Callable, Iterator
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

Rule = Callable[[list[BaseMessage]], AIMessage]
MODELS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5"}


def choose_model(rule: Rule) -> BaseChatModel:
    """Return a model for which the environment has a key, else one that answers by the rule."""
    for key, name in MODELS.items():
        if os.environ.get(key):
            # Not in requirements.txt, because the rules do not need it: the README says how to add it.
            from langchain.chat_models import init_chat_model

            return init_chat_model(os.environ.get("MODEL", name))

    return RuleModel(rule=rule)


def call_tool(name: str, **arguments: object) -> AIMessage:
    """Return the message with which a model asks for a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid4().hex[:12]}"}])


class RuleModel(BaseChatModel):
    """A chat model that answers by a rule, word by word when it is streamed."""

    rule: Rule

    @property
    def _llm_type(self) -> str:
        return "rule"

    def bind_tools(self, _tools, **_options):
        """Return the same model: the rule knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_args, **_options) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.rule(messages))])

    def _stream(self, messages: list[BaseMessage], *_args, **_options) -> Iterator[ChatGenerationChunk]:
        message = self.rule(messages)
        if message.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_calls=message.tool_calls))

        for word in re.findall(r"\s*\S+", message.text):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
