"""Kubernetes' quantities: amounts of CPU, memory and storage as texts, such as 500m, 2Gi and 1e3."""

import re

_FORM = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")
_FACTORS = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)},
}


def parse_quantity(text: str | float) -> float:
    """Return the amount of a quantity. Raises ValueError for a text that is none."""
    form = _FORM.fullmatch(str(text))
    if form is None or form[2] not in _FACTORS:
        raise ValueError(f"{text!r} is no quantity")

    return float(form[1]) * _FACTORS[form[2]]
