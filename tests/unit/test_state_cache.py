"""The cache of thread states: bounded by bytes, and an answer serves only the user it was computed for."""

from portside.agent.threads.reading import ENTRY_BYTES, LARGEST_SHARE, CachedState, StateCache, StateKey

LIMIT = 20 * ENTRY_BYTES


def key(number: int) -> StateKey:
    return StateKey(number, None, "")


def test_least_recently_used_state_is_evicted():
    cache = StateCache(LIMIT)
    for number in range(19):
        cache.put(key(number), CachedState("v1", None, b"state"))

    assert cache.get(key(0), None) == CachedState("v1", None, b"state")
    cache.put(key(19), CachedState("v1", None, b"state"))
    assert [cache.get(key(number), None) is None for number in (0, 1, 2, 19)] == [False, True, False, False]
    assert 0 < cache.size <= LIMIT


def test_oversized_state_is_not_cached_and_replaces_nothing():
    cache = StateCache(LIMIT)
    cache.put(key(1), CachedState("first", None, b"state"))
    cache.put(key(1), CachedState("second", None, b"s" * (LIMIT // LARGEST_SHARE)))
    assert (cache.get(key(1), None), cache.size) == (None, 0)


def test_cache_of_zero_bytes_keeps_nothing():
    cache = StateCache(0)
    cache.put(key(1), CachedState("v1", None, b""))
    assert (cache.get(key(1), None), cache.size) == (None, 0)


def test_state_is_cached_for_one_user():
    cache = StateCache(LIMIT)
    cache.put(key(1), CachedState("v1", {"plan": "free"}, b"state"))
    assert cache.get(key(1), {"plan": "paid"}) is None
    assert cache.get(key(1), {"plan": "free"}) is not None
    cache.drop(key(1))
    assert cache.get(key(1), {"plan": "free"}) is None
