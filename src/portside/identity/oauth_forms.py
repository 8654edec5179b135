"""What terminals and the pages for them send to `oauth.py`, and the codes that it returns."""

from typing import Annotated, Literal

import msgspec

Client = Literal["portside-cli"]
# What the terminal says about itself; a page shows it.
HostName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9._-]*$(?!\n)")]
Secret = Annotated[str, msgspec.Meta(max_length=200)]
# The only addresses that get a code: a program on the browser's own machine listens there.
Loopback = Annotated[str, msgspec.Meta(pattern=r"^http://127\.0\.0\.1:[1-9][0-9]{0,4}/callback$(?!\n)", max_length=60)]
UserCode = Annotated[str, msgspec.Meta(max_length=100)]
DecisionButton = Literal["approve", "deny"]


class AuthorizationRequest(msgspec.Struct):
    """The query with which a terminal opens the browser (RFC 6749, 7636 and 8252)."""

    response_type: Literal["code"]
    client_id: Client
    redirect_uri: Loopback
    state: Annotated[str, msgspec.Meta(min_length=16, max_length=200, pattern=r"^[A-Za-z0-9_-]+$(?!\n)")]
    code_challenge: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43}$(?!\n)", max_length=43)]
    code_challenge_method: Literal["S256"]
    host_name: HostName = ""


class AuthorizationForm(AuthorizationRequest, kw_only=True):
    """The request again, with the click."""

    decision: DecisionButton


class DeviceForm(msgspec.Struct):
    """A terminal without a browser (RFC 8628)."""

    client_id: Client
    host_name: HostName = ""


class DeviceAuthorization(msgspec.Struct):
    """The codes of a terminal, and where its user types the user code."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class UserCodeQuery(msgspec.Struct):
    """The code that the page shows in its field."""

    user_code: UserCode = ""


class UserCodeForm(msgspec.Struct):
    """The code that somebody typed."""

    user_code: UserCode


class DecisionForm(UserCodeForm):
    """The code again, with the click."""

    decision: DecisionButton


class TokenForm(msgspec.Struct):
    """What a terminal exchanges for a token: an authorization code with its proof, or a device code."""

    grant_type: Literal["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"]
    client_id: Client
    code: Secret = ""
    redirect_uri: Secret = ""
    code_verifier: Secret = ""
    device_code: Secret = ""
