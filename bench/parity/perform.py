"""Performs the scripts against a server: scenes side by side, those that look at the whole server one by one."""

import asyncio
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import httpx2
from bench.parity import scripts
from bench.parity.talk import UNEXPECTED, Scene, SceneStopped, Talk

AT_ONCE = 8
Record = dict[str, dict[str, dict[str, Any]]]


def script_modules() -> dict[str, ModuleType]:
    """Every script by name; the order is the alphabet's."""
    names = sorted(module.name for module in pkgutil.iter_modules(scripts.__path__))
    return {name: importlib.import_module(f"bench.parity.scripts.{name}") for name in names}


def list_scenes(module: ModuleType) -> dict[str, Scene]:
    """The scenes of a script: its public coroutine functions that are its own."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.iscoroutinefunction(function) and function.__module__ == module.__name__ and name[0] != "_"
    }


async def perform(url: str, only: str = "") -> dict[str, Record]:
    """What a server answers to every script: script -> scene -> step -> answer."""
    found: dict[str, Record] = {name: {} for name in script_modules()}
    gate = asyncio.Semaphore(AT_ONCE)
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:

        async def act(script: str, name: str, scene: Scene) -> None:
            async with gate:
                found[script][name] = await _act(scene, client)

        chosen = [
            (script, name, scene)
            for script, module in script_modules().items()
            for name, scene in list_scenes(module).items()
            if only in f"{script}.{name}"
        ]

        async with asyncio.TaskGroup() as group:
            for script, name, scene in chosen:
                if not getattr(scene, "alone", False):
                    group.create_task(act(script, name, scene))

        for script, name, scene in chosen:
            if getattr(scene, "alone", False):
                await act(script, name, scene)

    return {script: dict(sorted(record.items())) for script, record in found.items() if record}


async def _act(scene: Scene, client: httpx2.AsyncClient) -> dict[str, Any]:
    talk = Talk(client)
    try:
        await scene(talk)
    except (SceneStopped, *UNEXPECTED) as stop:
        talk.steps["(stopped)"] = {"status": 0, "body": talk.names.replace(f"{type(stop).__name__}: {stop}", "id")}

    return talk.steps
