"""Assistants as the protocol sees them: what each can do, and the card that says so (contract: section 10)."""

from typing import Any
from uuid import UUID

import msgspec

from portside.agent.a2a.inputs import Fields
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.types.access import AuthOpenApi
from portside.agent.types.assistants import Assistant
from portside.kernel.errors import Invalid

MEDIA = ["application/json", "text/plain"]
HISTORY_SCOPE = "urn:portside:a2a:history-scope"
REMEMBERED_AT_MOST = 1000
TAGS = ["assistant", "langgraph"]

Agent = Assistant
Plain = dict[str, Any]


class Skill(msgspec.Struct, frozen=True):
    """What an assistant takes, and as which schema."""

    fields: Fields
    schema: Plain


class Agents:
    """The assistants of this server."""

    def __init__(self, assistants: Assistants, descriptions: Descriptions, security: AuthOpenApi | None) -> None:
        self._assistants, self._descriptions = assistants, descriptions
        self._security = _security(security)
        self._skills: dict[tuple[UUID, str], Skill] = {}

    async def find(self, name: str) -> Agent:
        """Return an assistant by its id or its graph's. Raises Invalid, AssistantNotFound."""
        try:
            return await self._assistants.find(name)
        except Invalid as exc:
            raise Invalid.field(["path", "assistant_id"], exc.problems[0].msg) from None

    async def skill(self, agent: Agent) -> Skill:
        """Return what an assistant takes, which its graph is opened for once. Raises AssistantNotFound, GraphFailed."""
        key = (agent.assistant_id, agent.updated_at)
        if key not in self._skills:
            schema = (await self._descriptions.schemas(agent.assistant_id)).input_schema
            if len(self._skills) >= REMEMBERED_AT_MOST:
                self._skills.clear()
            self._skills[key] = Skill(Fields.of(schema), schema or {})
        return self._skills[key]

    async def card(self, agent: Agent, base_url: str) -> Plain:
        """Return the card of an assistant, whose routes are below a URL. Raises AssistantNotFound and GraphFailed."""
        skill = await self.skill(agent)
        url = f"{base_url}/a2a/{agent.assistant_id}"
        description = agent.description or f"The assistant {agent.name}"
        return {
            "name": agent.name,
            "description": description,
            "version": str(agent.version),
            "protocolVersion": "0.3.0",
            "url": url,
            "preferredTransport": "JSONRPC",
            "supportedInterfaces": [
                {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version} for version in ("1.0", "0.3")
            ],
            "supportsAuthenticatedExtendedCard": True,
            "capabilities": _CAPABILITIES,
            "defaultInputModes": MEDIA,
            "defaultOutputModes": MEDIA,
            "skills": [_skill(agent, description, skill)],
            **self._security,
        }


_CAPABILITIES = {
    "streaming": True,
    "pushNotifications": False,
    "stateTransitionHistory": False,
    "extendedAgentCard": True,
    "extensions": [
        {
            "uri": HISTORY_SCOPE,
            "description": "The history of a task is that of its context, or with historyScope that of the task alone",
            "required": False,
            "params": {"header": "LangGraph-A2A-History-Scope", "scopes": ["context", "task"]},
        }
    ],
}


def _security(described: AuthOpenApi | None) -> Plain:
    """Tell how callers show who they are, as far as the project describes it."""
    if described is None or not described.securitySchemes:
        return {}
    return {"securitySchemes": described.securitySchemes, "security": described.security}


def _skill(agent: Agent, description: str, skill: Skill) -> Plain:
    schema = {
        "required": skill.schema.get("required", []),
        "properties": sorted(skill.schema.get("properties") or ()),
        "supportsA2A": skill.fields.takes_messages,
    }
    return {
        "id": f"{agent.assistant_id}-main",
        "name": f"{agent.name} Capabilities",
        "description": description,
        "tags": TAGS,
        "examples": [],
        "inputModes": MEDIA if skill.fields.takes_messages else MEDIA[:1],
        "outputModes": MEDIA,
        "metadata": {"inputSchema": schema},
    }
