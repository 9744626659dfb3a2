"""generation_config.json of an export: the settings of a run's search, as transformers names them."""

from __future__ import annotations

import math
from typing import Any

from dragoman.interop.deployment_files import max_target_tokens
from dragoman.interop.huggingface.export_classes import token_fields
from dragoman.run import Run
from dragoman.search import Beam

DEFAULT_TOP_P = 0.95  # nucleus sampling as in `Run.generate`


def generation_fields(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of generation_config.json, and notes on settings of the run's search that it cannot have.

    They are those of the run's beam search; a language model samples instead.
    """
    framing = run.framing
    fields = token_fields(framing, encoder_decoder=not run.model.is_decoder_only)
    if suppressed := suppressed_tokens(run):
        fields["bad_words_ids"] = suppressed
    if framing.forced_bos:
        fields["forced_bos_token_id"] = framing.forced_bos[0]  # transformers forces one token at most
    if framing.force_eos_at_limit:
        fields["forced_eos_token_id"] = framing.eos
    if run.is_language_model:
        fields |= {"do_sample": True, "top_p": DEFAULT_TOP_P, "top_k": 0, "max_new_tokens": 50}
        return fields, []
    search = run.beam_config()
    fields |= {
        "num_beams": search.size,
        "length_penalty": search.length_penalty,
        # "steps" searches on to the length limit, which transformers does not offer; "never" has the same result
        "early_stopping": "never" if search.early_stopping == "steps" else search.early_stopping,
        "max_new_tokens": _max_new_tokens(run),
        "do_sample": False,
    }
    if search.size == 1:  # greedy search, in which transformers warns of settings of beam search
        del fields["length_penalty"], fields["early_stopping"]
    if search.no_repeat_ngram_size:
        fields["no_repeat_ngram_size"] = search.no_repeat_ngram_size
    if run.length_limit.min:
        fields["min_new_tokens"] = run.length_limit.min
    return fields, _missing_settings(run, search)


def _max_new_tokens(run: Run) -> int:
    """Return one length limit for all sources, in tokens: that of the longest source that may be in the training data.

    The run's limit is `ratio` · source length + `offset`, at most its maximum of target tokens. If ratio and offset are
    0, it is that maximum.
    """
    limit = run.length_limit
    limit_of_longest = math.ceil((limit.ratio or 0) * run.config.data.max_length + (limit.offset or 0))
    return min(max_target_tokens(run), limit_of_longest) or max_target_tokens(run)


def suppressed_tokens(run: Run) -> list[list[int]]:
    """Return the tokens that are never generated, as `bad_words_ids`: words of one token each.

    The setting `suppress_tokens` would not do: transformers applies it after it has forced the first token of a target,
    which may be one of them, and `bad_words_ids` before that.
    """
    # a model may have fewer output tokens than there are special tokens
    return [[token] for token in run.framing.suppressed if token < run.model.vocab_size]


def _missing_settings(run: Run, search: Beam) -> list[str]:
    """Return notes on settings of the run's search that transformers does not have."""
    notes = []
    if run.length_limit.ratio:
        notes.append(
            f"transformers has no length limit that depends on the source: generation stops after "
            f"{_max_new_tokens(run)} tokens"
        )
    missing = {  # name of a setting → whether the run uses it
        "search.length_normalization=gnmt": search.length_normalization != "power",
        "search.coverage_penalty": bool(search.coverage_penalty),
        "search.num_finished": search.num_finished is not None,
        "search.strategy": bool(run.config.search.strategy) and not isinstance(run.default_search, Beam),
        "search.copy_untranslatable": bool(run.config.search.copy_untranslatable),
    }
    if names := [name for name, is_used in missing.items() if is_used]:
        notes.append(f"transformers has no setting for {', '.join(names)}")
    return notes
