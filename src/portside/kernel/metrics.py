"""Prometheus metrics of every server. Packages define their own metrics beside their code.

Where several processes answer at one address, a request for the metrics reaches one of them. That one asks the others,
each over a unix socket, and shows the figures of each with the label `worker`: a sum would fall when one of them is
started again, which looks like counters that were reset.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Histogram, Info, generate_latest
from prometheus_client.metrics_core import Metric

from portside import __version__
from portside.kernel.timeouts import timeout

WORKER_LABEL = "worker"
# A process that does not answer within this time is left out of a response: Prometheus waits ten seconds by default.
ASK_WITHIN_S = 2.0
REQUESTS = Counter("lg_api_http_requests_total", "HTTP requests answered.", ["method", "path", "status"])
LATENCY = Histogram(
    "lg_api_http_requests_latency",
    "Time to the end of a response, in milliseconds.",
    ["method", "path"],
    buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000),
)
request_counter = cache(REQUESTS.labels)
"""The counter of one method, route and status. Cached, because the lookup costs more than the count."""
latency_histogram = cache(LATENCY.labels)
TARGET_NAME = "target"
TARGET = Info(TARGET_NAME, "The program that is measured.")
TARGET.info({"service_name": "portside", "service_version": __version__})


class Family(msgspec.Struct, array_like=True):
    """One metric of a process: its name, help and type, and its samples as name, labels and value."""

    name: str
    help: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]


def list_families() -> list[Family]:
    """List all metrics of this process."""
    families: list[Family] = []
    for metric in REGISTRY.collect():
        samples = [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples]
        family = Family(name=metric.name, help=metric.documentation, type=metric.type, samples=samples)
        families.append(family)

    return families


class _Joined:
    """The metrics of several processes, in the form of a registry."""

    def __init__(self, by_worker: Mapping[int, list[Family]], shared: Collection[str]) -> None:
        self._by_worker = by_worker
        self._shared = shared

    def collect(self) -> list[Metric]:
        """Return each metric once, with the samples of all processes; a shared one as the first process has it."""
        metrics: dict[str, Metric] = {}
        for number, worker_families in self._by_worker.items():
            label = {WORKER_LABEL: str(number)}
            for family in worker_families:
                is_shared = family.name in self._shared
                if is_shared and family.name in metrics:
                    continue

                metric = metrics.setdefault(family.name, Metric(family.name, family.help, family.type))
                for name, labels, value in family.samples:
                    metric.add_sample(name, labels if is_shared else labels | label, value)

        return list(metrics.values())


def format_metrics(
    by_worker: Mapping[int, list[Family]] | None = None, shared: Collection[str] = ()
) -> tuple[bytes, str]:
    """Return all metrics in the Prometheus text format, and its content type.

    `by_worker` maps the numbers of several processes to their metrics, this process first. Metrics named in `shared`
    are the same in all of them, and get no label.
    """
    registry: Any = REGISTRY if by_worker is None else _Joined(by_worker, {TARGET_NAME, *shared})
    return generate_latest(registry), CONTENT_TYPE_LATEST


def count_requests() -> list[dict[str, str | int]]:
    """Return the number of requests for each route and status."""
    samples = (sample for family in REQUESTS.collect() for sample in family.samples)
    return [{**sample.labels, "count": int(sample.value)} for sample in samples if sample.name.endswith("_total")]


class Siblings:
    """The other processes that answer at the same address, each of which describes itself on a unix socket."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.number = number
        """The number of this process."""
        self._paths = {worker: folder / f"{worker}.sock" for worker in range(count)}

    @contextlib.asynccontextmanager
    async def describing(self, describe: Callable[[], Awaitable[bytes]]) -> AsyncIterator[None]:
        """Answer requests of the other processes with the result of `describe`, while the block runs."""

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # The process that asked may have closed the connection.
            with contextlib.suppress(OSError):
                writer.write(await describe())
                await writer.drain()

            writer.close()

        path = self._paths[self.number]
        path.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(answer, path):
            yield

    async def ask(self) -> dict[int, bytes]:
        """Return the answers of the other processes by their numbers, without those that do not answer in time."""
        others = [number for number in self._paths if number != self.number]
        answers = await asyncio.gather(*(self._ask(number) for number in others))
        return {number: answer for number, answer in zip(others, answers, strict=True) if answer}

    async def _ask(self, number: int) -> bytes:
        """Return the answer of one process; empty if it is being started, or too busy."""
        try:
            async with timeout(ASK_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(self._paths[number])
                try:
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""
