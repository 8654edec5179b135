"""Prices of models.

A price applies to the runs of models whose name its pattern matches. There are three sources, and the first one that
matches wins: the workspace, which sets prices over the API; a file of the operator; and `prices.csv`, which is shipped.
Prices of the files apply to all workspaces; they are copied to the table of prices when the platform starts.

The database computes the costs (`functions/costs.sql`). In the table and in the API prices are in USD for one token, in
files for a million tokens.
"""

import csv
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from asyncpg import InvalidRegularExpressionError, ProgramLimitExceededError, UniqueViolationError

from portside.kernel.clock import Moment
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Conflict, Invalid, NotFound, UserMistake
from portside.kernel.ids import uuid7
from portside.tracing.fields import to_utc
from portside.tracing.sql import sql

Price = Annotated[Decimal, msgspec.Meta(description="USD for one token, from 0 to 1.")]
DetailName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Details = Annotated[dict[DetailName, Price], msgspec.Meta(max_length=20)]
MATCH_PATH = ("model", "model_name", "model_id", "model_path", "endpoint_name")
COLUMNS = (
    "name",
    "providers",
    "pattern",
    "from",
    "above",
    "input",
    "output",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "reasoning",
    "audio_input",
    "audio_output",
)
# Columns of files, and the details of usage that they price.
_INPUT_DETAILS = {
    "cache_read": ("cache_read",),
    "cache_write": ("cache_creation", "ephemeral_5m_input_tokens"),
    "cache_write_1h": ("ephemeral_1h_input_tokens",),
    "audio_input": ("audio",),
}
_OUTPUT_DETAILS = {"reasoning": ("reasoning",), "audio_output": ("audio",)}
_MILLION = Decimal(1_000_000)
_MAX_PRICE = Decimal(1)
_MAX_THRESHOLD = 10**12
_BACK_REFERENCE = re.compile(r"\\[1-9]")


class PriceNotFound(NotFound):
    """The workspace has no price with this id. Prices of files can't be changed: set one with the same pattern."""

    code = "model_price_not_found"


class PriceExists(Conflict):
    """The workspace has this price already: the same name, pattern, provider, start time and threshold."""

    code = "model_price_exists"


class PriceRequest(msgspec.Struct, kw_only=True):
    """A price to set. Costs are in USD for one token; details have the names that runs report, such as `cache_read`."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    match_pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    prompt_cost: Price
    completion_cost: Price
    prompt_cost_details: Details | None = None
    completion_cost_details: Details | None = None
    provider: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    start_time: Moment | None = None
    prompt_token_threshold: Annotated[int, msgspec.Meta(ge=0, le=_MAX_THRESHOLD)] | None = None
    match_path: list[Literal["model", "model_name", "model_id", "model_path", "endpoint_name"]] | None = None


class ModelPrice(msgspec.Struct, kw_only=True):
    """A price, in USD for one token as decimal text. `tenant_id` is null for prices of files."""

    id: UUID
    tenant_id: UUID | None
    source: Literal["workspace", "file", "shipped"]
    name: str
    provider: str | None
    match_pattern: str
    start_time: datetime | None
    prompt_token_threshold: int | None
    prompt_cost: str
    completion_cost: str
    prompt_cost_details: dict[str, str] | None
    completion_cost_details: dict[str, str] | None
    match_path: tuple[str, ...] = MATCH_PATH


class PriceQuery(msgspec.Struct):
    """A page of prices; `q` is text in the name, the provider or the pattern."""

    q: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 500


class PricePage(msgspec.Struct):
    """Prices, and the number of all that match."""

    prices: list[ModelPrice]
    total: int


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A price as it is stored."""

    id: UUID
    source: str
    name: str
    provider: str | None
    match_pattern: str
    start_time: datetime | None
    prompt_token_threshold: int | None
    prompt_cost: str
    completion_cost: str
    prompt_cost_details: dict[str, str] | None
    completion_cost_details: dict[str, str] | None


# Files


def read_prices(file: Path | None = None) -> list[PriceRow]:
    """Read the shipped prices, or an operator's file. Raises UserMistake with the line number."""
    source = file or files("portside.tracing").joinpath("prices.csv")
    try:
        text = source.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UserMistake(f"cannot read the prices in {file}: {exc}") from exc

    prices: dict[UUID, PriceRow] = {}
    header: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue

        cells = [cell.strip() for cell in next(csv.reader([line]))]
        try:
            if header is None:
                _check_header(cells)
                header = cells
                continue

            rows = list(_to_rows(_index_by_column(header, cells), "file" if file else "shipped"))
        except ValueError as exc:
            raise UserMistake(f"{file or 'prices.csv'}, line {number}: {exc}") from exc

        prices.update((row.id, row) for row in rows)

    return list(prices.values())


