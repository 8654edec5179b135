"""Real git repositories with agents in them."""

import json
import os
import subprocess
from pathlib import Path

AGENT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    text: str

def answer(state: State) -> dict:
    return {{"text": "{answer}: " + state["text"]}}

graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
"""
CONFIG = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]


class Repository:
    """A git repository with one branch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        done = subprocess.run(
            ["git", *IDENTITY, *arguments], cwd=self.folder, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str]) -> str:
        """Write files, commit them and return the commit."""
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def commit_agent(self, answer: str, **files: str) -> str:
        """Commit an agent that begins its replies with `answer`."""
        named = {name.replace("__", "."): text for name, text in files.items()}
        agent = AGENT.format(answer=answer)
        return self.commit({"langgraph.json": json.dumps(CONFIG), "requirements.txt": "", "agent.py": agent, **named})
