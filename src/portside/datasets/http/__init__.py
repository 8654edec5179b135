"""The routes of datasets, examples, versions and experiments."""

from portside.datasets.http import datasets, downloads, examples, experiments, public, uploads, versions
from portside.kernel.http.routes import Route
from portside.tracing.services import Context

routes: list[Route[Context]] = [
    *datasets.routes,
    *downloads.routes,
    *versions.routes,
    *experiments.routes,
    *examples.routes,
    *uploads.routes,
    *public.routes,
]