def _check_header(header: list[str]) -> None:
    """Check the names of the columns. Raises ValueError."""
    if missing := {"name", "pattern", "input", "output"} - set(header):
        raise ValueError(f"the header lacks the column {min(missing)}")
    if unknown := set(header) - set(COLUMNS):
        raise ValueError(f"unknown column {min(unknown)}; use {', '.join(COLUMNS)}")


def _index_by_column(header: list[str], cells: list[str]) -> dict[str, str]:
    """Return the cells of a line by the names of their columns. Raises ValueError."""
    if len(cells) != len(header):
        raise ValueError(f"has {len(cells)} columns and the header {len(header)}; quote values with a comma")
    return dict(zip(header, cells, strict=True))


def _to_rows(cells: dict[str, str], source: str) -> Iterator[PriceRow]:
    """Yield a line's price for each of its providers. Raises ValueError."""
    if not cells["name"] or not cells["pattern"]:
        raise ValueError("name and pattern must not be empty")

    try:
        re.compile(cells["pattern"])
    except re.error as exc:
        raise ValueError(f"the pattern is not a regular expression: {exc}") from exc

    providers: list[str] | list[None] = cells.get("providers", "").split() or [None]
    for provider in providers:
        identity = "|".join([source, provider or "", *(cells.get(name, "") for name in COLUMNS)])
        yield PriceRow(
            id=uuid5(NAMESPACE_URL, f"portside:price:{identity}"),
            source=source,
            name=cells["name"],
            provider=provider,
            match_pattern=cells["pattern"],
            start_time=_parse_day(cells.get("from", "")),
            prompt_token_threshold=_parse_threshold(cells.get("above", "")),
            prompt_cost=_parse_price(cells["input"], "input"),
            completion_cost=_parse_price(cells["output"], "output"),
            prompt_cost_details=_parse_details(cells, _INPUT_DETAILS),
            completion_cost_details=_parse_details(cells, _OUTPUT_DETAILS),
        )


def _parse_day(text: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC) if text else None
    except ValueError as exc:
        raise ValueError(f"{text!r} in the column from is not a day such as 2026-11-01") from exc


def _parse_threshold(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and int(text) <= _MAX_THRESHOLD):
        raise ValueError(f"{text!r} in the column above is not a number of tokens")
    return int(text) if text else None


def _parse_price(text: str, column: str) -> str:
    """Return a price for a million tokens as one for a token."""
    try:
        price = Decimal(text) / _MILLION
    except InvalidOperation as exc:
        raise ValueError(f"{text!r} in the column {column} is not a price") from exc

    if not (price.is_finite() and 0 <= price <= _MAX_PRICE):
        raise ValueError(f"{text!r} in the column {column} is not a price from 0 to a million")

    return format(price, "f")


def _parse_details(cells: dict[str, str], names: Mapping[str, tuple[str, ...]]) -> dict[str, str] | None:
    priced = {
        detail: _parse_price(cells[column], column)
        for column, details in names.items()
        if cells.get(column)
        for detail in details
    }

    return priced or None


async def sync_prices(db: Database, file: Path | None = None) -> int:
    """Make the stored prices of files equal to the files; return how many changed. Raises UserMistake."""
    rows = {row.id: row for row in (*read_prices(), *(read_prices(file) if file else ()))}
    stored_ids = {row["id"] for row in await db.fetch(sql.prices_of_files)}
    if stored_ids == set(rows):
        return 0

    async with db.transaction() as tx:
        await tx.execute(sql.lock_prices)
        await tx.execute(sql.delete_prices_of_files, ids=sorted(rows))

        for row in rows.values():
            if row.id not in stored_ids:
                await tx.execute(sql.insert_price, workspace_id=None, **msgspec.structs.asdict(row))
                if row.source == "file":
                    await _check_file_pattern(tx, row, file)

        await tx.execute(sql.match_models_again, workspace_id=None)

    return len(stored_ids ^ set(rows))


async def _check_file_pattern(tx: Session, row: PriceRow, file: Path | None) -> None:
    """Check a pattern that Python accepts. Ingest of a new model would fail if Postgres refused it then.

    Raises UserMistake.
    """
    try:
        await _check_pattern(tx, row.match_pattern)
    except Invalid as exc:
        raise UserMistake(f"{file}: the pattern {row.match_pattern!r} of {row.name!r} {exc.problems[0].msg}") from exc


# Prices of a workspace


async def list_prices(db: Session, workspace_id: UUID, query: PriceQuery) -> PricePage:
    """Return a page of the prices that apply in a workspace."""
    page = {"q": query.q or None, "offset": query.offset, "limit": query.limit}
    rows = await db.fetch(sql.prices, workspace_id=workspace_id, id=None, **page)
    prices = [_to_price(row) for row in rows]
    if not rows and query.offset:
        # Rows carry the total, and a page behind the end has none.
        first_page = {**page, "offset": 0, "limit": 1}
        rows = await db.fetch(sql.prices, workspace_id=workspace_id, id=None, **first_page)

    return PricePage(prices, rows[0]["total"] if rows else 0)


