"""Prometheus metrics of every server. Packages define their own metrics beside their code."""

from functools import cache

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Histogram, Info, generate_latest

from portside import __version__

REQUESTS = Counter("lg_api_http_requests_total", "HTTP requests answered.", ["method", "path", "status"])
LATENCY = Histogram(
    "lg_api_http_requests_latency",
    "Time to the end of a response, in milliseconds.",
    ["method", "path"],
    buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000),
)
requests_of = cache(REQUESTS.labels)
"""The counter of one method, route and status. Cached, because the lookup costs more than the count."""
latency_of = cache(LATENCY.labels)
TARGET = Info("target", "The program that is measured.")
TARGET.info({"service_name": "portside", "service_version": __version__})


def exposition() -> tuple[bytes, str]:
    """Return all metrics in the Prometheus text format, and its content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


def request_counts() -> list[dict[str, str | int]]:
    """Return the number of requests for each route and status."""
    samples = (sample for family in REQUESTS.collect() for sample in family.samples)
    return [{**sample.labels, "count": int(sample.value)} for sample in samples if sample.name.endswith("_total")]
