"""The length limit of a search, derived from the lengths of the training pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.token_store import LengthCounts
from dragoman.search import LengthLimit
from dragoman.text import Framing
from dragoman.training.defaults import Choice

Numbers = NDArray[np.float64]

QUANTILE = 0.99  # share of the pairs that the line is drawn above: misaligned pairs, up to 1 %, do not raise it
MARGIN = 2.0  # the limit is this multiple of the line
ROOM = 5  # tokens more, for very short sources
FEWEST = 100  # pairs from which on lengths can be estimated
SLOPES = 41  # slopes that are tried
MOST = 100_000  # different pairs of lengths that are looked at
WILD = 0.001  # share of the training pairs beyond the limit from which on the limit is at least the default


def choose_length_limit(config: Config, lengths: LengthCounts | None, framing: Framing) -> tuple[Config, list[Choice]]:
    """Set `search.length_ratio` and `search.length_offset` where the user did not; without `lengths`, to the defaults.

    `lengths` are those of the training pairs, without the symbols around them, which a search counts.
    """
    search = config.search
    if search.length_ratio is not None and search.length_offset is not None:
        return config, []
    ratio, extra = search.length_ratio, search.length_offset
    reason = ""
    if lengths is not None and lengths.pairs.sum() >= FEWEST:
        source = (lengths.source + len(framing.source_prefix) + len(framing.source_suffix)).astype(np.float64)
        target = (lengths.target + len(framing.forced_bos) + 1).astype(np.float64)  # END
        ratio, extra = length_limit(source, target, lengths.pairs, ratio, extra)
        reason = f"{MARGIN:g}× the limit that {QUANTILE:.0%} of the training pairs keep to"
    resolved = replace(
        search,
        length_ratio=LengthLimit.ratio if ratio is None else ratio,
        length_offset=LengthLimit.offset if extra is None else extra,
    )
    chosen = [
        Choice(f"search.{name}", getattr(resolved, name), reason)
        for name in ("length_ratio", "length_offset")
        if reason and getattr(search, name) is None
    ]
    return replace(config, search=resolved), chosen


def length_limit(
    source: Numbers, target: Numbers, pairs: NDArray[np.int64], ratio: float | None = None, extra: int | None = None
) -> tuple[float, int]:
    """The limit `ratio` · source + `extra` for targets, from how many `pairs` have which lengths; END included.

    Of all lines a·s + b (a, b ≥ 0) that 99 % of the pairs lie under, the one with the smallest mean over the sources is
    taken, and doubled. Where targets grow with their sources, that is a ratio; where they do not (summaries), it is a
    constant; where both play a part (short sources), it is both. Outliers have no influence as long as they are fewer
    than 1 %. Where more than 0.1 % of the training pairs are beyond the limit all the same, the lengths follow no
    such law, and the limit is at least the default. A `ratio` or `extra` that is given is kept.
    """
    if len(pairs) > MOST:
        some = np.linspace(0, len(pairs) - 1, MOST).astype(np.int64)
        source, target, pairs = source[some], target[some], pairs[some]
    mean = float(source @ pairs / pairs.sum())
    steepest = _quantile(target / source, pairs)
    slopes = np.linspace(0, steepest, SLOPES) if ratio is None else np.array([ratio / MARGIN])
    if ratio is None and extra is not None:
        constant = max(0, extra - ROOM) / MARGIN
        slopes = np.array([max(0.0, _quantile((target - constant) / source, pairs))])
    lines = [(slope, max(0.0, _quantile(target - slope * source, pairs))) for slope in slopes.tolist()]
    slope, constant = min(lines, key=lambda line: line[0] * mean + line[1])
    found = min(100.0, math.ceil(100 * MARGIN * slope) / 100), math.ceil(MARGIN * constant) + ROOM
    beyond = target > np.floor(found[0] * source) + found[1]
    if pairs[beyond].sum() > WILD * pairs.sum():
        found = max(found[0], LengthLimit.ratio), max(found[1], LengthLimit.offset)
    return found[0] if ratio is None else ratio, found[1] if extra is None else extra


def _quantile(values: Numbers, pairs: NDArray[np.int64]) -> float:
    """The smallest value that at least `QUANTILE` of the pairs do not exceed."""
    order = np.argsort(values, kind="stable")
    place = np.searchsorted(np.cumsum(pairs[order]), QUANTILE * pairs.sum())
    return float(values[order[min(int(place), len(order) - 1)]])
