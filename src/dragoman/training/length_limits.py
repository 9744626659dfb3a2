"""The length limit of a search, estimated from the lengths of the training pairs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dragoman.data.token_store import LengthCounts
from dragoman.search.search_config import DEFAULT_OFFSET, DEFAULT_RATIO
from dragoman.text import Framing
from dragoman.training.defaults import Defaults

Numbers = NDArray[np.float64]

QUANTILE = 0.99  # share of pairs below the fitted line: up to 1 % of misaligned pairs do not raise it
LIMIT_FACTOR = 2.0  # the limit is this multiple of the line
EXTRA_TOKENS = 5  # added for very short sources
MIN_ESTIMATION_PAIRS = 100  # training pairs that an estimate needs
NUM_SLOPES = 41  # slopes of lines that are tried
MAX_LENGTH_PAIRS = 100_000  # different pairs of source and target length that an estimate uses
MAX_SHARE_BEYOND_LIMIT = 0.001  # of the training pairs


def choose_length_limit(
    defaults: Defaults, lengths: LengthCounts | None, framing: Framing, valid_lengths: LengthCounts | None = None
) -> None:
    """Choose the length limit of a search, `search.length_ratio` · source length + `search.length_offset` tokens.

    It is estimated from the training pairs, and then raised so that no validation target exceeds it. What the user has
    set stays.

    Args:
        defaults: the configuration so far, in which the settings are set and recorded.
        lengths: numbers of training pairs by source and target length in tokens, without special tokens. If it is None,
            fixed defaults are set; with fewer than 100 pairs, too, but the offset is raised for them.
        framing: special tokens around source and target, which a search counts, too.
        valid_lengths: numbers of validation pairs by length.
    """
    configured = {name: getattr(defaults.config.search, name) for name in ("length_ratio", "length_offset")}
    missing = [name for name, value in configured.items() if value is None]  # not set by the user
    if not missing:
        return
    if lengths is None:
        values = {"length_ratio": DEFAULT_RATIO, "length_offset": DEFAULT_OFFSET}
        defaults.set_quietly({f"search.{name}": values[name] for name in missing})
        return
    given_ratio, given_offset = configured.values()
    source, target = _lengths_in_search(lengths, framing)
    reason = f"{LIMIT_FACTOR:g}× the length that {QUANTILE:.0%} of the training pairs do not exceed"
    if lengths.pairs.sum() < MIN_ESTIMATION_PAIRS:
        ratio = DEFAULT_RATIO if given_ratio is None else given_ratio
        offset = max(DEFAULT_OFFSET, _offset_for(source, target, ratio))
        reason = "few training pairs, all of which are within it"
    else:
        ratio, offset = length_limit(source, target, lengths.pairs, given_ratio, given_offset)
    if valid_lengths is not None and given_offset is None:
        valid_source, valid_target = _lengths_in_search(valid_lengths, framing)
        needed_offset = _offset_for(valid_source, valid_target, ratio)
        if needed_offset > offset:
            offset, reason = needed_offset, "so that no validation pair exceeds the limit"
    limit = {"length_ratio": ratio, "length_offset": offset}
    formula = f"at most {ratio:g} × source tokens + {offset} tokens"
    for name in missing:
        defaults.set_and_report(f"search.{name}", limit[name], f"{formula}: {reason}")


def _lengths_in_search(lengths: LengthCounts, framing: Framing) -> tuple[Numbers, Numbers]:
    """Return source and target lengths as a search counts them, with the special tokens of `framing`; two arrays."""
    source = lengths.source + len(framing.source_prefix) + len(framing.source_suffix)
    target = lengths.target + len(framing.forced_bos) + 1  # tokens forced after BOS, and EOS
    return source.astype(np.float64), target.astype(np.float64)


def _offset_for(source: Numbers, target: Numbers, ratio: float) -> int:
    """Return the smallest offset ≥ 0 with which no target length exceeds ⌊`ratio` · source length⌋ + offset.

    `source` and `target` have the lengths of pairs in tokens.
    """
    return int((target - np.floor(ratio * source)).max(initial=0))


def length_limit(
    source: Numbers, target: Numbers, pairs: NDArray[np.int64], ratio: float | None = None, offset: int | None = None
) -> tuple[float, int]:
    """Return ratio and offset of a limit of target lengths, ratio · source length + offset, estimated from pairs.

    Of all lines a·source + b (a, b ≥ 0) that 99 % of the targets do not exceed, the one with the smallest mean over the
    sources is doubled, and five tokens are added. It is a ratio (at most 100) if targets grow with their sources, a
    constant if they do not (summaries), or both. Fewer than 1 % of outliers have no influence. If more than 0.1 % of
    the training pairs exceed the limit, lengths do not follow a line, and the limit is at least the default.

    Args:
        source, target, pairs: for each combination of lengths that occurs, source and target length in tokens including
            EOS, and the number of pairs with these lengths.
        ratio, offset: values that the user has set and that are returned unchanged; None: to be estimated.
    """
    if len(pairs) > MAX_LENGTH_PAIRS:  # more combinations of lengths than are needed
        sample = np.linspace(0, len(pairs) - 1, MAX_LENGTH_PAIRS).astype(np.int64)
        source, target, pairs = source[sample], target[sample], pairs[sample]
    mean_source = float(source @ pairs / pairs.sum())
    if ratio is not None:  # the only slope to try, before it is doubled
        slopes = np.array([ratio / LIMIT_FACTOR])
    elif offset is not None:  # the smallest slope with which 99 % of the targets lie below a line with this constant
        constant = max(0, offset - EXTRA_TOKENS) / LIMIT_FACTOR  # before it is doubled and extra tokens are added
        slopes = np.array([max(0.0, _quantile((target - constant) / source, pairs))])
    else:
        slopes = np.linspace(0, _quantile(target / source, pairs), NUM_SLOPES)
    # for each slope a, the smallest constant b with which 99 % of the targets lie below the line
    constants = [max(0.0, _quantile(target - slope * source, pairs)) for slope in slopes.tolist()]
    means = [slope * mean_source + constant for slope, constant in zip(slopes.tolist(), constants)]
    _, slope, constant = min(zip(means, slopes.tolist(), constants))  # the line with the smallest mean over the sources
    fitted_ratio = min(100.0, math.ceil(100 * LIMIT_FACTOR * slope) / 100)  # rounded up to two decimals
    fitted_offset = math.ceil(LIMIT_FACTOR * constant) + EXTRA_TOKENS
    exceeds_limit = target > np.floor(fitted_ratio * source) + fitted_offset
    if pairs[exceeds_limit].sum() > MAX_SHARE_BEYOND_LIMIT * pairs.sum():
        fitted_ratio, fitted_offset = max(fitted_ratio, DEFAULT_RATIO), max(fitted_offset, DEFAULT_OFFSET)
    return fitted_ratio if ratio is None else ratio, fitted_offset if offset is None else offset


def _quantile(values: Numbers, pairs: NDArray[np.int64]) -> float:
    """Return the smallest of `values` that 99 % (`QUANTILE`) of the pairs do not exceed.

    `pairs[i]` is the number of pairs with `values[i]`.
    """
    order = np.argsort(values, kind="stable")
    position = np.searchsorted(np.cumsum(pairs[order]), QUANTILE * pairs.sum())
    return float(values[order[min(int(position), len(order) - 1)]])
