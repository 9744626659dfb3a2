"""Speculative decoding: a small model drafts several tokens, and the model verifies them in one call."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.search.configs import Beam, Sample
from dragoman.search.engine import SearchEngine, SearchInputs, average_probabilities
from dragoman.search.search_config import (
    DecodingRun,
    LengthLimit,
    OtherRun,
    SearchRequest,
    StepwiseSearch,
    check_ranges,
)
from dragoman.search.search_state import (
    BatchProgress,
    DecoderState,
    Hypothesis,
    SearchState,
    map_tensors,
    tensor_leaves,
)
from dragoman.search.topk import log_sum_exp

GREEDY = Beam(1)


@dataclass(frozen=True)
class Speculative(StepwiseSearch):
    """Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): the result of `search`, in fewer steps.

    A smaller run with the same vocabulary drafts `draft_tokens` tokens. The model reads them in one call and selects a
    token at each of their positions and after the last. Drafted tokens are accepted up to the first one that the model
    would not have generated, which is replaced by the model's token. The result does not depend on the draft.

    Sampling uses the same random number for draft and model, so the samples are those of plain sampling with the same
    seed. The papers accept a token with probability min(1, p/q) instead, which accepts more tokens but draws other
    samples. Rounding may differ between decoding one token and several: where two tokens are almost equally probable,
    the other one may be generated, as in another batch. int8 weights make this more likely.

    Args:
        draft_model: a smaller run with the same vocabulary, open or by its folder.
        draft_tokens: number of tokens that are drafted at a time.
        search: greedy search, or sampling of one sample.

    Examples:
        >>> search = dragoman.Speculative(draft_model=run, draft_tokens=3)  # usually a smaller run
        >>> drafted, plain = (run.translate(["The dog sleeps."], search=one) for one in (search, dragoman.Beam(1)))
        >>> drafted[0].text == plain[0].text
        True
    """

    draft_model: str | OtherRun
    draft_tokens: int = 4
    search: Beam | Sample = GREEDY

    label = "speculative decoding"
    n_best = 1

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value."""
        check_ranges(self, draft_tokens=(1, math.inf))
        if not self.search.has_single_row:
            raise UserError(
                f"speculative decoding generates one hypothesis per source, but its search ({self.search.label}) keeps "
                "several: use Beam(size=1) or Sample(n_best=1)"
            )

    @property
    def other_runs(self) -> list[str | OtherRun]:
        """The runs that this search needs besides the one that decodes: the draft model, open or as its folder."""
        return [self.draft_model]

    @property
    def length_limit(self) -> LengthLimit:
        """The length limit of targets: that of `self.search`, whose result speculative decoding computes."""
        return self.search.length_limit

    def engine(self, run: DecodingRun, request: SearchRequest) -> SpeculativeEngine:
        """Return an engine that generates the tokens of `self.search`, several per step with the draft model's help.

        The draft model decodes with the same kind of weights as the run, such as int8. One with another vocabulary than
        the run's is a UserError.
        """
        draft = run.open_run(self.draft_model)
        run.check_same_vocabulary(draft, "the run reads the tokens of the draft")
        plain = self.search.engine(run, request)
        return SpeculativeEngine(plain, draft=run.inference_weights(draft.model), draft_tokens=self.draft_tokens)

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Decode the sources of the request, and return a list with one hypothesis for each.

        A run with a vocabulary shortlist is a UserError.
        """
        if run.shortlist is not None:
            raise UserError(
                "speculative decoding does not work with a vocabulary shortlist: translate without the draft model, or "
                "without the shortlist"
            )
        return super().decode(run, request)

    def acceptance(self, run: DecodingRun, request: SearchRequest) -> AcceptanceStats:
        """Decode the sources of the request, and return only how many drafted tokens were accepted."""
        engine, arguments = self.prepare(run, request)
        assert isinstance(engine, SpeculativeEngine)
        engine.search(*arguments)
        return engine.acceptance


@dataclass
class AcceptanceStats:
    """How many drafted tokens were accepted."""

    rounds: int = 0  # calls of the model, counted for each source
    proposed: int = 0  # drafted tokens that were verified: none after the first rejected one, or after EOS
    accepted: int = 0

    def __add__(self, other: AcceptanceStats) -> AcceptanceStats:
        """Return the counts of two searches together: the sum of each field."""
        return AcceptanceStats(*(sum(pair) for pair in zip(astuple(self), astuple(other))))

    @property
    def mean_accepted(self) -> float:
        """The mean number of accepted drafted tokens per call of the model; its own token in each is not counted."""
        return self.accepted / max(1, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """The share of the drafted tokens verified by the model (`proposed`) that were accepted, from 0 to 1."""
        return self.accepted / max(1, self.proposed)


@dataclass(kw_only=True)
class SpeculativeState(SearchState):
    """The state of speculative decoding, with one row per source; the last decoder is that of the draft model."""

    first_token: Tensor  # B: decoded first, such as BOS
    draft_read: Tensor  # B: how many tokens the draft model has read, the first token included


class SpeculativeEngine(SearchEngine):
    """Searches like another engine with a draft model ahead; a step generates one or more tokens for each row.

    The models have read all tokens but the last one, so a call reads that one and the drafted tokens. Reading rejected
    tokens has to be undone: caches with one entry per position need nothing, since entries after a row's own position
    are never attended to. Other states are copied: the copies read all tokens, then the originals the accepted ones.
    The draft model reads the accepted tokens when it drafts the next time.
    """

    def __init__(self, plain: SearchEngine, draft: Model, draft_tokens: int = 4) -> None:
        """Generate the tokens that the engine `plain` would generate, with the help of the model `draft`.

        It drafts `draft_tokens` tokens at a time, and becomes the last one of `self.models`. `self.acceptance` counts
        the drafted and the accepted tokens. An engine with several hypotheses per source, and a draft model with
        another vocabulary size, are UserErrors.
        """
        super().__init__([*plain.models, draft], plain.special_tokens, plain.strategy, plain.logits_processors)
        # a wider beam or several samples are refused earlier: only required phrases still need several rows
        if plain.strategy.rows_per_source > 1 or plain.strategy.reorders_rows:
            raise UserError(
                "speculative decoding generates one hypothesis per source, but required phrases need a beam of "
                "several: translate without the draft model, or without the phrases"
            )
        if draft.vocab_size != (expected := plain.models[0].vocab_size):
            raise UserError(
                f"the draft model has a vocabulary of {draft.vocab_size:,} tokens, but the model that it drafts for "
                f"has {expected:,}: use a draft model that was trained with the same tokenizer"
            )
        self.draft_tokens, self.acceptance = draft_tokens, AcceptanceStats()
        # the function that encodes the sources of a new batch: without a CUDA graph here, since `_start` and the steps
        # depend on the values of tensors, so that they cannot be captured
        self.graphed_start = self._start

    def _begin_batch(self, max_lengths: list[int], count: int, use_cuda_graphs: bool) -> BatchProgress:
        """Return the progress of a batch that begins with sources 0 … `count` − 1: its slots and its cache length.

        The length limits `max_lengths` of all targets are raised, so that caches have positions for drafted tokens
        after the last token. With `use_cuda_graphs`, sizes are rounded up.
        """
        # a step reads the last token and a draft; the draft model may still have to read as many accepted tokens
        extra_positions = 2 * (self.draft_tokens + 1)
        return super()._begin_batch([length + extra_positions for length in max_lengths], count, use_cuda_graphs)

    def _start(self, inputs: SearchInputs, cache_length: int, max_length: int) -> SearchState:
        """Encode the sources of `inputs` with each model, and return the initial state of their search.

        Caches have `cache_length` positions, output tokens at most `max_length`. `draft_read` (B) is the number of
        tokens that the draft model, the last one of the models, has read. A source that is too long for it is a
        UserError.
        """
        limit, longest = self.models[-1].max_source_length, int(inputs.lengths.max())
        if limit is not None and longest > limit:
            raise UserError(
                f"a source has {longest:,} tokens, but the draft model reads at most {limit:,} tokens: use another "
                "draft model, or shorten the source"
            )
        state = super()._start(inputs, cache_length, max_length)
        zeros = torch.zeros_like(state.step)
        return SpeculativeState(**vars(state), first_token=state.tokens[:, 0].clone(), draft_read=zeros)

    def _step(self, state: SearchState, progress: BatchProgress) -> SearchState:
        """Generate tokens for every source: the drafted ones that are accepted, and one that the models select.

        The draft model (the last model) drafts N tokens, the other models read them in one call, and `_verify` accepts
        the first ones. A model with a recurrent state reads them from a copy of its state, and then only the accepted
        tokens from the state itself, since reading cannot be undone. `progress.steps` counts the steps.
        """
        assert isinstance(state, SpeculativeState)
        progress.steps = [step + 1 for step in progress.steps]
        # B N: no tokens (N = 0) if the caches have no space for a draft
        drafts = self._draft(state) if self._make_space(state, progress) else state.tokens[:, :0]
        tokens = torch.cat((state.tokens, drafts), 1)  # B N+1
        decoders = state.decoders[:-1]  # without that of the draft model
        copies = [_copy_recurrent(model, decoder) for model, decoder in zip(self.models, decoders)]
        all_logits = [_read_tokens(model, copy, tokens) for model, (copy, _) in zip(self.models, copies)]
        after, generated = self._verify(state.without_decoders, average_probabilities(all_logits), drafts)
        for model, decoder, (copy, is_recurrent) in zip(self.models, decoders, copies):
            # the tokens that count as read are the last one before this step and all `generated` ones but the last
            if is_recurrent and not bool((generated == tokens.shape[1]).all()):
                _read_tokens(model, decoder, tokens, count=generated)  # the accepted tokens only
            else:
                decoder.cache = copy.cache
            decoder.positions = decoder.positions + generated[:, None]
        return replace(after, decoders=state.decoders)

    def _make_space(self, state: SpeculativeState, progress: BatchProgress) -> bool:
        """Grow the caches of all models if a draft needs more positions, up to `progress.max_length`.

        Returns whether all caches have enough positions now; a model with few positions may not.
        """
        unread = state.step - state.draft_read  # B: tokens that the draft model has not read, besides the last
        # the most tokens that a step reads after the last position of a row
        width = max(self.draft_tokens, int(unread.masked_fill(state.done, 0).max())) + 1
        *starts, draft_start = (decoder.positions[:, 0] for decoder in state.decoders)  # next positions, B each
        # by model: the number of positions that the next step needs, whatever the positions of sources that are done;
        # the draft model, the last one, first reads the unread tokens
        needed = [int(start.masked_fill(state.done, 0).max()) + width for start in (*starts, draft_start + unread)]

        def fits() -> bool:
            """Whether every model's cache has enough positions."""
            return all(size <= decoder.max_positions for size, decoder in zip(needed, state.decoders))

        while progress.cache_length < progress.max_length and not fits():
            state.decoders = self._grow_caches(state, progress).decoders
        return fits()

    def _draft(self, state: SpeculativeState) -> Tensor:
        """Return the N = `draft_tokens` tokens (B N) that the draft model, which is the last model, generates next.

        It first reads the tokens that were accepted since its last draft: it has read `state.draft_read` (B) tokens,
        but `state.step` (B) were generated. Drafted tokens are read from a copy of its state, `ahead`, since they may
        be rejected.
        """
        model, decoder = self.models[-1], state.decoders[-1]
        unread = state.step - state.draft_read  # B: tokens that it has not read, besides the last
        max_unread = max(0, int(unread.max()))
        # indices of the tokens to read, in `all_tokens`; M: the unread tokens and the last one
        index = state.draft_read[:, None] + torch.arange(max_unread + 1, device=unread.device)  # B M
        all_tokens = torch.cat((state.first_token[:, None], state.output_tokens[:, 0]), 1)  # B 1+T: BOS first
        tokens = all_tokens.gather(1, index.clamp(max=all_tokens.shape[1] - 1)).clamp(min=0)  # 0 in place of PAD (−1)
        logits = _read_tokens(model, decoder, tokens, count=unread + 1 if max_unread else None)
        last = unread.clamp(min=0)[:, None, None]  # B 1 1: index of the last token of each source
        logits = logits.gather(1, last.expand(-1, 1, logits.shape[-1]))  # B 1 V
        decoder.positions, state.draft_read = decoder.positions + unread[:, None] + 1, state.step + 1
        ahead, _ = _copy_recurrent(model, decoder)
        draft_state = map_tensors(torch.clone, state.without_decoders)
        log_normalizer = torch.zeros_like(logits[..., 0])  # scores of drafts are not used
        drafts: list[Tensor] = []
        while True:
            draft_state, _ = self._select(draft_state, logits, log_normalizer)
            drafts.append(draft_state.tokens)
            if len(drafts) == self.draft_tokens:
                return torch.cat(drafts, 1)
            logits = _read_tokens(model, ahead, draft_state.tokens)
            ahead.positions = ahead.positions + 1

    def _verify(self, state: SearchState, logits: Tensor, drafts: Tensor) -> tuple[SearchState, Tensor]:
        """Append the tokens that the models select, up to and including the first one that differs from the draft.

        Args:
            logits: B N+1 V, of the models after the last token and after each drafted token.
            drafts: B N, the drafted tokens.

        Returns:
            the state, and the number of new tokens (B). `self.acceptance` counts the calls of the model (`rounds`, by
            source), the drafted tokens that were verified (`proposed`) and those that were accepted.
        """
        # B: whether the draft of a source is accepted so far; B: its number of new tokens
        active, generated = ~state.done, torch.zeros_like(state.step)
        log_normalizer = log_sum_exp(logits)  # B N+1
        self.acceptance.rounds += int(active.sum())
        for n, draft in enumerate([*drafts.unbind(1), None]):  # None: after the last drafted token
            selected, _ = self._select(state, logits[:, n : n + 1], log_normalizer[:, n : n + 1])
            state = _where(active, selected, state)
            generated = generated + active
            if draft is None:
                break
            self.acceptance.proposed += int(active.sum())
            active = active & (state.tokens[:, 0] == draft)
            self.acceptance.accepted += int(active.sum())
            active = active & ~state.done  # the accepted token may be EOS
            if not bool(active.any()):
                break
        return state, generated


