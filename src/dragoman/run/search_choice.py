"""Choice of beam size and length penalty on sentences that were not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman import config as configuration
from dragoman.config import Config, is_automatic
from dragoman.evaluation import MeanStd, format_table
from dragoman.evaluation.metric_score import References, check_equal_counts, reference_lists
from dragoman.evaluation.significance import resample_scores
from dragoman.evaluation.text_metrics import SentenceStatistics, TextMetric
from dragoman.run.run import Run
from dragoman.run.sources import Source, Tag
from dragoman.run_files import CONFIG_FILE
from dragoman.search import Beam
from dragoman.search.length_penalty_sweep import LengthPenaltySweep
from dragoman.storage import write_file

BEAM_SIZES = (1, 2, 5, 10)  # that are compared
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0)  # that are compared
BEAM_SIZE_SETTING, LENGTH_PENALTY_SETTING = CHOSEN_SETTINGS = ("search.beam_size", "search.length_penalty")
MIN_CHOICE_SENTENCES = 50  # with fewer, the default is kept without trying others
EQUAL_POINTS = 0.25  # points of the metric: settings as close as this count as equal
CHOICE_RESAMPLES = 300  # enough for a standard error
DECODING_COST = sum(BEAM_SIZES) / Beam.size  # of a choice, in validations that decode as many sentences


@dataclass(frozen=True)
class SearchCandidate:
    """A beam size and length penalty, and how they compare with the default.

    Attributes:
        score: value of the metric.
        advantage: score − score of the default, where positive is better (also for error rates).
        standard_error: of the advantage, by a paired bootstrap over sentences; 0 for the default.
    """

    beam_size: int
    length_penalty: float
    score: float
    advantage: float
    standard_error: float

    @property
    def lower_bound(self) -> float:
        """The advantage over the default search (points of the metric, positive is better) minus one standard error."""
        return self.advantage - self.standard_error


@dataclass(frozen=True)
class SearchChoice:
    """The chosen beam size and length penalty, and all candidates.

    Attributes:
        varied: names of the settings that were chosen, `CHOSEN_SETTINGS` or one of them.
        metric: name of the metric, such as "BLEU".
        sentences: number of sentences that were decoded.
        candidates: all settings, in order of beam size and length penalty.
        default: the candidate that is used if nothing is chosen.
        chosen: the candidate to use.
    """

    varied: tuple[str, ...]
    metric: str
    sentences: int
    candidates: tuple[SearchCandidate, ...]
    default: SearchCandidate
    chosen: SearchCandidate

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen beam size and length penalty, or the one of them that was varied, by the name of the setting."""
        values = {BEAM_SIZE_SETTING: self.chosen.beam_size, LENGTH_PENALTY_SETTING: self.chosen.length_penalty}
        return {name: values[name] for name in self.varied}

    @property
    def reason(self) -> str:
        """Why these settings were chosen, as a phrase for logs: the gain over the default, such as "+0.31 ± 0.12 …"."""
        chosen, default = self.chosen, self.default
        if chosen is default:
            return "no other setting is better by more than its standard error"
        default_settings = f"beam size {default.beam_size}, α = {default.length_penalty:g}"
        difference = f"{chosen.advantage:+.2f} ± {chosen.standard_error:.2f} compared with {default_settings}"
        return f"{difference}{', and faster' if chosen.beam_size < default.beam_size else ''}"

    def lines(self) -> list[str]:
        """Return the choice as lines of text for a log: a table of scores, one row per beam size, and the reason."""
        penalties = sorted({candidate.length_penalty for candidate in self.candidates})
        columns: dict[str, object] = {f"α = {penalty:g}": None for penalty in penalties}  # None: an empty cell
        rows: dict[int, dict[str, object]] = {}
        for candidate in self.candidates:
            row = rows.setdefault(candidate.beam_size, {"beam size": candidate.beam_size, **columns})
            row[f"α = {candidate.length_penalty:g}"] = MeanStd(candidate.score)  # with two decimals
        table = format_table(list(rows.values())).splitlines()
        settings = ", ".join(f"{name}={value:g}" for name, value in self.settings.items())
        heading = f"{self.metric} on {self.sentences:,} validation sentences by beam size and length penalty α:"
        return [heading, *(f"  {line}" for line in table), f"{settings}  ({self.reason})"]

    def to_record(self) -> dict[str, Any]:
        """Return the choice, its reason and the scores of all candidates as JSON values, for the metrics file."""
        values = {"beam_size": self.chosen.beam_size, "length_penalty": self.chosen.length_penalty}
        scores = [{name: round(value, 4) for name, value in asdict(candidate).items()} for candidate in self.candidates]
        return values | {"metric": self.metric, "sentences": self.sentences, "reason": self.reason, "scores": scores}


