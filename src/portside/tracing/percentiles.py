"""Percentiles of runs from histograms.

Percentiles of days cannot be added up. So a rollup counts the values of a day by bins that grow by 5 %, and a
percentile is the middle of its bin.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

# The measures in the order of `run_measurements`, each with its percentiles in the order of `run_stats`.
SPREADS = {
    "latency": {"latency_p50": 0.5, "latency_p99": 0.99, "latency_p95": 0.95},
    "first_token": {"first_token_p50": 0.5, "first_token_p99": 0.99},
    "prompt_tokens_spread": {"prompt_tokens_p50": 0.5, "prompt_tokens_p99": 0.99},
    "completion_tokens_spread": {"completion_tokens_p50": 0.5, "completion_tokens_p99": 0.99},
    "total_tokens_spread": {"median_tokens": 0.5, "tokens_p99": 0.99},
    "cost": {"cost_p50": 0.5, "cost_p99": 0.99},
}
# The measures that are numbers of tokens, and so whole numbers.
_WHOLE_MEASURES = frozenset({2, 3, 4})
# The bins of a measure, the one that begins at the value 1, and how much wider each is than the one before it. The SQL
# function `histogram_bin` has the same numbers.
_BINS = 2000
_BIN_OF_ONE = 1000
_GROWTH = 1.05


def compute_percentiles(bins: list[int], counts: list[int]) -> Iterator[tuple[str, list[float] | None]]:
    """Yield the percentiles of each measure from the number of values in each bin; None without values."""
    for measure, (name, shares) in enumerate(SPREADS.items()):
        first = bisect_right(bins, measure * _BINS - 1)
        last = bisect_right(bins, (measure + 1) * _BINS - 1)
        if first == last:
            yield name, None
        else:
            yield name, _interpolate_percentiles(measure, bins[first:last], counts[first:last], shares.values())


def _interpolate_percentiles(measure: int, bins: list[int], counts: list[int], shares: Iterable[float]) -> list[float]:
    """Return what Postgres' `percentile_cont` returns if each value is the middle of its bin."""
    ends = list(accumulate(counts))

    def get_value(rank: int) -> float:
        return _get_bin_middle(measure, bins[bisect_right(ends, rank)])

    percentiles = []
    for share in shares:
        rank, rest = divmod(share * (ends[-1] - 1), 1)
        percentile = get_value(int(rank))
        if rest:
            percentile += rest * (get_value(int(rank) + 1) - percentile)

        percentiles.append(percentile)

    return percentiles


def _get_bin_middle(measure: int, bin_number: int) -> float:
    """Return the middle of a bin."""
    power = bin_number % _BINS
    middle = _GROWTH ** (power - _BIN_OF_ONE + 0.5) if power else 0.0
    return float(round(middle)) if measure in _WHOLE_MEASURES else middle
