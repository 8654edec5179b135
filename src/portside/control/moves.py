"""The state machine of revisions: which state may follow which (contract: section 5.1).

The listener that works on a revision reports its moves; the control plane itself makes those into and out of the queue
and the interruptions by a user or a delete. A state at the end is never left. `revisions.py` writes the rows.
"""

from portside.control.errors import IllegalMove
from portside.control.types.statuses import RevisionStatus as S

AT_THE_END = frozenset(
    {
        S.DEPLOYED,
        S.CREATE_FAILED,
        S.BUILD_FAILED,
        S.DEPLOY_FAILED,
        S.SKIPPED,
        S.INTERRUPTED,
        S.UNKNOWN,
    }
)
_STOPPED = frozenset({S.INTERRUPTED, S.UNKNOWN})

MOVES: dict[S, frozenset[S]] = {
    S.QUEUED: frozenset({S.CREATING, S.SKIPPED}),
    S.CREATING: _STOPPED | {S.AWAITING_BUILD, S.AWAITING_DEPLOY, S.CREATE_FAILED},
    S.AWAITING_BUILD: _STOPPED | {S.BUILDING, S.BUILD_FAILED},
    S.BUILDING: _STOPPED | {S.AWAITING_DEPLOY, S.BUILD_FAILED},
    S.AWAITING_DEPLOY: _STOPPED | {S.DEPLOYING, S.DEPLOY_FAILED},
    S.DEPLOYING: _STOPPED | {S.DEPLOYED, S.DEPLOY_FAILED},
    **dict.fromkeys(AT_THE_END, frozenset()),
}


def check_moves_on(current: S, target: S) -> None:
    """Let a step along the table pass, and no repetition. Raises IllegalMove."""
    if target not in MOVES[current]:
        raise IllegalMove(f"A revision that is {current} cannot become {target}.")


def check_move(current: S, target: S) -> None:
    """Let a report pass that moves along the table or repeats the state. Raises IllegalMove."""
    if target != current:
        check_moves_on(current, target)
