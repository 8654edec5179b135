"""An embedding that any test can compute in its head: how often a text speaks of each of four things."""

THINGS = ("cat", "dog", "tea", "code")


async def embed(texts: list[str]) -> list[list[float]]:
    if any("unreachable" in text for text in texts):
        raise ConnectionError("the model is down")
    if any("short" in text for text in texts):
        return [[1.0] for _ in texts]

    return [[float(text.count(thing)) for thing in THINGS] for text in texts]


def embed_in_thread(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(thing)) for thing in THINGS] for text in texts]
