"""The ids of operations in OpenAPI documents, by which generated clients name their methods: `deployments_list`.

An id is the resource and the verb. It is made of the name of the handler, which is the verb and the resource. A route
whose handler is named in another way, or that would have the id of another, says it itself: `operation="runs_cancel"`.
"""

import re

# Nouns without a plural, and things of which there is one.
_SINGULAR = re.compile(r"(^|_)(disk|feedback|health|history|identity|info|log|metadata|scale|state|system|usage)$")
_SIBILANT = re.compile(r"(sh|ch|x|ss)$")
_CONSONANT_AND_Y = re.compile(r"(?<=[^aeiou])y$")


def to_operation_id(handler_name: str) -> str:
    """Return the id of an operation: `get_thread_state` is `thread_state_get`, `list_runs` is `runs_list`."""
    verb, _, resource = handler_name.partition("_")
    return f"{_to_plural(resource)}_{verb}" if resource else verb


def _to_plural(noun: str) -> str:
    if _SINGULAR.search(noun):
        return noun
    if _SIBILANT.search(noun):
        return f"{noun}es"
    if noun.endswith("s"):
        return noun
    if _CONSONANT_AND_Y.search(noun):
        return f"{noun.removesuffix('y')}ies"

    return f"{noun}s"
