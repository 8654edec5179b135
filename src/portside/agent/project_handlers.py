"""The handlers of a project: authentication, encryption, the embedding of the store, and the web application.

They run in this process, or in executors for each of their languages. Graphs are in `graphs`.
"""

from typing import TYPE_CHECKING, Protocol

from portside.agent.access.authentication import ProjectAuth
from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.web_app import WebApp, join_custom
from portside.agent.encryption.ciphers import EncryptionCalls
from portside.agent.executors.remote_app import RemoteHandlers
from portside.agent.executors.start import start_handlers
from portside.agent.settings import AgentSettings
from portside.agent.store.search_index import Embeds
from portside.kernel.http.websockets import SocketApi

if TYPE_CHECKING:
    from portside.executor.load import Graphs


class ProjectHandlers(Protocol):
    """The parts of a project beside its graphs, in this process or in executors. Each may raise UserMistake."""

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        ...

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None."""
        ...

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        ...

    def join_app(self, config: AgentConfig, api: SocketApi, access: Access) -> WebApp | None:
        """Return the web application with our routes in it."""
        ...

    async def close(self) -> None:
        """End the processes that run the handlers."""
        ...


class LocalHandlers:
    """The handlers in this process. Each property imports its handler."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.join_app = join_custom

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        path = self._config.auth.path
        if path is None:
            return None

        from portside.executor.auth import load_auth

        return load_auth(self._config.project, path)

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None."""
        path = self._config.encryption.path
        if path is None:
            return None

        from portside.executor.encryption_handlers import load_encryption

        return load_encryption(self._config.project, path)

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        index = self._config.store.index
        if index is None:
            return None

        from portside.executor.embeddings import load_embeddings

        return load_embeddings(self._config.project, index.embed)

    async def close(self) -> None:
        """Do nothing: the handlers end with this process."""


class HandlersByLanguage:
    """The handlers of a project that has some in Python and some in JavaScript, but only one of each kind."""

    def __init__(self, python: ProjectHandlers, javascript: RemoteHandlers) -> None:
        self._python = python
        self._javascript = javascript

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        return self._javascript.auth or self._python.auth

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None. They cannot be in JavaScript."""
        return self._python.encryption

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        return self._javascript.embeddings or self._python.embeddings

    def join_app(self, config: AgentConfig, api: SocketApi, access: Access) -> WebApp | None:
        """Return the web application with our routes in it."""
        return self._javascript.join_app(config, api, access) or self._python.join_app(config, api, access)

    async def close(self) -> None:
        """End the processes that run the handlers."""
        try:
            await self._javascript.close()
        finally:
            await self._python.close()


async def start_project_handlers(
    graphs: "Graphs | None", config: AgentConfig, settings: AgentSettings
) -> ProjectHandlers:
    """Start what runs the project's handlers, in each of their languages. Raises UserMistake."""
    python: ProjectHandlers
    if graphs is not None:
        python = LocalHandlers(config)
    else:
        python = await start_handlers(config, settings)

    try:
        javascript = await start_handlers(config, settings, in_javascript=True)
    except BaseException:
        await python.close()
        raise

    return HandlersByLanguage(python, javascript)
