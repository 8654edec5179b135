"""The values of rate limits: regions, identities, limits and what is left of one."""

import enum

import msgspec


class Region(enum.StrEnum):
    """A region of the hosted API; limits differ between them (spec: Regions)."""

    US = "us"
    EU = "eu"


class Identity(enum.StrEnum):
    """Whose budget a row speaks of."""

    API_KEY = "x-api-key"
    USER = "x-user-id + IP"
    IP = "IP"


class Limit(msgspec.Struct, frozen=True):
    """So many requests in so many seconds."""

    count: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds}"


class Budget(msgspec.Struct, frozen=True):
    """What is left of a budget after a request, and for how long; or that the request is over it."""

    limit: Limit
    remaining: int
    seconds_left: int
    is_over: bool = False
