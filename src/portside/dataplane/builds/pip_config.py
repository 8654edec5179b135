"""The pip configuration file of a project, translated into variables for uv."""

import configparser
from dataclasses import dataclass, field
from pathlib import Path

from portside.dataplane.failures import BuildFailed

_MAX_PIP_CONFIG_BYTES = 100_000
_PIP_SECTIONS = ("global", "install")
_UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}


@dataclass(frozen=True)
class PipConfig:
    """Variables for uv, and the names of the options for which uv has none.

    Addresses may contain passwords, so they are passed as variables and never as arguments.
    """

    variables: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def read_pip_config(path: Path, name: str) -> PipConfig:
    """Read a pip configuration file. Raises BuildFailed with its name."""
    if not path.is_file() or path.stat().st_size > _MAX_PIP_CONFIG_BYTES:
        raise BuildFailed(
            f"pip_config_file {name!r}: there is no such file, or it is larger than {_MAX_PIP_CONFIG_BYTES} bytes"
        )

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text())
    except (configparser.Error, UnicodeDecodeError) as exc:
        raise BuildFailed(f"pip_config_file {name!r} is not a valid pip configuration file") from exc

    config = PipConfig()
    for section in parser.sections():
        for option, value in parser.items(section):
            variable = _UV_VARIABLES.get(option.replace("_", "-")) if section in _PIP_SECTIONS else None
            if variable is None:
                config.skipped.append(f"{section}.{option}")
            else:
                config.variables[variable] = _uv_value(variable, value)

    return config


def _uv_value(variable: str, value: str) -> str:
    words = value.split()
    return ",".join(words) if variable == "UV_FIND_LINKS" else " ".join(words)
