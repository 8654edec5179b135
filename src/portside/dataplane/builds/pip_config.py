"""A project's pip configuration file, told to uv: which indexes there are and how they are reached.

What it says of other things is named, so that the log shows what was not acted on. Addresses may hold passwords, so
they go into the environment and never into arguments.
"""

import configparser
from dataclasses import dataclass, field
from pathlib import Path

from portside.dataplane.failures import BuildFailed

_MAX_BYTES = 100_000
_SECTIONS = ("global", "install")
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}


@dataclass(frozen=True)
class PipConfig:
    """Variables for uv, and the names of options that it cannot be told."""

    variables: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def read_pip_config(path: Path, name: str) -> PipConfig:
    """Read a pip configuration file. Raises BuildFailed that names it."""
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise BuildFailed(f"pip_config_file {name!r}: there is no such file, or it is larger than {_MAX_BYTES} bytes")
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text())
    except (configparser.Error, UnicodeDecodeError) as exc:
        raise BuildFailed(f"pip_config_file {name!r} cannot be read") from exc
    found = PipConfig()
    for section in parser.sections():
        for option, value in parser.items(section):
            variable = _VARIABLES.get(option.replace("_", "-")) if section in _SECTIONS else None
            if variable is None:
                found.skipped.append(f"{section}.{option}")
            else:
                found.variables[variable] = _value(variable, value)
    return found


def _value(variable: str, value: str) -> str:
    words = value.split()
    return ",".join(words) if variable == "UV_FIND_LINKS" else " ".join(words)
