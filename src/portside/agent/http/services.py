"""The services that request handlers of the agent server use; `wiring.py` connects them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import msgspec

from portside.agent.a2a.service import A2A
from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.config import AgentConfig
from portside.agent.crons.records import Crons
from portside.agent.mcp.service import Mcp
from portside.agent.queue.backlog import QueueMonitor
from portside.agent.runs.service import Runs
from portside.agent.settings import AgentSettings
from portside.agent.store.requests import StoreRequests
from portside.agent.streams.hub import Hub
from portside.agent.threads.searches import ThreadSearches
from portside.agent.threads.states import States
from portside.agent.ui import Bundles
from portside.agent.webhooks.log import WebhookLog
from portside.kernel.diagnostics import Diagnostics
from portside.kernel.http.health import HealthServices
from portside.kernel.http.middleware import Activity
from portside.kernel.metrics import Siblings


class Traffic(Activity):
    """The requests of this replica, and whether it serves the deployment's own address yet."""

    is_served: bool = True


class ApiDescription:
    """The description of the API: the OpenAPI document, and which groups of routes are served.

    `fetch` gets the parts of the document that are in other processes.
    """

    def __init__(
        self, write: Callable[[], bytes], tags: frozenset[str], fetch: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.tags = tags
        self._write = write
        self._fetch = fetch

    @cached_property
    def openapi(self) -> bytes:
        """The document, written at the first request: most servers never get one."""
        return self._write()

    def get_document(self, address: str) -> bytes:
        """Return the document for clients that reach the API at this address: a URL, a path of this host, or "".

        A path is relative to the address of the document, so it depends on no header that a client may forge.
        """
        if not address:
            return self.openapi

        return b'{"servers":' + msgspec.json.encode([{"url": address}]) + b"," + self.openapi[1:]

    async def prepare(self) -> None:
        """Fetch the parts of the document; await this before the other methods."""
        if self._fetch is not None:
            await self._fetch()
            self._fetch = None


@dataclass(frozen=True, kw_only=True)
class AgentServices(HealthServices):
    """The services of the agent server."""

    a2a: A2A
    access: Access
    assistants: Assistants
    bundles: Bundles
    config: AgentConfig
    libraries: Mapping[str, str]
    count_threads: Callable[[float | None], Awaitable[dict[UUID, int]]] | None
    """Set where threads continue with the revision that began them."""
    crons: Crons
    descriptions: Descriptions
    diagnostics: Diagnostics | None
    """Set where the operator configured a folder for heap dumps."""
    hub: Hub
    api_description: ApiDescription
    mcp: Mcp
    monitor: QueueMonitor
    runs: Runs
    searches: ThreadSearches
    settings: AgentSettings
    siblings: Siblings | None
    """Set where several processes answer at the same address."""
    states: States
    store: StoreRequests
    traffic: Traffic
    webhook_log: WebhookLog
