"""The envelopes of JSON-RPC: requests taken apart, answers put together."""

from typing import Any, NamedTuple

from portside.agent.a2a.errors import BadParams, CallFailed, NoRequest, NotJson
from portside.kernel.codec import dump_user
from portside.kernel.errors import Invalid
from portside.kernel.http.refusals import in_words
from portside.kernel.http.sse import sse_event
from portside.kernel.http.vetting import read_json

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN = "a2a-protocol.org"
LONGEST_ID = 1000

Id = str | int | None


class Request(NamedTuple):
    """A call of a method."""

    id: Id
    method: str
    params: dict[str, Any]


class BadCall(Exception):
    """What came is no call; `id` is what it may have been called, `failure` says what is wrong."""

    def __init__(self, failure: CallFailed, request_id: Id = None) -> None:
        super().__init__(failure.message)
        self.id, self.failure = request_id, failure


def read_request(raw: bytes) -> Request:
    """Read a request. Raises BadCall; a notification is none, for nobody would learn what became of its task."""
    try:
        given = read_json(raw)
    except Invalid as exc:
        is_json = exc.problems[0].type != "json_invalid"
        raise BadCall(BadParams(in_words(exc.problems)) if is_json else NotJson()) from exc
    if not isinstance(given, dict):
        why = "batches are not supported" if isinstance(given, list) else "a request is an object"
        raise BadCall(NoRequest(f"Invalid Request: {why}"))
    request_id = given.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        raise BadCall(NoRequest("Invalid Request: id must be a string or an integer"))
    if isinstance(request_id, str) and len(request_id) > LONGEST_ID:
        raise BadCall(NoRequest(f"Invalid Request: id must have at most {LONGEST_ID} characters"))
    if given.get("jsonrpc") != "2.0":
        raise BadCall(NoRequest('Invalid Request: jsonrpc must be "2.0"'), request_id)
    method, params = given.get("method"), given.get("params")
    if not isinstance(method, str) or not method:
        raise BadCall(NoRequest("Invalid Request: method must be a string"), request_id)
    if params is not None and not isinstance(params, dict):
        raise BadCall(BadParams("Invalid params: params must be an object"), request_id)
    return Request(request_id, method, params or {})


def answer(request_id: Id, result: Any) -> bytes:
    """Encode the answer to a call; the result may hold values of the user's graph."""
    return dump_user({"jsonrpc": "2.0", "id": request_id, "result": result})


def refuse(request_id: Id, failure: CallFailed, *, with_details: bool) -> bytes:
    """Encode the failure of a call, with the details that version 1.0 of the protocol wants."""
    error: dict[str, Any] = {"code": failure.code, "message": failure.message}
    if with_details:
        error["data"] = [{"@type": ERROR_INFO, "reason": failure.reason, "domain": DOMAIN, "metadata": {}}]
    return dump_user({"jsonrpc": "2.0", "id": request_id, "error": error})


def event(frame: bytes) -> bytes:
    """Encode an answer as one event of a stream."""
    return sse_event("message", frame)
