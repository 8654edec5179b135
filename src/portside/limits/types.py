"""The structs of rate limits: regions, identities, limits and budgets."""

import enum

import msgspec


class Region(enum.StrEnum):
    """A region of the hosted API; limits differ between them."""

    US = "us"
    EU = "eu"


class CallerIdentity(enum.StrEnum):
    """The owner of a row's budget."""

    API_KEY = "x-api-key"
    USER = "x-user-id + IP"
    IP = "IP"


class Limit(msgspec.Struct, frozen=True):
    """A number of requests in a number of seconds."""

    count: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds}"


class Budget(msgspec.Struct, frozen=True):
    """The rest of a budget after a request and the seconds until its reset; `is_over` if the request exceeds it."""

    limit: Limit
    remaining: int
    seconds_left: int
    is_over: bool = False