def unset_search_settings(config: Config) -> list[str]:
    """Return the names of those of the settings beam size and length penalty that the user has not set.

    None of them if `search.strategy`, a whole search configuration, is set.
    """
    return [] if config.search.strategy else [name for name in CHOSEN_SETTINGS if is_automatic(config, name)]


def without_search_choice(config: Config) -> Config:
    """Return the configuration without an earlier automatic choice of beam size and length penalty.

    They are unset (None) again, unless the user has set them.
    """
    return configuration.replace_settings(config, dict.fromkeys(unset_search_settings(config)))


def choose_search(
    run: Run,
    sources: Sequence[Source],
    references: References,
    metric: TextMetric,
    tag: Tag | None = None,
    names: Sequence[str] | None = None,
) -> SearchChoice:
    """Decode sentences with several beam sizes and length penalties, and choose the best by a metric.

    Settings are compared by their advantage over the default minus one standard error, so that chance does not decide.
    Those count as equally good that are at most 0.25 points (of a metric up to 100) below the best by
    this measure. Of these, the smallest beam is chosen, with the default length penalty if that is among them, or else
    with the best.

    Args:
        run: the run, whose other search settings are used.
        sources: sentences that were not trained on.
        references: the reference translations of each of them.
        metric: a metric of texts; better may be higher or lower.
        tag: the corpus to which all sentences belong, or that of each, by the name of its tag: a token before the
            source, if the run was trained with tagged corpora. None: the run's first tag, if it has tags.
        names: the settings to choose, "search.beam_size" and "search.length_penalty" or one of them; by default those
            that the user has not set.
    """
    check_equal_counts(len(sources), "sources", len(references), "references")
    default = run.beam_config()
    varied = tuple(unset_search_settings(run.config) if names is None else names)
    sizes, penalties = {default.size}, {default.length_penalty}
    if BEAM_SIZE_SETTING in varied:  # the default of a setting is that of `Beam`, not an earlier choice
        default = replace(default, size=min(Beam.size, run.max_beam_size))
        sizes = {default.size, *BEAM_SIZES}
    if LENGTH_PENALTY_SETTING in varied:
        default = replace(default, length_penalty=Beam.length_penalty)
        penalties = {default.length_penalty, *LENGTH_PENALTIES}
    outputs: dict[tuple[int, float], list[str]] = {}
    for size in sorted(size for size in sizes if size <= run.max_beam_size):
        beam = replace(default, size=size)
        # greedy search has one hypothesis, which no length penalty changes
        size_penalties = sorted(penalties) if size > 1 else [default.length_penalty]
        if run.engine_cache:
            run.engine_cache.clear()  # on a GPU, keep the memory of one engine only
        texts_by_penalty = decode_with_penalties(run, beam, size_penalties, sources, tag)
        outputs |= {(size, penalty): texts for penalty, texts in zip(size_penalties, texts_by_penalty)}
    default_pair = (default.size, default.length_penalty)
    return _compare(outputs, default=default_pair, references=references, metric=metric, varied=varied)


def decode_with_penalties(
    run: Run, beam: Beam, length_penalties: Sequence[float], sources: Sequence[Source], tag: Tag | None = None
) -> list[list[str]]:
    """Translate the sources by beam search with each length penalty; return a list of translations per penalty.

    Where possible, one search finds the results of all penalties (`LengthPenaltySweep`); they are the same as those of
    separate searches. `tag` is the corpus tag of all sources, or one for each.
    """
    if len(length_penalties) > 1 and LengthPenaltySweep.supports(beam):
        sweep = LengthPenaltySweep.of(beam, tuple(length_penalties))
        translations = run.translate(sources, search=sweep, alignment=False, tag=tag)
        # of each source one text for each penalty; only one if the source is empty or was copied
        by_source = [[best.text, *(other.text for other in best.alternatives)] for best in translations]
        return [[texts[min(n, len(texts) - 1)] for texts in by_source] for n in range(len(length_penalties))]
    searches = (replace(beam, length_penalty=penalty) for penalty in length_penalties)
    return [
        [translation.text for translation in run.translate(sources, search=search, alignment=False, tag=tag)]
        for search in searches
    ]


