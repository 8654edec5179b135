"""Authorization handlers in an executor decide as they would in the server's own process."""

from typing import Any

import pytest
from langgraph_sdk import Auth

from portside.agent.access.authentication import caller_from
from portside.agent.executors.handlers_executor import RemoteAuth, read_user, to_sent_user
from portside.executor import messages
from portside.executor.auth import LoadedAuth
from portside.executor.authentication import Authentication
from portside.executor.authorization import AuthorizationHandlers
from portside.executor.errors import to_call_failed, to_error
from portside.executor.handler_calls import HandlerRefused
from portside.executor.handlers import AuthHandlers, Users
from portside.executor.link import decode, encode
from portside.executor.user import StudioUser, read_identity

auth = Auth()
ADA = caller_from({"identity": "ada", "permissions": ["read"]})


async def authenticate(authorization: str) -> str:
    return authorization


@auth.on.threads
async def change(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    value["metadata"] = {"owner": ctx.user.identity, "permissions": ctx.permissions}
    value["kwargs"]["context"] = None
    value.pop("webhook")
    return {"owner": ctx.user.identity}


@auth.on(actions="search")
async def refuse(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
    return isinstance(ctx.user, StudioUser)


class Link:
    """The handlers' executor, without a process: what is asked arrives as over a link."""

    def __init__(self) -> None:
        loaded = LoadedAuth(Authentication(authenticate), AuthorizationHandlers(auth))
        self.handlers = AuthHandlers(loaded, Users(), None)  # type: ignore[arg-type]
        self.asked: list[str] = []

    async def call(self, _method: str, question: Any) -> Any:
        self.asked.append(f"{question.resource}.{question.action}")
        return decode(encode(await self.handlers.authorize(decode(encode(question)))))


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def remote(link: Link) -> RemoteAuth:
    return RemoteAuth(link, link.handlers.facts)  # type: ignore[arg-type]


async def test_changes_of_a_handler_and_what_it_removes_come_back(remote: RemoteAuth) -> None:
    value = {"thread_id": "t", "webhook": "https://x", "kwargs": {"context": {"a": 1}}, "metadata": {}}
    allowed = await remote.decide(ADA, "threads", "create_run", value)
    assert allowed == {"equal": {"owner": "ada"}, "rest": []}
    assert value == {
        "thread_id": "t",
        "kwargs": {"context": None},
        "metadata": {"owner": "ada", "permissions": ["read"]},
    }


async def test_an_executor_is_asked_only_where_a_handler_decides(remote: RemoteAuth, link: Link) -> None:
    assert await remote.decide(ADA, "assistants", "read", {}) is None
    assert link.asked == []
    with pytest.raises(Exception, match="Forbidden"):
        await remote.decide(ADA, "assistants", "search", {})
    assert link.asked == ["assistants.search"]


async def test_a_studio_user_is_one_in_the_executor_too(remote: RemoteAuth) -> None:
    studio = caller_from(Auth.types.StudioUser("dev", is_authenticated=True))
    assert await remote.decide(studio, "assistants", "search", {}) is None


def test_a_refusal_keeps_its_status_and_its_headers() -> None:
    """A client learns from `WWW-Authenticate` how to authenticate."""
    refusal = HandlerRefused(401, "Who are you?", {"WWW-Authenticate": "Bearer"})
    error = to_error(to_call_failed(refusal))
    assert isinstance(error, HandlerRefused)
    assert (error.status, error.message, error.headers) == (401, "Who are you?", {"WWW-Authenticate": "Bearer"})


def test_users_are_found_again_as_they_were() -> None:
    users = Users()
    user = read_identity({"identity": "ada", "team": "x"}).user
    sent = messages.read(messages.SentUser, decode(encode(users.remember(user))))
    assert users.find(decode(encode(to_sent_user(read_user(decode(encode(sent))))))) is user

    # Another executor did not make the user, and gets what is known of it.
    again = Users().find(decode(encode(sent)))
    assert (again is not user, again.identity, again["team"]) == (True, "ada", "x")
    assert users.find(None) is None
