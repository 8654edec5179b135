"""Chooses the bus between processes: the only place that knows all of them."""

from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.bus import Bus, Silence
from portside.agent.streams.bus_postgres import PostgresBus
from portside.kernel.db import Database


async def open_bus(db: Database, settings: AgentSettings, database_url: str) -> Bus:
    """Return the bus that is configured: Redis where REDIS_URI names one, else Postgres. Raises UserMistake."""
    if settings.stream_bus == "none":
        return Silence()
    if settings.redis_uri is None:
        return PostgresBus(database_url)
    from portside.agent.streams.bus_redis import RedisBus

    channel = f"{settings.redis_key_prefix}portside:{await db.fetchval(sql.bus_name)}"
    return RedisBus(settings.redis_uri, channel, settings.redis_max_connections)
