"""An embedding that a test can compute in its head: how often a text speaks of cats and of tea."""


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(text.count("cat")), float(text.count("tea"))] for text in texts]
