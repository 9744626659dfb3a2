"""Settings of the default search of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dragoman.config.setting_declarations import Section, setting


@dataclass(frozen=True)
class SearchDefaults(Section, section="search"):
    """Default search of a run, used by `translate` unless options change it."""

    beam_size: int | None = setting(
        None,
        "Beam size in hypotheses; 1 is greedy search.",
        min=1,
        max=10_000,
        auto="chosen on the validation set at the end of training; 5 until then",
    )
    length_penalty: float | None = setting(
        None,
        "Exponent α of the length normalization log p(y|x) / |y|^α; larger values prefer longer translations. 0: none.",
        min=-10,
        max=10,
        auto="chosen on the validation set at the end of training; 1 until then",
    )
    length_normalization: Literal["power", "gnmt"] = setting(
        "power",
        "Length normalization: what log p(y|x) is divided by. power: |y|^α; gnmt: ((5 + |y|) / 6)^α (Wu et al. 2016). "
        "α is search.length_penalty, |y| the number of target tokens.",
    )
    early_stopping: Literal[True, False, "never", "steps"] = setting(
        "never",
        "When beam search stops. never: when no unfinished hypothesis can improve the result any more. true: once "
        "search.num_finished hypotheses have ended with EOS. false: once, in addition, the best unfinished hypothesis, "
        "normalized by its present length, scores worse than all of them. steps: at the length limit.",
    )
    num_finished: int | None = setting(
        None,
        "Number of finished hypotheses (ended with EOS) of a source at which search.early_stopping=true stops; "
        "search.early_stopping=false does not stop before. Ignored if search.early_stopping is never or steps.",
        min=1,
        max=100_000,
        auto="search.beam_size",
    )
    rank_unfinished: Literal["last", "by_score"] = setting(
        "last",
        "Rank of hypotheses that reach the length limit without EOS. last: after all that have ended with EOS. "
        "by_score: all hypotheses are ranked by their scores.",
    )
    coverage_penalty: float = setting(
        0.0,
        "Weight β of GNMT's coverage penalty (Wu et al. 2016), which rewards attention to every source token.",
        min=0,
        max=10,
    )
    batch_tokens: int = setting(
        8192,
        "Maximum number of source tokens of a batch, padding included, times the beam size; lower it if there is not "
        "enough memory.",
        min=1,
        max=10**9,
    )
    max_source_length: int = setting(
        1024, "Maximum source tokens; longer sources are truncated with a warning.", min=2, max=100_000
    )
    length_ratio: float | None = setting(
        None,
        "Maximum target tokens per source token: a translation has at most search.length_ratio · source tokens + "
        "search.length_offset tokens.",
        min=0,
        max=100,
        auto="from the training pairs",
    )
    length_offset: int | None = setting(
        None,
        "Target tokens allowed in addition to search.length_ratio · source tokens.",
        min=1,
        max=100_000,
        auto="from the training pairs",
    )
    max_target_length: int = setting(1024, "Maximum target tokens of any translation.", min=1, max=100_000)
    min_length: int = setting(0, "Minimum target tokens: EOS is not generated earlier.", min=0, max=100_000)
    no_repeat_ngram_size: int = setting(
        0, "No n-gram of this many tokens may occur twice in a translation; 0: no restriction.", min=0, max=1000
    )
    copy_untranslatable: bool | None = setting(
        None,
        "Copy lines that consist of numbers, punctuation, URLs and e-mail addresses instead of translating them.",
        auto="true if the training targets copy such lines, or most numbers and punctuation marks of their sources",
    )
    strategy: dict[str, Any] = setting(
        {},
        "Complete search configuration, such as {kind: Sample, top_p: 0.9}, as `translate --show-search` prints it. It "
        "replaces the other settings of this section. Empty: beam search with these settings.",
    )
