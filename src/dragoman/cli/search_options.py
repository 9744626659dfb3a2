"""How the command line describes a search: single options, or a whole description."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from dragoman.run import Run
    from dragoman.search import Beam, LengthLimit, Rerank, SearchConfig, TokenSearch

Description = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="FILE|JSON",
        help="The whole search in place of the options below, as --show-search prints it.",
        show_default=False,
    ),
]
Width = Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")]
LengthPenalty = Annotated[float | None, typer.Option(help="α of log p(y|x) / |y|^α.")]
Gnmt = Annotated[bool, typer.Option("--gnmt", help="Divide by GNMT's ((5 + |y|) / 6)^α instead of |y|^α.")]
Coverage = Annotated[float | None, typer.Option(help="β: how much it counts that every source word was looked at.")]
EarlyStopping = Annotated[
    str | None,
    typer.Option(
        metavar="never|true|false|steps",
        help="When a beam stops: never before the result is certain (default); true: once as many hypotheses have "
        "finished as the beam is wide; false: when moreover the best live one is no better at its present length; "
        "steps: only at the length limit, with the result of never.",
        show_default=False,
    ),
]
AllSteps = Annotated[bool, typer.Option("--all-steps", hidden=True)]  # the former name of --early-stopping steps
Groups = Annotated[int | None, typer.Option(help="Part the beam into groups that keep away from one another.", min=1)]
Diversity = Annotated[float | None, typer.Option(help="λ: how far they keep away.")]
Best = Annotated[int | None, typer.Option(help="Print the N best, each with its score before it.", min=1)]
Sampling = Annotated[bool, typer.Option("--sample", help="Draw from p(y|x) instead of searching.")]
Temperature = Annotated[float | None, typer.Option(help="Of sampling.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Sample from the likeliest tokens that make up p of the mass.")]
MinP = Annotated[
    float | None, typer.Option(help="Sample from tokens at least so many times as likely as the likeliest.")
]
Typical = Annotated[
    float | None, typer.Option(help="Sample from the tokens of about the expected surprise, so much of the mass.")
]
Seed = Annotated[int | None, typer.Option(help="Of sampling.")]
Least = Annotated[int | None, typer.Option(help="Tokens that a translation has at least.", min=0)]
NoRepeat = Annotated[int | None, typer.Option(help="Write no N tokens in a row twice.", metavar="N", min=0)]
Risk = Annotated[
    str | None,
    typer.Option(
        metavar="chrf|bleu",
        help="Take what is nearest by this measure to all candidates: minimum Bayes risk.",
        show_default=False,
    ),
]
Judges = Annotated[
    list[str] | None,
    typer.Option(
        "--rerank-with",
        metavar="RUN[:WEIGHT]",
        help="Take the candidate that this run speaks for too: one from target to source, or a language model. "
        "May be repeated.",
        show_default=False,
    ),
]
RerankLength = Annotated[float | None, typer.Option(help="What a token more is worth to a candidate.")]
Candidates = Annotated[
    int | None,
    typer.Option(
        help="Of so many samples, or of the so many best of a beam; 32 with --risk, 10 with --rerank-with.", min=2
    ),
]
Exactly = Annotated[bool, typer.Option("--exact", help="Look until it is proved that no translation is likelier.")]
States = Annotated[
    int | None, typer.Option(help="With --exact: give up after so many beginnings of a translation; 100,000.", min=1)
]

Draft = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="A smaller run of the same vocabulary that writes ahead: the same translations, greedy or drawn, in "
        "fewer steps.",
        show_default=False,
    ),
]
Ahead = Annotated[int | None, typer.Option(help="With --draft: so many tokens ahead; 4.", min=1)]

NEEDS = {  # an option, and those of which it needs one
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical", "seed"), ("sample",)),
    "diversity": ("groups",),
    "candidates": ("risk", "rerank_with", "rerank_length"),
    "states": ("exact",),
    "ahead": ("draft",),
}
BEAM = ("beam", "gnmt", "coverage", "early_stopping", "groups")
EARLY_STOPPING: dict[str, Any] = {"never": "never", "true": True, "false": False, "steps": "steps"}
ALONE = {  # an option, and those that it cannot go with
    "sample": (*BEAM, "length_penalty"),
    "exact": (*BEAM, "sample", "best", "no_repeat", "risk", "rerank_with", "rerank_length"),
    "risk": ("rerank_with", "rerank_length"),
    "draft": ("beam", "groups", "best", "coverage", "early_stopping", "risk", "rerank_with", "rerank_length", "exact"),
}

#: options whose field of the search configuration has another name
CONFIG_FIELDS = {
    "coverage": "coverage_penalty",
    "groups": "num_groups",
    "diversity": "diversity_penalty",
    "no_repeat": "no_repeat_ngram_size",
    "typical": "typical_p",
}


@dataclass(frozen=True)
class SearchOptions:
    """What the command line says about a search; None or False where it says nothing."""

    search: str | None = None
    beam: int | None = None
    length_penalty: float | None = None
    gnmt: bool = False
    coverage: float | None = None
    early_stopping: str | None = None
    all_steps: bool = False  # refused with its new name
    groups: int | None = None
    diversity: float | None = None
    best: int | None = None
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    seed: int | None = None
    least: int | None = None
    no_repeat: int | None = None
    risk: str | None = None
    rerank_with: list[str] | None = None
    rerank_length: float | None = None
    candidates: int | None = None
    exact: bool = False
    states: int | None = None
    draft: str | None = None
    ahead: int | None = None

    def __post_init__(self) -> None:
        given = self.given
        if self.all_steps:
            raise UserError("--all-steps is now called --early-stopping steps")
        if self.early_stopping is not None and self.early_stopping not in EARLY_STOPPING:
            raise unknown_name("value of --early-stopping", self.early_stopping, EARLY_STOPPING)
        if self.search is not None and len(given) > 1:
            other = next(name for name in given if name != "search")
            raise UserError(f"--search describes the whole search: leave {_flag(other)} out, or say it there")
        for name, needed in NEEDS.items():
            if name in given and not set(needed) & set(given):
                raise UserError(f"{_flag(name)} is for {_flag(needed[0])}: add that, or leave it out")
        for name, others in ALONE.items():
            for other in others if name in given else ():
                if other in given:
                    raise UserError(f"{_flag(name)} and {_flag(other)} cannot be had together: choose one of them")

    @property
    def given(self) -> list[str]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [name for name, value in values.items() if value is not None and value is not False and value != []]

    def describe(self, run: Run) -> SearchConfig:
        """The run's own search with these changes, or the one that is described."""
        from dragoman.search import Beam, ExactSearch, MinimumBayesRisk, Speculative, read_search_config

        if self.search is not None:
            return read_search_config(self.search)
        if not self.given:
            return run.default_search
        if self.exact:
            limits = {} if self.states is None else {"max_expansions": self.states}
            return ExactSearch(
                length_penalty=self.length_penalty or 0.0, length_limit=self._length(run.length_limit), **limits
            )
        if self.risk is not None:
            return MinimumBayesRisk(self._found(run, self._count(32)), utility=self.risk, n_best=self.best or 1)
        if self.rerank_with or self.rerank_length is not None:
            return self._reranking(run, self._found(run, self._count(10)))
        found = self._found(run, self.best or 1)
        if self.draft is None:
            return found
        plain = replace(found, size=1) if isinstance(found, Beam) else found
        return Speculative(self.draft, self.ahead or 4, plain)

    def _count(self, usual: int) -> int:
        """How many candidates there are to choose from."""
        return self.candidates or self.beam or usual

    def _found(self, run: Run, count: int) -> TokenSearch:
        """What finds so many hypotheses."""
        from dragoman.search import Sample

        if not self.sample:
            return self._beam(run, count)
        named = ("temperature", "top_k", "top_p", "min_p", "typical", "seed", "no_repeat")
        return Sample(n_best=count, length_limit=self._length(run.length_limit), **self._changes(*named))

    def _beam(self, run: Run, count: int) -> Beam:
        own = run.beam_config()
        size, groups = max(own.size, count) if self.beam is None else self.beam, self.groups or own.num_groups
        if self.beam is None:
            size += -size % groups
        changes = self._changes("length_penalty", "coverage", "groups", "diversity", "no_repeat")
        changes |= {"length_normalization": "gnmt"} if self.gnmt else {}
        if self.early_stopping is not None:
            changes |= {"early_stopping": EARLY_STOPPING[self.early_stopping], "num_finished": None}
        return replace(own, size=size, n_best=count, length_limit=self._length(own.length_limit), **changes)

    def _reranking(self, run: Run, found: TokenSearch) -> Rerank:
        from dragoman.search import Rerank, RerankWeights

        judges = classify_rerankers(run, self.rerank_with or [])
        length = {} if self.rerank_length is None else {"length": self.rerank_length}
        weights = RerankWeights(**length, **{kind: weight for kind, (_, weight) in judges.items()})
        return Rerank(
            found, weights, **{f"{kind}_model": folder for kind, (folder, _) in judges.items()}, n_best=self.best or 1
        )

    def _length(self, length: LengthLimit) -> LengthLimit:
        return length if self.least is None else replace(length, min=self.least)

    def _changes(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {CONFIG_FIELDS.get(name, name): value for name, value in values.items() if value is not None}


def classify_rerankers(run: Run, judges: list[str]) -> dict[str, tuple[str, float]]:
    """Runs that are named with their weights, by what each is a model of: the channel, or the language."""
    found: dict[str, tuple[str, float]] = {}
    for judge in judges:
        folder, weight = _weighted(judge)
        kind = "language" if run.open_run(folder).is_language_model else "channel"
        if kind in found:
            raise UserError(f"{found[kind][0]} and {folder} are both {kind} models: name one of them")
        found[kind] = folder, weight
    return found


def _weighted(judge: str) -> tuple[str, float]:
    """RUN:WEIGHT, or RUN alone, which weighs 1."""
    folder, colon, weight = judge.rpartition(":")
    if not colon or Path(judge).exists():
        return judge, 1.0
    try:
        return folder, float(weight)
    except ValueError:
        return judge, 1.0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
