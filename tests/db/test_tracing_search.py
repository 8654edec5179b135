"""Text is found in runs as people write it, however the JSON that holds it was written."""

import json
from typing import Any
from uuid import UUID

import pytest

from portside.identity.types import Actor
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.tracing.attachments import DownloadLinks
from portside.tracing.ingest import store_batch
from portside.tracing.ingest_parser import parse_batch
from portside.tracing.runs import RunPage, query_runs
from portside.tracing.stats import Grouping, StatsRequest, get_stats

PACKAGES = ("portside.identity", "portside.tracing")
LINKS = DownloadLinks(SecretBox(bytes(32)), "")
TEXTS = [
    "plain words",
    'say "hi" now',
    "C:\\temp\\x",
    "line1\nline2",
    "tab\there",
    "bell\x07rings",
    "Jürgen Ängst",
    "会话",
    "a 😀 face",
    "</b> & more",
    "a/b",
]


def as_html(document: Any) -> str:
    """Write JSON as Go does, which escapes marks of HTML."""
    text = json.dumps(document, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


WRITERS = {
    "UTF-8": lambda document: json.dumps(document, ensure_ascii=False),
    "ASCII": json.dumps,
    "HTML": as_html,
    "slashes": lambda document: json.dumps(document, ensure_ascii=False).replace("/", "\\/"),
}


async def store(db: Database, actor: Actor, write: Any, field: str) -> None:
    runs = [
        {"id": str(UUID(int=at)), "name": f"r{at}", "start_time": "2026-11-21T02:04:40Z", field: {"x": [text]}}
        for at, text in enumerate(TEXTS)
    ]

    batch = parse_batch(write({"post": runs}).encode(), "")
    await store_batch(db, batch, by=actor)


async def query_names(db: Database, actor: Actor, **query: Any) -> list[str]:
    page = await query_runs(db, actor.workspace_id, RunPage(**query), LINKS)
    return [run["name"] for run in page.runs]


@pytest.mark.parametrize("writer", WRITERS)
async def test_text_with_escapes_is_found(db: Database, actor: Actor, writer: str):
    await store(db, actor, WRITERS[writer], "inputs")

    for at, text in enumerate(TEXTS):
        name = [f"r{at}"]
        assert await query_names(db, actor, query=text.upper()) == name, text
        assert await query_names(db, actor, filter=f"search({json.dumps(text)})") == name, text
        assert await query_names(db, actor, filter=f"search(inputs, {json.dumps(text)})") == name, text
        assert await query_names(db, actor, filter=f"search(outputs, {json.dumps(text)})") == [], text


async def test_the_json_itself_is_found_too(db: Database, actor: Actor):
    await store(db, actor, WRITERS["UTF-8"], "outputs")
    assert await query_names(db, actor, query='"x": ["plain') == ["r0"]
    assert await query_names(db, actor, filter='search(outputs, "plain")') == ["r0"]


async def test_filters_read_the_escapes_of_json(db: Database, actor: Actor):
    names = ["plain", "Jürgen", "会话", 'quo"te', "back\\slash", "😀"]
    runs = [
        {
            "id": str(UUID(int=at)),
            "name": f"r{at}",
            "tags": [name],
            "extra": {"metadata": {"thread_id": name, "kü": name}},
        }
        for at, name in enumerate(names)
    ]

    await store_batch(db, parse_batch(json.dumps({"post": runs}).encode(), ""), by=actor)

    for at, name in enumerate(names):
        for text in (json.dumps(name), json.dumps(name, ensure_ascii=False)):
            assert await query_names(db, actor, filter=f"eq(thread_id, {text})") == [f"r{at}"]
            assert await query_names(db, actor, filter=f"has(tags, {text})") == [f"r{at}"]
            assert await query_names(db, actor, filter=f'has("tags", {text})') == [f"r{at}"]
            pair = f'and(eq(metadata_key, "k\\u00fc"), eq(metadata_value, {text}))'
            assert await query_names(db, actor, filter=pair) == [f"r{at}"]
            held = json.dumps({"thread_id": name})
            assert await query_names(db, actor, filter=f"has(metadata, '{held}')") == [f"r{at}"]

            assert await query_names(db, actor, filter=f'has("metadata", {json.dumps(held)})') == [f"r{at}"]

    grouped = StatsRequest(group_by=Grouping(attribute="metadata", path="kü", max_groups=10))
    assert set(await get_stats(db, actor.workspace_id, grouped)) == set(names)
