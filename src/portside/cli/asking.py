"""Secrets that people type or programs write to standard input: they are on no command line, where others see them."""

import sys

import click

from portside.kernel.errors import UserMistake

MAX_SECRET_LENGTH = 5000


def ask_secret(name: str, *, otherwise: str = "") -> str:
    """Ask for a secret, or read a line of standard input. Raises UserMistake where there is none.

    `otherwise` is what the mistake says beside that.
    """
    if sys.stdin.isatty():
        text = str(click.prompt(name, hide_input=True, err=True))
    else:
        text = sys.stdin.readline(MAX_SECRET_LENGTH)
    if not text.strip():
        raise UserMistake(f"no {name.lower()} was given; write it to standard input{otherwise}")
    return text.strip()
