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
        "Number of hypotheses that beam search continues at each step; 1 is greedy search.",
        min=1,
        max=10_000,
        auto="chosen on the validation set at the end of training; 5 until then",
    )
    length_penalty: float | None = setting(
        None,
        "Exponent α of the length normalization log p(y|x) / |y|^α, |y| being the number of target tokens; larger "
        "values prefer longer translations. 0: none.",
        min=-10,
        max=10,
        auto="chosen on the validation set at the end of training; 1 until then",
    )
    length_normalization: Literal["power", "gnmt"] = setting(
        "power",
        "Length normalization: what the score log p(y|x) of a hypothesis y is divided by. power: |y|^α; gnmt: ((5 + "
        "|y|) / 6)^α (Wu et al. 2016). α is search.length_penalty, |y| the number of target tokens.",
    )
    early_stopping: Literal[True, False, "never", "steps"] = setting(
        "never",
        "When beam search of a source stops. never: when no unfinished hypothesis can improve the result any more. "
        "true: once search.num_finished hypotheses have ended with EOS. false: once, in addition, the best unfinished "
        "hypothesis, normalized by its present length, scores worse than each of these. steps: only at the length "
        "limit (search.length_ratio).",
    )
    num_finished: int | None = setting(
        None,
        "Number of hypotheses of a source that must have ended with EOS before beam search stops: immediately with "
        "search.early_stopping=true; with false, only if no unfinished hypothesis is better than they are. Cannot be "
        "combined with search.early_stopping=never or steps.",
        min=1,
        max=100_000,
        auto="search.beam_size",
    )
    rank_unfinished: Literal["last", "by_score"] = setting(
        "last",
        "Rank of hypotheses that reach the length limit without EOS. last: after all that have ended with EOS. "
        "by_score: among them, by their scores.",
    )
    coverage_penalty: float = setting(
        0.0,
        "Weight β of GNMT's coverage penalty (Wu et al. 2016), which rewards attention to every source token. 0: none.",
        min=0,
        max=10,
    )
    batch_tokens: int = setting(
        8192,
        "Maximum of source tokens × search.beam_size in a batch of sources that are translated together, padding "
        "included; lower it if there is not enough memory.",
        min=1,
        max=10**9,
    )
    max_source_length: int = setting(
        1024,
        "Maximum number of source tokens, special tokens such as EOS included; longer sources are truncated with a "
        "warning.",
        min=2,
        max=100_000,
    )
    length_ratio: float | None = setting(
        None,
        "Maximum number of target tokens per source token: a translation has at most search.length_ratio · source "
        "tokens + search.length_offset tokens, EOS included.",
        min=0,
        max=100,
        auto="from the lengths of the training pairs: the limit is about twice a linear function of the source length "
        "that 99 % of the target lengths do not exceed",
    )
    length_offset: int | None = setting(
        None,
        "Number of target tokens that a translation may have in addition to search.length_ratio · source tokens.",
        min=1,
        max=100_000,
        auto="from the lengths of the training pairs, as search.length_ratio, and large enough for all validation "
        "pairs",
    )
    max_target_length: int = setting(
        1024,
        "Maximum number of target tokens of any translation, EOS included, whatever search.length_ratio and "
        "search.length_offset allow.",
        min=1,
        max=100_000,
    )
    min_length: int = setting(
        0,
        "Minimum number of target tokens, EOS not counted: EOS is not generated before, unless the length limit "
        "(search.length_ratio) is reached.",
        min=0,
        max=100_000,
    )
    no_repeat_ngram_size: int = setting(
        0, "No n-gram of this many tokens occurs twice in a translation; 0: no restriction.", min=0, max=1000
    )
    copy_untranslatable: bool | None = setting(
        None,
        "Copy lines that consist only of numbers, punctuation, URLs or e-mail addresses instead of translating them.",
        auto="true if the training targets copy at least half of the source lines without letters; with fewer than "
        "five such lines, true if at least half of the numbers and punctuation marks of all pairs, or of their "
        "numbers alone if there are 20 or more, occur on both sides of a pair; else false",
    )
    strategy: dict[str, Any] = setting(
        {},
        "Complete search configuration, such as {kind: Sample, top_p: 0.9}, as `translate --show-search` prints it. "
        "It replaces the beam search that search.beam_size, search.length_penalty and other settings of this section "
        "describe. Empty: that beam search.",
    )
