"""Random data of the tests is the same for the same seed."""

import random
from uuid import uuid4


def test_ids_come_from_the_seed() -> None:
    drawn = []
    for _ in range(2):
        random.seed(5)
        drawn.append([uuid4() for _ in range(3)])

    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
    assert {made.version for made in drawn[0]} == {4}
