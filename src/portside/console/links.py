"""The pages of the console for the links that SDKs and command lines print.

They build the addresses of the hosted service's pages below `/o/{workspace}`: of a project, a run, a dataset, an
example, a comparison of experiments and a deployment. Only ids of a link reach the address of the page.
"""

import re

import msgspec

_ID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# The path of a link, and the page that shows the same. The first that matches counts.
_PAGES = [
    (re.compile(rf"projects/p/{_ID}/r/(?P<run>{_ID})"), "traces?run={run}"),
    (re.compile(rf"projects/p/(?P<project>{_ID})"), "traces/{project}"),
    (re.compile(r"projects"), "traces"),
    (re.compile(rf"datasets/(?P<dataset>{_ID})/e/(?P<example>{_ID})"), "datasets/{dataset}?example={example}"),
    (re.compile(rf"datasets/(?P<dataset>{_ID})/compare"), "datasets/{dataset}/compare?experiments={experiments}"),
    (re.compile(rf"datasets/(?P<dataset>{_ID})"), "datasets/{dataset}"),
    (re.compile(r"datasets"), "datasets"),
    (re.compile(rf"host/deployments/(?P<deployment>{_ID})"), "deployments/{deployment}"),
    (re.compile(r"host/deployments"), "deployments"),
]


class LinkedPageQuery(msgspec.Struct):
    """The experiments that a link compares."""

    selected_sessions: str = msgspec.field(default="", name="selectedSessions")


def find_page(path: str, query: LinkedPageQuery) -> str:
    """Return the page of the console for the path of a link; the first page for an unknown one."""
    experiments = ",".join(re.findall(_ID, query.selected_sessions)[:10])
    for pattern, page in _PAGES:
        match = pattern.match(path)
        if match is not None:
            return page.format(**match.groupdict(), experiments=experiments)

    return ""