async def create_price(db: Database, workspace_id: UUID, body: PriceRequest) -> ModelPrice:
    """Set a price for runs that are written from now on. Raises PriceExists and Invalid."""
    columns = await _to_columns(db, body)
    async with _change_prices(db, workspace_id) as tx:
        price_id = await tx.fetchval(
            sql.insert_price, id=uuid7(), workspace_id=workspace_id, source="workspace", **columns
        )
        if price_id is None:
            raise PriceExists

    return await _get_price(db, workspace_id, price_id)


async def update_price(db: Database, workspace_id: UUID, price_id: UUID, body: PriceRequest) -> ModelPrice:
    """Replace a price of the workspace. Raises PriceNotFound, PriceExists and Invalid."""
    columns = await _to_columns(db, body)
    try:
        async with _change_prices(db, workspace_id) as tx:
            if await tx.fetchval(sql.update_price, id=price_id, workspace_id=workspace_id, **columns) is None:
                raise PriceNotFound
    except UniqueViolationError as exc:
        raise PriceExists from exc

    return await _get_price(db, workspace_id, price_id)


async def delete_price(db: Database, workspace_id: UUID, price_id: UUID) -> None:
    """Remove a price of the workspace. Raises PriceNotFound."""
    async with _change_prices(db, workspace_id) as tx:
        if not await tx.execute(sql.delete_price, id=price_id, workspace_id=workspace_id):
            raise PriceNotFound


@asynccontextmanager
async def _change_prices(db: Database, workspace_id: UUID) -> AsyncIterator[Session]:
    """A transaction that changes prices, after which the workspace's models match the new ones."""
    async with db.transaction() as tx:
        await tx.execute(sql.lock_prices)
        yield tx
        await tx.execute(sql.match_models_again, workspace_id=workspace_id)


async def _get_price(db: Session, workspace_id: UUID, price_id: UUID) -> ModelPrice:
    rows = await db.fetch(sql.prices, workspace_id=workspace_id, id=price_id, q=None, offset=0, limit=1)
    return _to_price(rows[0])


def _to_price(row: Record) -> ModelPrice:
    columns = dict(row)
    del columns["total"]
    return ModelPrice(**columns)


async def _to_columns(db: Session, body: PriceRequest) -> dict[str, Any]:
    """Return the columns of a price. Raises Invalid."""
    if body.match_path is not None and tuple(body.match_path) != MATCH_PATH:
        raise Invalid.field(["body", "match_path"], f"is always {', '.join(MATCH_PATH)}; leave it out", "not_supported")

    # Matching is case-insensitive anyway, and options must stand at the very beginning.
    pattern = body.match_pattern.removeprefix("(?i)")
    await _check_pattern(db, pattern)

    for name in ("prompt_cost", "completion_cost"):
        _check_price(getattr(body, name), name)

    for name in ("prompt_cost_details", "completion_cost_details"):
        for detail, price in (getattr(body, name) or {}).items():
            _check_price(price, f"{name}.{detail}")

    return {
        "name": body.name,
        "provider": body.provider or None,
        "match_pattern": pattern,
        "start_time": body.start_time and to_utc(body.start_time, "start_time"),
        "prompt_token_threshold": body.prompt_token_threshold,
        "prompt_cost": format(body.prompt_cost, "f"),
        "completion_cost": format(body.completion_cost, "f"),
        "prompt_cost_details": _to_texts(body.prompt_cost_details),
        "completion_cost_details": _to_texts(body.completion_cost_details),
    }


def _to_texts(details: dict[str, Decimal] | None) -> dict[str, str] | None:
    return {name: format(price, "f") for name, price in details.items()} if details else None


def _check_price(price: Decimal, where: str) -> None:
    if not (price.is_finite() and 0 <= price <= _MAX_PRICE and -price.as_tuple().exponent <= 30):  # type: ignore[operator]
        raise Invalid.field(["body", *where.split(".", 1)], "must be USD for one token, from 0 to 1")


async def _check_pattern(db: Session, pattern: str) -> None:
    """Raise Invalid for a pattern that Postgres cannot use, or not in bounded time."""
    problem = None

    if "\x00" in pattern or _BACK_REFERENCE.search(pattern):
        problem = "must have no back references"
    else:
        try:
            await db.fetchval(sql.check_pattern, pattern=pattern)
        except (InvalidRegularExpressionError, ProgramLimitExceededError) as exc:
            problem = f"is not a regular expression of Postgres: {exc}"

    if problem:
        raise Invalid.field(["body", "match_pattern"], problem)