def _compare(
    outputs: dict[tuple[int, float], list[str]],
    default: tuple[int, float],
    references: References,
    metric: TextMetric,
    varied: tuple[str, ...],
) -> SearchChoice:
    """Score the translations by each pair (beam size, length penalty), and choose a pair.

    Args:
        outputs: translations of all sentences, by pair
        default: the pair to compare with, one of those in `outputs`
        references: the reference translations of each sentence
        metric: the metric of texts; better may be higher or lower
        varied: names of the settings that are chosen, "search.beam_size", "search.length_penalty" or both
    """
    default_score, pairs = metric(outputs[default], references), list(outputs)
    sign = 1 if default_score.better == "higher" else -1  # −1 for error rates, of which lower ones are better
    # `scores`: of all sentences, by pair; `samples`: of bootstrap resamples of the sentences, a row for each pair
    resampled = resample_scores(_statistics(list(outputs.values()), references, metric), CHOICE_RESAMPLES)
    default_index, sentences = pairs.index(default), len(references)
    candidates = []
    for index, (size, penalty) in enumerate(pairs):
        score = float(resampled.scores[index])
        advantage = sign * (score - float(resampled.scores[default_index]))
        # Outputs that are equal here have a bootstrap variance of 0, but another sentence might differ: add the largest
        # effect of one sentence on a score of up to 100 points.
        variance = float(np.var(resampled.samples[index] - resampled.samples[default_index])) + (100 / sentences) ** 2
        error = 0.0 if index == default_index else math.sqrt(variance)
        candidates.append(SearchCandidate(size, penalty, score, advantage=advantage, standard_error=error))
    return SearchChoice(
        varied=varied,
        metric=default_score.name,
        sentences=sentences,
        candidates=tuple(candidates),
        default=candidates[default_index],
        chosen=select_candidate(candidates, candidates[default_index]),
    )


def select_candidate(candidates: Sequence[SearchCandidate], default: SearchCandidate) -> SearchCandidate:
    """Return the candidate with the smallest beam among those that are about as good as the best one.

    Their lower bound (gain over the default minus one standard error) is at most EQUAL_POINTS below the highest. Of
    several with this beam size, the one with the default length penalty is preferred, then the best.
    """
    threshold = max(candidate.lower_bound for candidate in candidates) - EQUAL_POINTS
    good = [candidate for candidate in candidates if candidate.lower_bound >= threshold]
    smallest = min(candidate.beam_size for candidate in good)
    good = [candidate for candidate in good if candidate.beam_size == smallest]
    return max(good, key=lambda candidate: (candidate.length_penalty == default.length_penalty, candidate.lower_bound))


def _statistics(
    outputs: Sequence[Sequence[str]], references: References, metric: TextMetric
) -> list[SentenceStatistics]:
    """Return the statistics of each sentence (such as n-gram matches) by which a metric scores each of several outputs.

    An output has one translation of each sentence. Equal translations of a sentence are compared with its references
    only once.
    """
    references_by_sentence = reference_lists(outputs[0], references)
    row_of: dict[tuple[int, str], int] = {}  # (index of a sentence, a translation of it) → row of its statistics
    output_rows: list[NDArray[np.int64]] = [  # of each output: the rows of its sentences
        np.array([row_of.setdefault((index, text), len(row_of)) for index, text in enumerate(texts)])
        for texts in outputs
    ]
    unique = metric.sentence_statistics(
        [text for _, text in row_of], [references_by_sentence[index] for index, _ in row_of]
    )
    return [unique._replace(table=unique.table[rows]) for rows in output_rows]


def store_choice(folder: Path, choice: SearchChoice) -> Config:
    """Write the chosen settings to the configuration file of a run folder, and return the new configuration.

    They are added to `config.chosen`, the settings that were chosen automatically, not set by the user.
    """
    config = configuration.from_yaml(folder / CONFIG_FILE)
    config = configuration.replace_settings(config, choice.settings)
    config = replace(config, chosen=config.chosen | choice.settings)  # {name of a setting: its value}
    write_file(folder / CONFIG_FILE, configuration.to_yaml(config))
    return config
