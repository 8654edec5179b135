"""Assistants as agents of the protocol: the input that each accepts, and its card."""

from typing import Any
from uuid import UUID

import msgspec
from cachetools import LRUCache

from portside.agent.a2a.messages import InputFields
from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.types.access import AuthOpenApi
from portside.agent.types.assistants import Assistant
from portside.kernel.errors import Invalid

MEDIA_TYPES = ["application/json", "text/plain"]
HISTORY_SCOPE = "urn:portside:a2a:history-scope"
MAX_CACHED_SKILLS = 1000
TAGS = ["assistant", "langgraph"]
_CAPABILITIES = {
    "streaming": True,
    "pushNotifications": False,
    "stateTransitionHistory": False,
    "extensions": [
        {
            "uri": HISTORY_SCOPE,
            "description": "A task has the history of its whole context; with historyScope=task, of the task alone",
            "required": False,
            "params": {"header": "LangGraph-A2A-History-Scope", "scopes": ["context", "task"]},
        }
    ],
}
_ONLY_IN_OLD_CARDS = frozenset(
    {"protocolVersion", "url", "preferredTransport", "supportsAuthenticatedExtendedCard", "security"}
)
_SCHEMES = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}

Plain = dict[str, Any]


class Skill(msgspec.Struct, frozen=True):
    """The input that an assistant accepts: its fields, and their JSON schema."""

    fields: InputFields
    schema: Plain


class Agents:
    """The assistants of this server, as agents."""

    def __init__(self, assistants: Assistants, descriptions: Descriptions, access: Access) -> None:
        self._assistants = assistants
        self._descriptions = descriptions
        self._security = _describe_security(access.security)
        self.has_extended_card = not access.is_open
        """The extended card is the one for authenticated callers: without authentication there is none."""
        self._skills: LRUCache[tuple[UUID, str], Skill] = LRUCache(MAX_CACHED_SKILLS)

    async def find(self, name: str) -> Assistant:
        """Return an assistant by its id or its graph's. Raises Invalid, AssistantNotFound."""
        try:
            return await self._assistants.find(name)
        except Invalid as exc:
            raise Invalid.field(["path", "assistant_id"], exc.problems[0].msg) from None

    async def skill(self, agent: Assistant) -> Skill:
        """Return the input that an assistant accepts. Raises AssistantNotFound, GraphFailed.

        Reading the schema opens the graph, so it is cached for each version of the assistant.
        """
        key = (agent.assistant_id, agent.updated_at)
        skill = self._skills.get(key)
        if skill is None:
            schema = (await self._descriptions.schemas(agent.assistant_id)).input_schema
            skill = self._skills[key] = Skill(InputFields.of(schema), schema or {})

        return skill

    async def card(self, agent: Assistant, base_url: str) -> Plain:
        """Return the card of an assistant in the form of version 0.3; its routes are below `base_url`.

        Raises AssistantNotFound and GraphFailed.
        """
        skill = await self.skill(agent)
        description = agent.description or f"The assistant {agent.name}"
        return {
            "name": agent.name,
            "description": description,
            "version": str(agent.version),
            "protocolVersion": "0.3.0",
            "url": f"{base_url}/a2a/{agent.assistant_id}",
            "preferredTransport": "JSONRPC",
            "capabilities": _CAPABILITIES,
            "defaultInputModes": MEDIA_TYPES,
            "defaultOutputModes": MEDIA_TYPES,
            "skills": [_describe_skill(agent, description, skill)],
            **({"supportsAuthenticatedExtendedCard": True} if self.has_extended_card else {}),
            **self._security,
        }


def _describe_security(security: AuthOpenApi | None) -> Plain:
    if security is None or not security.securitySchemes:
        return {}
    return {"securitySchemes": security.securitySchemes, "security": security.security}


def _describe_skill(agent: Assistant, description: str, skill: Skill) -> Plain:
    schema = {
        "required": skill.schema.get("required", []),
        "properties": sorted(skill.schema.get("properties") or ()),
        "supportsA2A": skill.fields.has_messages,
    }

    return {
        "id": f"{agent.assistant_id}-main",
        "name": f"{agent.name} Capabilities",
        "description": description,
        "tags": TAGS,
        "examples": [],
        "inputModes": MEDIA_TYPES if skill.fields.has_messages else MEDIA_TYPES[:1],
        "outputModes": MEDIA_TYPES,
        "metadata": {"inputSchema": schema},
    }


def to_combined_card(card: Plain) -> Plain:
    """Return a card that clients of both versions read: that of version 1.0, with the members of 0.3 that it lacks."""
    combined = _add_missing(to_modern_card(card), card)
    combined["skills"] = card["skills"]

    return combined


def _add_missing(value: Plain, other: Plain) -> Plain:
    """Add the members of another object that an object lacks, also to the objects in both."""
    merged = dict(value)
    for key, other_member in other.items():
        member = merged.setdefault(key, other_member)
        if isinstance(member, dict) and isinstance(other_member, dict):
            merged[key] = _add_missing(member, other_member)

    return merged


def to_modern_card(card: Plain) -> Plain:
    """Return a card in the form of version 1.0."""
    modern = {key: value for key, value in card.items() if key not in _ONLY_IN_OLD_CARDS}
    # Version 1.0 has no metadata of a skill, and its clients may refuse what it does not have.
    modern["skills"] = [{key: value for key, value in skill.items() if key != "metadata"} for skill in card["skills"]]
    modern["supportedInterfaces"] = [
        {"url": card["url"], "protocolBinding": card["preferredTransport"], "protocolVersion": version}
        for version in ("1.0", "0.3")
    ]

    capabilities = {key: value for key, value in card["capabilities"].items() if key != "stateTransitionHistory"}
    if card.get("supportsAuthenticatedExtendedCard"):
        capabilities["extendedAgentCard"] = True

    modern["capabilities"] = capabilities

    if "securitySchemes" in card:
        # Version 1.0 cannot express other types of OpenAPI's security schemes.
        modern["securitySchemes"] = {
            name: {_SCHEMES[scheme["type"]]: _to_modern_scheme(scheme)}
            for name, scheme in card["securitySchemes"].items()
            if isinstance(scheme, dict) and scheme.get("type") in _SCHEMES
        }

        modern["securityRequirements"] = [
            {"schemes": {name: {"list": scopes} for name, scopes in requirement.items()}}
            for requirement in card["security"]
        ]

    return modern


def _to_modern_scheme(scheme: Plain) -> Plain:
    return {"location" if key == "in" else key: value for key, value in scheme.items() if key != "type"}
