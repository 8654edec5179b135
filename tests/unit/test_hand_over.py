"""What a platform hands over to the program that replaces it in the same process."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from portside.platform import hand_over
from portside.platform.hand_over import HandedOver, execute_next, name_next, take_handed_over


class Executions:
    """Stands in for the system's call that replaces the program, and notes what it would have executed."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.environment: dict[str, str] = {}

    def execve(self, path: str, arguments: list[str], environment: dict[str, str]) -> None:
        """Note a program; unlike the system's call, this one returns."""
        assert path == arguments[0]
        self.commands.append(arguments)
        self.environment = environment


@pytest.fixture(autouse=True)
def executions(monkeypatch: pytest.MonkeyPatch) -> Executions:
    executions = Executions()
    monkeypatch.setattr(os, "execve", executions.execve)
    monkeypatch.setattr(sys, "argv", ["portside", "up", "--port", "8123"])
    monkeypatch.delenv(hand_over._VARIABLE, raising=False)
    return executions


def become_the_next_program(monkeypatch: pytest.MonkeyPatch, executions: Executions) -> None:
    """Set the variables that the executed program would start with."""
    monkeypatch.setattr(os, "environ", dict(executions.environment))


def test_descriptors_stay_open_in_the_next_program(
    tmp_path: Path, executions: Executions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, (tmp_path / "lock").open("w") as lock:
        descriptors = [listening.fileno(), lock.fileno()]
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)

        execute_next(tmp_path, HandedOver(listening=listening.fileno(), postgres_lock=lock.fileno(), front=7))
        assert all(os.get_inheritable(descriptor) for descriptor in descriptors)

        become_the_next_program(monkeypatch, executions)
        handed: Any = take_handed_over()
        assert handed == HandedOver(listening=listening.fileno(), postgres_lock=lock.fileno(), front=7)

        # The programs that the next one starts inherit nothing of it.
        listening.detach()
        with handed.socket() as taken:
            assert taken.fileno() == descriptors[0]
            assert taken.getsockname()[0] == "127.0.0.1"
            assert not taken.get_inheritable()
            assert not taken.getblocking()


def test_what_was_handed_over_is_taken_once(
    tmp_path: Path, executions: Executions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs that the platform starts must not take it for theirs."""
    with socket.socket() as listening:
        execute_next(tmp_path, HandedOver(listening=listening.fileno()))
        become_the_next_program(monkeypatch, executions)
        assert take_handed_over() == HandedOver(listening=listening.fileno(), postgres_lock=None, front=None)
        assert take_handed_over() is None
        assert hand_over._VARIABLE not in os.environ


def test_nothing_is_taken_after_a_usual_start() -> None:
    assert take_handed_over() is None


def test_next_interpreter_is_used_once(tmp_path: Path, executions: Executions) -> None:
    name_next(tmp_path, "/next/bin/python")
    with socket.socket() as listening:
        handed = HandedOver(listening=listening.fileno())
        execute_next(tmp_path, handed)
        execute_next(tmp_path, handed)

    command = ["-P", "-m", "portside", "up", "--port", "8123"]
    assert executions.commands == [["/next/bin/python", *command], [sys.executable, *command]]


def test_next_program_keeps_the_environment(
    tmp_path: Path, executions: Executions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTSIDE_LOG_LEVEL", "debug")
    with socket.socket() as listening:
        execute_next(tmp_path, HandedOver(listening=listening.fileno()))

    assert executions.environment["PORTSIDE_LOG_LEVEL"] == "debug"
