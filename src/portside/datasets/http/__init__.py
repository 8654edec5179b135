"""The routes of datasets: `routes` lists them all."""

from portside.datasets.http import datasets, examples, experiments, public, versions
from portside.kernel.http.routes import Route

routes: list[Route] = [
    *datasets.routes,
    *versions.routes,
    *examples.routes,
    *experiments.routes,
    *public.routes,
]