def _read_tokens(model: Model, decoder: DecoderState, tokens: Tensor, count: Tensor | None = None) -> Tensor:
    """Decode N tokens per row (B N) in one call, beginning at `decoder.positions`, and return their logits, B N V.

    The cache of `decoder` is updated, its positions are not. With `count` (B), a row reads only its first `count`
    tokens, and logits after these are undefined.
    """
    positions = decoder.positions + torch.arange(tokens.shape[1], device=tokens.device)  # B N
    lengths = None if count is None else decoder.positions[:, 0] + count
    layout = SequenceLayout(positions.clamp(max=decoder.max_positions - 1), lengths)
    logits, cache = model.decode(tokens, Context(layout, decoder.memory), decoder.cache)
    assert cache is not None
    decoder.cache = cache
    return at_least_float32(logits)


def _copy_recurrent(model: Model, decoder: DecoderState) -> tuple[DecoderState, bool]:
    """Return a copy of a model's state with which tokens can be read on trial, and whether the model is recurrent.

    Only recurrent states are copied. Key–value caches are shared: entries after a row's position are ignored, and
    overwritten later.
    """
    cache = model.copy_recurrent_state(decoder.cache)
    is_recurrent = any(new is not old for new, old in zip(tensor_leaves(cache), tensor_leaves(decoder.cache)))
    return replace(decoder, cache=cache), is_recurrent


def _where(condition: Tensor, new: SearchState, old: SearchState) -> SearchState:
    """Return the state with the sources of `new` where `condition` (B) is true, and those of `old` elsewhere."""
    if bool(condition.all()):
        return new

    def select_rows(new: Tensor, old: Tensor) -> Tensor:
        """Return torch.where(condition, new, old) for tensors B …, with the condition broadcast to their shape."""
        return old if new is old else torch.where(condition.view(-1, *[1] * (old.dim() - 1)), new, old)

    return map_tensors(select_rows, new, old)
