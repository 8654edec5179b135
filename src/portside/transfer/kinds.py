"""The kinds of items that can be carried, in the order in which they depend on each other."""

from collections.abc import Callable, Sequence
from functools import partial

from portside.kernel.errors import UserMistake
from portside.kernel.settings import split_names
from portside.transfer.annotation_queues import carry_annotation_queues, carry_feedback_configs
from portside.transfer.assistants import carry_assistants
from portside.transfer.crons import carry_crons
from portside.transfer.datasets import carry_datasets
from portside.transfer.projects import carry_projects
from portside.transfer.prompts import carry_prompts
from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, RequestRefused, UnexpectedAnswer
from portside.transfer.store_items import carry_store_items
from portside.transfer.threads import carry_threads

# How servers answer to routes that they lack.
_NOT_THERE = frozenset({404, 405, 501})
Carry = Callable[[RemoteServer, RemoteServer, Report], None]
AGENT_KINDS = ("assistants", "threads", "crons", "store")
LANGSMITH_KINDS = ("datasets", "prompts", "feedback-configs", "projects", "annotation-queues")
_CARRIES: dict[str, Carry] = {
    "assistants": carry_assistants,
    "threads": carry_threads,
    "store": carry_store_items,
    "datasets": carry_datasets,
    "prompts": carry_prompts,
    "feedback-configs": carry_feedback_configs,
    "projects": carry_projects,
    "annotation-queues": carry_annotation_queues,
}


def select_kinds(kinds: Sequence[str], only: str | None, skip: str | None) -> list[str]:
    """Return the kinds that a command line selects, in their order. Raises UserMistake for an unknown one."""
    names = (_parse(kinds, only) or set(kinds)) - _parse(kinds, skip)
    if not names:
        raise UserMistake(f"nothing is left to carry; --only and --skip take names of {', '.join(kinds)}")

    return [kind for kind in kinds if kind in names]


def _parse(kinds: Sequence[str], text: str | None) -> set[str]:
    names = set(split_names(text))
    if unknown := sorted(names - set(kinds)):
        raise UserMistake(f"{unknown[0]} is no kind that is carried; use {', '.join(kinds)}")

    return names


def carry(
    kinds: Sequence[str], source: RemoteServer, target: RemoteServer, report: Report, *, starts_crons: bool = False
) -> None:
    """Carry all items of kinds; what concerns one item is in the report. Raises UserMistake if a server is gone."""
    for kind in kinds:
        report.say(f"{kind}: begins")
        carry_kind = partial(carry_crons, starts=starts_crons) if kind == "crons" else _CARRIES[kind]

        # A server that lacks a whole kind, or a key that may not use it, does not stop the others.
        try:
            carry_kind(source, target, report)
        except RequestRefused as refusal:
            if refusal.role == "source" and refusal.status in _NOT_THERE:
                report.note(kind, "all", "the source does not have this kind")
                report.of(kind)
            else:
                report.fail(kind, "all that are left", refusal)
        except (UnexpectedAnswer, KeyError, TypeError, ValueError) as exc:
            report.fail(kind, "all that are left", exc)

        report.say(f"{kind}: {report.of(kind).describe()}")

    report.is_complete = True
