"""The embedding that a configuration names, called so that it can neither stall the API nor store nonsense.

Asynchronous embeddings run on the loop that the graphs run on, for they may hold clients that belong to one loop;
synchronous ones in a thread. What they raise and what they return is checked here.
"""

import asyncio
import importlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from langchain_core.embeddings import Embeddings
from langgraph.store.base.embed import EmbeddingsLambda, ensure_embeddings

from portside.agent.config import AgentConfig, StoreIndex
from portside.agent.graphs.imports import add_to_path, import_named
from portside.kernel.errors import PortsideError, UserMistake

T = TypeVar("T")
LABEL = "store.index.embed"
WITHIN_S = 60.0


class EmbeddingFailed(PortsideError):
    """The embedding of the store failed; its own words say why."""

    status = 502
    code = "embedding_failed"


class Embedder:
    """Turns texts into vectors, written as Postgres takes them."""

    def __init__(self, source: str, embeddings: Embeddings, dims: int) -> None:
        self._source = source
        self._embeddings = embeddings
        self._dims = dims
        self._is_async = _is_async(embeddings)
        self._home: asyncio.AbstractEventLoop | None = None

    def settle(self) -> None:
        """Make the running loop the one that asynchronous embeddings are called on."""
        self._home = asyncio.get_running_loop()

    async def embed(self, texts: Sequence[str]) -> list[str]:
        """Return the vector of each text; equal texts are embedded once. Raises EmbeddingFailed."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return []
        vectors = await self._call(lambda: self._embeddings.aembed_documents(unique))
        if len(vectors) != len(unique):
            raise self._failure(f"it returned {len(vectors)} vectors for {len(unique)} texts")
        written = dict(zip(unique, map(self._written, vectors), strict=True))
        return [written[text] for text in texts]

    async def embed_query(self, text: str) -> str:
        """Return the vector of a question. Raises EmbeddingFailed."""
        return self._written(await self._call(lambda: self._embeddings.aembed_query(text)))

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(WITHIN_S):
                if not self._is_async or self._home in (None, asyncio.get_running_loop()):
                    return _sized(await call())
                return _sized(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_await(call), self._home)))
        except TimeoutError as exc:
            raise self._failure(str(exc) or f"it gave no answer within {WITHIN_S:.0f} s") from exc
        except Exception as exc:
            raise self._failure(f"{type(exc).__name__}: {exc}") from exc

    def _written(self, vector: Any) -> str:
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError) as exc:
            raise self._failure(f"it returned something that is no list of numbers: {exc}") from exc
        if len(numbers) != self._dims:
            raise self._failure(f"it returned {len(numbers)} dimensions, but store.index.dims says {self._dims}")
        if not all(map(math.isfinite, numbers)):
            raise self._failure("it returned numbers that are not finite")
        return f"[{','.join(map(repr, numbers))}]"

    def _failure(self, why: str) -> EmbeddingFailed:
        return EmbeddingFailed(f"the embedding {self._source} of the store failed: {why}")


def load_embedder(config: AgentConfig, index: StoreIndex) -> Embedder:
    """Load what `store.index.embed` names: a provider's model, or a function of the project.

    Raises UserMistake that says what to mend.
    """
    place = index.embed.rpartition(":")[0]
    if place.endswith(".py") or "/" in place or "." in place:
        exported = import_named(config, LABEL, index.embed, add_to_path(config))
    else:
        exported = _of_provider(config, index.embed)
    if not isinstance(exported, Embeddings) and not callable(exported):
        raise UserMistake(
            f"{config.file}: {LABEL} ({index.embed}) is of type {type(exported).__name__}; name a function that takes "
            "a list of texts and returns a list of vectors"
        )
    return Embedder(index.embed, ensure_embeddings(exported), index.dims)


def _of_provider(config: AgentConfig, source: str) -> Embeddings:
    if ":" not in source:
        raise UserMistake(
            f'{config.file}: {LABEL} is "{source}"; it must be like "openai:text-embedding-3-small" '
            'or "./embed.py:embed"'
        )
    try:
        init_embeddings = importlib.import_module("langchain.embeddings").init_embeddings
    except ImportError as exc:
        raise UserMistake(
            f"{config.file}: {LABEL} ({source}) needs the package langchain, which is not installed; add it and the "
            "provider's own package to the project's dependencies"
        ) from exc
    try:
        made: Embeddings = init_embeddings(source)
    except Exception as exc:
        raise UserMistake(f"{config.file}: {LABEL} ({source}) does not load: {type(exc).__name__}: {exc}") from exc
    return made


def _is_async(embeddings: Embeddings) -> bool:
    if isinstance(embeddings, EmbeddingsLambda):
        return hasattr(embeddings, "afunc")
    return type(embeddings).aembed_documents is not Embeddings.aembed_documents


async def _await(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _sized(vectors: Any) -> Any:
    """Raise TypeError for what has no length, which neither a vector nor a list of them is without."""
    len(vectors)
    return vectors
