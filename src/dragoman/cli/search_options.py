"""Search options of the command line, and the search configuration that they describe."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import BeamSize, LengthPenalty, setting_option
from dragoman.errors import FieldError, UserError, unknown_name

if TYPE_CHECKING:
    from dragoman.run import Run
    from dragoman.search import Beam, LengthLimit, Rerank, Sample, SearchConfig

NumCandidates = Annotated[
    int | None,
    typer.Option(
        help="Number of candidate translations of each source, among which --mbr or reranking chooses: samples with "
        "--sample, else the n best of the beam. Default: --beam-size if given, else 32 with --mbr, 10 with "
        "reranking.",
        min=2,
    ),
]
RerankWith = Annotated[
    list[str] | None,
    "Rerank candidates with another run: a model from target to source, or a language model. Repeatable.",
    "RUN[:WEIGHT]",
]

#: values of --early-stopping, and those of the field `Beam.early_stopping`
EARLY_STOPPING: dict[str, Any] = {"never": "never", "true": True, "false": False, "steps": "steps"}
BEAM_ONLY = ("beam_size", "length_normalization", "coverage_penalty", "early_stopping", "num_finished", "num_groups")
RERANKING = ("rerank_with", "rerank_length_weight")

#: options that do not have the name of the field that they set, by class and field of the search configuration
OPTIONS_OF_FIELDS = {
    ("Beam", "size"): "beam_size",
    ("LengthLimit", "min"): "min_length",
    **{("LengthLimit", name): "max_new_tokens" for name in ("max", "ratio", "offset")},
}
#: options that need one of other options
REQUIRES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "seed"), ("sample",)),
    "diversity_penalty": ("num_groups",),
    "num_candidates": ("mbr", *RERANKING),
    "max_expansions": ("exact",),
    "draft_tokens": ("draft_model",),
}
#: options that exclude other options
EXCLUDES: dict[str, tuple[str, ...]] = {
    "sample": (*BEAM_ONLY, "length_penalty"),
    "exact": (*BEAM_ONLY, "sample", "n_best", "no_repeat_ngram_size", "mbr", *RERANKING),
    "mbr": RERANKING,
    "draft_model": (
        *("beam_size", "num_groups", "n_best", "coverage_penalty", "early_stopping", "num_finished", "mbr", "exact"),
        *RERANKING,
    ),
}


@dataclass(frozen=True)
class SearchOptions:
    """Options that change the search; None, False or [] if an option is not given."""

    search: Annotated[str | None, "Complete search configuration, as --show-search prints it.", "FILE|JSON"] = None
    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    length_normalization: Annotated[str | None, setting_option("search.length_normalization")] = None
    coverage_penalty: Annotated[float | None, setting_option("search.coverage_penalty")] = None
    early_stopping: Annotated[str | None, setting_option("search.early_stopping")] = None
    num_finished: Annotated[
        int | None,
        typer.Option(
            help="Stop beam search for a source once this many hypotheses have ended with EOS. Sets "
            "--early-stopping=true; with --early-stopping=false the search also waits until no unfinished "
            "hypothesis scores better.",
            min=1,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of target tokens, EOS included, whatever the length of the source. Beam search may "
            "stop before, unless --early-stopping=steps (always up to this limit). Default: a limit derived from the "
            "training pairs.",
            min=1,
        ),
    ] = None
    num_groups: Annotated[
        int | None,
        typer.Option(
            help="Number of groups into which the beam is divided for diverse beam search (Vijayakumar et al. "
            "2018); 1: ordinary beam search.",
            min=1,
        ),
    ] = None
    diversity_penalty: Annotated[
        float | None, "With --num-groups: penalty λ of a token for each earlier group that chose it in this step."
    ] = None
    n_best: Annotated[
        int | None,
        typer.Option(
            help="Print this many best translations of each source, one per line, each preceded by its score.", min=1
        ),
    ] = None
    sample: Annotated[bool, "Sample from p(y|x) instead of searching."] = False
    temperature: Annotated[
        float | None, "Sampling temperature T: sample from p^(1/T); below 1 is more conservative."
    ] = None
    top_k: Annotated[int | None, "Sample from the k most probable tokens."] = None
    top_p: Annotated[float | None, "Nucleus sampling: the most probable tokens up to probability mass P."] = None
    min_p: Annotated[float | None, "Sample from tokens at least P times as probable as the most probable one."] = None
    typical_p: Annotated[
        float | None, "Typical sampling: tokens close to the expected information content, up to probability mass P."
    ] = None
    seed: Annotated[int | None, "Random seed of sampling."] = None
    min_length: Annotated[int | None, setting_option("search.min_length")] = None
    no_repeat_ngram_size: Annotated[int | None, setting_option("search.no_repeat_ngram_size")] = None
    mbr: Annotated[
        str | None,
        "Minimum Bayes risk decoding: choose the candidate closest to all others by this metric.",
        "chrf|chrf++|bleu",
    ] = None
    rerank_with: RerankWith = None
    rerank_length_weight: Annotated[
        float | None, "Rerank candidates by length, too: what each token adds to the score. Above 0 favors long ones."
    ] = None
    num_candidates: NumCandidates = None
    exact: Annotated[bool, "Exact search: find the most probable translation, with proof."] = False
    max_expansions: Annotated[
        int | None,
        typer.Option(
            help="With --exact: maximum number of target prefixes of a source to expand; after that, the best "
            "translation found so far is returned without proof. Default: 100,000.",
            min=1,
        ),
    ] = None
    draft_model: Annotated[
        str | None, "Speculative decoding with a smaller run of the same vocabulary: same result, fewer steps.", "RUN"
    ] = None
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            help="With --draft-model: number of tokens that the draft model proposes per step. Default: 4.", min=1
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise a UserError for an unknown value, a missing option, or options that exclude each other.

        REQUIRES has for an option those of which it needs at least one, EXCLUDES those that cannot be given with it.
        """
        given = self.given_names
        if self.early_stopping is not None and self.early_stopping not in EARLY_STOPPING:
            raise unknown_name("value of --early-stopping", self.early_stopping, EARLY_STOPPING)
        if self.num_finished is not None and self.early_stopping in ("never", "steps"):
            raise UserError(
                "--num-finished stops beam search by the number of finished hypotheses, which "
                f"--early-stopping={self.early_stopping} ignores: use --early-stopping=true or false, or leave out one "
                "of the two options"
            )
        if self.search is not None and len(given) > 1:
            other = next(name for name in given if name != "search")
            raise UserError(
                f"--search describes the search completely: leave {_flag(other)} out, or set it in the value of "
                "--search"
            )
        for name, needed in REQUIRES.items():
            if name in given and not set(needed) & set(given):
                needed_flags = " or ".join(map(_flag, needed))
                raise UserError(f"{_flag(name)} needs {needed_flags}: add {needed_flags}, or leave out {_flag(name)}")
        for name, others in EXCLUDES.items():
            excluded = [other for other in others if other in given]
            if name in given and excluded:
                raise UserError(f"{_flag(name)} and {_flag(excluded[0])} cannot be combined: use one of them")

    @property
    def given_names(self) -> list[str]:
        """The names of the options that the user has given, such as "beam_size"."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [name for name, value in values.items() if value is not None and value is not False and value != []]

    def search_config(self, run: Run) -> SearchConfig:
        """Return the run's default search with the changes of these options, or the search that --search describes.

        The UserError for a wrong value names the option, not the field of the search configuration.
        """
        from dragoman.search import read_search_config

        if self.search is not None:
            return read_search_config(self.search)
        try:
            return self._changed_search(run) if self.given_names else run.default_search
        except FieldError as error:
            option = OPTIONS_OF_FIELDS.get((error.owner, error.field), error.field)  # mostly the name of the field
            raise error.named(_flag(option)) from None

    def _changed_search(self, run: Run) -> SearchConfig:
        """Return the search that the options describe; what they leave open is as in the run's default search.

        It is exact search, minimum Bayes risk decoding, reranking or speculative decoding, of whose options only those
        of one can be given together, or else beam search or sampling.
        """
        from dragoman.search import Beam, ExactSearch, MinimumBayesRisk, Speculative

        if self.exact:
            limit = self._length_limit(run.length_limit)
            return ExactSearch(length_limit=limit, **self._values("length_penalty", "max_expansions"))
        if self.mbr is not None:
            candidates = self._token_search(run, self._num_candidates(default=32))
            return MinimumBayesRisk(candidates, utility=self.mbr, n_best=self.n_best or 1)
        if self.rerank_with or self.rerank_length_weight is not None:
            return self._reranking(run, self._token_search(run, self._num_candidates(default=10)))
        if self.draft_model is None:
            return self._token_search(run, self.n_best or 1)
        search = self._token_search(run, n_best=1)
        # speculative decoding supports greedy search, a beam of 1, and sampling
        greedy_or_sample = replace(search, size=1) if isinstance(search, Beam) else search
        return Speculative(self.draft_model, self.draft_tokens or 4, greedy_or_sample)

    def _num_candidates(self, default: int) -> int:
        """Return how many candidates per source --mbr or reranking chooses from.

        It is the value of --num-candidates, else of --beam-size, else the default.
        """
        return self.num_candidates or self.beam_size or default

    def _token_search(self, run: Run, n_best: int) -> Beam | Sample:
        """Return the beam search, or with --sample the sampling, that finds `n_best` hypotheses of each source."""
        from dragoman.search import Sample

        if not self.sample:
            return self._beam(run, n_best)
        values = self._values("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "no_repeat_ngram_size")
        return Sample(n_best=n_best, length_limit=self._length_limit(run.length_limit), **values)

    def _beam(self, run: Run, n_best: int) -> Beam:
        """Return the run's beam search with the changes of the options, which returns `n_best` hypotheses.

        Without --beam-size, the run's beam is enlarged to `n_best` if necessary, and to a multiple of the groups.
        """
        default = run.beam_config()
        size, groups = self.beam_size, self.num_groups or default.num_groups
        if size is None:
            size = max(default.size, n_best)
            size += -size % groups  # the next multiple: groups have equal sizes
        values = self._values(
            "length_penalty",
            "length_normalization",
            "coverage_penalty",
            "num_groups",
            "diversity_penalty",
            "no_repeat_ngram_size",
        )
        stopping = default.early_stopping if self.early_stopping is None else EARLY_STOPPING[self.early_stopping]
        # only True and False stop by the number of finished hypotheses, and not the others, "never" and "steps"
        if self.num_finished is not None and not isinstance(stopping, bool):
            stopping = True
        values["early_stopping"] = stopping
        values["num_finished"] = (self.num_finished or default.num_finished) if isinstance(stopping, bool) else None
        limit = self._length_limit(default.length_limit)
        return replace(default, size=size, n_best=n_best, length_limit=limit, **values)

    def _reranking(self, run: Run, candidates: Beam | Sample) -> Rerank:
        """Return the search that finds translations by the search `candidates` and reranks them.

        It ranks them by a weighted sum of log p(y|x), the scores of the models of --rerank-with, and their length
        (--rerank-length-weight).
        """
        from dragoman.search import Rerank, RerankWeights

        rerankers = classify_rerankers(run, self.rerank_with or [])  # folder and weight by "channel" or "language"
        length = {} if self.rerank_length_weight is None else {"length": self.rerank_length_weight}
        weights = RerankWeights(**length, **{kind: weight for kind, (_, weight) in rerankers.items()})
        models = {f"{kind}_model": folder for kind, (folder, _) in rerankers.items()}
        return Rerank(candidates, weights, **models, n_best=self.n_best or 1)

    def _length_limit(self, limit: LengthLimit) -> LengthLimit:
        """Return the length limit of targets with the changes of --max-new-tokens and --min-length.

        A target has at most ratio · source tokens + offset tokens, but no more than `max`; with --max-new-tokens this
        is a fixed maximum.
        """
        if self.max_new_tokens is not None:
            limit = replace(limit, ratio=0.0, offset=self.max_new_tokens, max=self.max_new_tokens)
        return limit if self.min_length is None else replace(limit, min=self.min_length)

    def _values(self, *names: str) -> dict[str, Any]:
        """Return the values of the named options by name, without options that were not given (None)."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def classify_rerankers(run: Run, rerankers: list[str]) -> dict[str, tuple[str, float]]:
    """Return folder and weight of each reranker `RUN[:WEIGHT]` by the kind of its model.

    The kind is "channel" for a model that translates from target to source, or "language" for a language model; two
    rerankers of one kind are a UserError. The runs are opened to find out. Without :WEIGHT, the weight is 1.
    """
    classified: dict[str, tuple[str, float]] = {}
    for reranker in rerankers:
        folder, weight = _split_weight(reranker)
        kind = "language" if run.open_run(folder).is_language_model else "channel"
        if kind in classified:
            raise UserError(
                "--rerank-with takes at most one channel model (from target to source) and one language model, but "
                f"{classified[kind][0]} and {folder} are both {kind} models: leave one out"
            )
        classified[kind] = folder, weight
    return classified


def _split_weight(reranker: str) -> tuple[str, float]:
    """Split RUN:WEIGHT into folder and weight; the weight of RUN alone is 1."""
    folder, colon, weight = reranker.rpartition(":")
    if not colon or Path(reranker).exists():  # the name of a folder may contain ":"
        return reranker, 1.0
    try:
        return folder, float(weight)
    except ValueError:  # the text after ":" is not a number, but part of the name
        return reranker, 1.0


def _flag(name: str) -> str:
    """Return the option of a field of `SearchOptions`: --beam-size for "beam_size"."""
    return f"--{name.replace('_', '-')}"
