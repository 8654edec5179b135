"""The embedding of the store's index: a provider's model, or a function of the project (`store.index.embed`).

It must not block the server. An asynchronous one runs on the loop of the graphs, because it may hold clients that
belong to one loop; a synchronous one runs in a thread.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from langchain_core.embeddings import Embeddings
from langgraph.store.base.embed import EmbeddingsLambda, ensure_embeddings

from portside.executor.errors import EmbeddingFailed
from portside.executor.imports import add_to_path, describe_failure, import_object
from portside.executor.project import Project
from portside.kernel.errors import UserMistake
from portside.kernel.timeouts import timeout

T = TypeVar("T")
EMBED_LABEL = "store.index.embed"
EMBEDDING_TIMEOUT_S = 60.0
# The packages of these providers would download a tokenizer, to measure texts before they send them.
UNMEASURED = ("openai", "azure_openai")


class ProjectEmbeddings:
    """Calls an embedding. What it raises becomes an EmbeddingFailed."""

    def __init__(self, source: str, embeddings: Embeddings) -> None:
        self._source = source
        self._embeddings = embeddings
        self._is_async = _is_async(embeddings)
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        """Call asynchronous embeddings on the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    async def embed_documents(self, texts: list[str]) -> Any:
        """Return the vectors of texts. Raises EmbeddingFailed."""
        return await self._call(lambda: self._embeddings.aembed_documents(texts))

    async def embed_query(self, text: str) -> Any:
        """Return the vector of a search query. Raises EmbeddingFailed."""
        return await self._call(lambda: self._embeddings.aembed_query(text))

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with timeout(EMBEDDING_TIMEOUT_S):
                if not self._is_async or self._loop in (None, asyncio.get_running_loop()):
                    return _check_length(await call())
                return _check_length(
                    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_await(call), self._loop))
                )
        except TimeoutError as exc:
            raise EmbeddingFailed.of(
                self._source, str(exc) or f"it did not return within {EMBEDDING_TIMEOUT_S:.0f} s"
            ) from exc
        except Exception as exc:
            raise EmbeddingFailed.of(self._source, f"{type(exc).__name__}: {exc}") from exc


def load_embeddings(project: Project, source: str) -> ProjectEmbeddings:
    """Load what `store.index.embed` names. Raises UserMistake."""
    module = source.rpartition(":")[0]
    if module.endswith(".py") or "/" in module or "." in module:
        exported = import_object(project, EMBED_LABEL, source, roots=add_to_path(project))
    else:
        exported = _load_provider(project, source)

    if not isinstance(exported, Embeddings) and not callable(exported):
        raise UserMistake(
            f"{project.file}: {EMBED_LABEL} ({source}) is of type {type(exported).__name__}; name a function that "
            "takes a list of texts and returns a list of vectors"
        )

    return ProjectEmbeddings(source, ensure_embeddings(exported))


def _load_provider(project: Project, source: str) -> Embeddings:
    if ":" not in source:
        raise UserMistake(
            f'{project.file}: {EMBED_LABEL} is "{source}"; it must be like "openai:text-embedding-3-small" '
            'or "./embed.py:embed"'
        )

    try:
        init_embeddings = importlib.import_module("langchain.embeddings").init_embeddings
    except ImportError as exc:
        raise UserMistake(
            f"{project.file}: {EMBED_LABEL} ({source}) needs the package langchain, which is not installed; add it "
            "and the provider's own package to the project's dependencies"
        ) from exc

    options = {"check_embedding_ctx_length": False} if source.partition(":")[0] in UNMEASURED else {}
    try:
        embeddings: Embeddings = init_embeddings(source, **options)
    except Exception as exc:
        raise describe_failure(project, EMBED_LABEL, source, exc) from exc

    return embeddings


def _is_async(embeddings: Embeddings) -> bool:
    if isinstance(embeddings, EmbeddingsLambda):
        return hasattr(embeddings, "afunc")
    return type(embeddings).aembed_documents is not Embeddings.aembed_documents


async def _await(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _check_length(vectors: Any) -> Any:
    """Raise TypeError for a value without a length: it is neither a vector nor a list of vectors."""
    len(vectors)
    return vectors
