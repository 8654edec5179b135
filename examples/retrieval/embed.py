"""Vectors of texts without a model: two texts are near each other if they share words.

It is enough to see how search works. For meaning beyond words, name a model in langgraph.json: the README shows how.
"""

import hashlib
import math
import re

DIMENSIONS = 256
# Words that say nothing about the topic of a text.
COMMON = {
    "a",
    "and",
    "are",
    "for",
    "how",
    "in",
    "is",
    "it",
    "of",
    "on",
    "or",
    "the",
    "this",
    "to",
    "we",
    "what",
    "with",
}


def embed(texts: list[str]) -> list[list[float]]:
    """Return a vector of length one for each text."""
    return [to_vector(text) for text in texts]


def to_vector(text: str) -> list[float]:
    """Count the words of a text, each in a place that its hash chooses."""
    counts = [0.0] * DIMENSIONS
    for word in set(re.findall(r"\w+", text.lower())) - COMMON:
        digest = hashlib.sha256(word.rstrip("s").encode()).digest()
        counts[int.from_bytes(digest[:4]) % DIMENSIONS] += 1

    length = math.hypot(*counts) or 1
    return [count / length for count in counts]
