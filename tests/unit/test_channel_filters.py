"""Which events of the event streaming protocol a reader gets, and what requests for them are refused."""

import json
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.protocol.channel_filters import (
    MAX_CHANNELS,
    MAX_NAMESPACES,
    MAX_SEQ,
    ChannelFilter,
    read_filter,
    read_stream_request,
)
from portside.agent.protocol.subscriptions import SUBSCRIPTIONS_LIMIT, Subscriptions
from portside.agent.protocol.wire import CommandError
from portside.agent.streams.hub import Hub
from portside.kernel.errors import BadRequest

ROOT: tuple[str, ...] = ()
CHILD = ("child:1",)
GRANDCHILD = ("child:1", "inner:2")
VALUES = frozenset({"values"})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [ROOT, CHILD, GRANDCHILD]),
        ({"depth": 0}, [ROOT]),
        ({"depth": 1}, [ROOT, CHILD]),
        ({"namespaces": (CHILD,)}, [CHILD, GRANDCHILD]),
        ({"namespaces": (("child",),)}, [CHILD, GRANDCHILD]),
        ({"namespaces": (("child",),), "depth": 0}, [CHILD]),
        ({"namespaces": (("child:2",), ("chil",))}, []),
        ({"namespaces": (GRANDCHILD,), "depth": 0}, [GRANDCHILD]),
    ],
)
def test_namespaces_and_depth_choose_subgraphs(given: dict[str, Any], wanted: list[tuple[str, ...]]) -> None:
    channel_filter = ChannelFilter(VALUES, **given)
    assert [place for place in (ROOT, CHILD, GRANDCHILD) if channel_filter.wants("values", place)] == wanted
    assert not channel_filter.wants("updates", ROOT)


def test_custom_channel_has_those_with_names_and_a_name_only_itself() -> None:
    channels = ("custom", "custom:a", "custom:b")
    for asked, found in (("custom", channels), ("custom:a", ("custom:a",))):
        channel_filter = read_filter({"channels": [asked]})
        assert tuple(channel for channel in channels if channel_filter.wants(channel, ROOT)) == found


@pytest.mark.parametrize(
    ("since", "header", "found"),
    [(None, None, None), (5, None, 5), (None, "7", 7), (5, "7", 5), (0, "7", 0), (None, "x", None), (None, "-1", None)],
)
def test_last_event_id_stands_in_for_a_missing_since(since: int | None, header: str | None, found: int | None) -> None:
    body = json.dumps({"channels": ["values"], "since": since}).encode()
    assert read_stream_request(body, header).since == found


def test_no_header_names_more_than_the_highest_number() -> None:
    body = b'{"channels": ["values"]}'
    assert read_stream_request(body, str(MAX_SEQ + 1)).since == MAX_SEQ


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"channels": ["custom:a"] * (MAX_CHANNELS + 1)}, f"at most {MAX_CHANNELS} channels"),
        ({"channels": ["custom:"]}, "unsupported entries: custom:"),
        ({"channels": ["values", 7]}, "unsupported entries: 7"),
        ({"channels": ["values"], "namespaces": [["a"]] * (MAX_NAMESPACES + 1)}, f"at most {MAX_NAMESPACES}"),
        ({"channels": ["values"], "depth": -1}, "must not be negative"),
        ({"channels": ["values"], "since": -1}, "must not be negative"),
        ({"channels": ["values"], "since": MAX_SEQ + 1}, f"at most {MAX_SEQ}"),
    ],
)
def test_filters_beyond_the_limits_are_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_filter(params)


def test_filters_up_to_the_limits_are_taken() -> None:
    channels = [f"custom:{number}" for number in range(MAX_CHANNELS)]
    params = {"channels": channels, "namespaces": [["a"]] * MAX_NAMESPACES, "depth": 0, "since": MAX_SEQ}
    assert read_filter(params).channels == set(channels)


async def test_connection_has_a_limited_number_of_subscriptions_begun_or_not() -> None:
    subscriptions = Subscriptions(Hub(keep_s=60), uuid4())
    params = {"channels": ["values"]}
    first = await subscriptions.subscribe(params)
    subscriptions.begin()
    for _ in range(SUBSCRIPTIONS_LIMIT - 1):
        await subscriptions.subscribe(params)

    with pytest.raises(CommandError, match=str(SUBSCRIPTIONS_LIMIT)):
        await subscriptions.subscribe(params)

    assert subscriptions.unsubscribe(first["subscription_id"])
    assert not subscriptions.unsubscribe(first["subscription_id"])
    await subscriptions.subscribe(params)
