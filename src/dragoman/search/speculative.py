"""Speculative decoding: a small model drafts several tokens, and the model verifies them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import cast

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.mixer import Context, Layout, State
from dragoman.parts.precision import at_least_float32
from dragoman.search.configs import Beam, Sample
from dragoman.search.engine import SearchEngine, SearchInputs
from dragoman.search.search_config import (
    DecodingRun,
    LengthLimit,
    OtherRun,
    SearchRequest,
    StepwiseSearch,
    TokenSearch,
)
from dragoman.search.search_state import BatchProgress, DecoderState, Hypothesis, SearchState, map_tensors
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
    """

    draft_model: str | OtherRun  # a run, or the folder of one
    draft_tokens: int = 4
    search: Beam | Sample = GREEDY  # greedy search, or sampling of one sample

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise UserError(f"draft_tokens must be at least 1, but is {self.draft_tokens}")
        if not self.search.has_single_row:
            raise UserError(
                f"speculative decoding generates one hypothesis per source, but its search is {self.search.label}: use "
                "Beam(1), or Sample with n_best=1"
            )

    @property
    def rows_per_source(self) -> int:
        return 1

    @property
    def n_best(self) -> int:
        return 1

    @property
    def label(self) -> str:
        return "speculative decoding"

    @property
    def token_searches(self) -> list[TokenSearch]:
        return [self.search]

    @property
    def other_runs(self) -> list[str | OtherRun]:
        return [self.draft_model]

    @property
    def length_limit(self) -> LengthLimit:
        return self.search.length_limit

    def engine(self, run: DecodingRun, request: SearchRequest) -> SpeculativeEngine:
        draft = run.open_run(self.draft_model)
        run.check_same_vocabulary(draft, "the run reads the tokens of the draft")
        return SpeculativeEngine(
            self.search.engine(run, request), run.inference_weights(draft.model), self.draft_tokens
        )

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        if run.shortlist is not None:
            raise UserError("speculative decoding does not work with a shortlist: use one of them")
        return super().decode(run, request)

    def acceptance(self, run: DecodingRun, request: SearchRequest) -> AcceptanceStats:
        """Decode the sources, and return how many drafted tokens were accepted."""
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
        return AcceptanceStats(*(sum(pair) for pair in zip(astuple(self), astuple(other))))

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens per round; each round generates one more, the model's own."""
        return self.accepted / max(1, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / max(1, self.proposed)


@dataclass(kw_only=True)
class SpeculativeDecoderState(DecoderState):
    """The state of a model or of the draft model (the last decoder), with one row per source."""

    num_read: Tensor  # B: how many tokens the cache has read


@dataclass(kw_only=True)
class SpeculativeState(SearchState):
    """The state of speculative decoding."""

    first_token: Tensor  # B


class SpeculativeEngine(SearchEngine):
    """Searches like another engine with a draft model ahead; a step generates one or more tokens for each row.

    The models have read all tokens but the last one, so a call reads that one and the drafted tokens. Reading rejected
    tokens has to be undone: caches with one entry per position need nothing, since entries after a row's own position
    are never attended to. Other states are copied before, and then read the accepted tokens again. The draft model
    reads the accepted tokens when it drafts the next time.
    """

    def __init__(self, plain: SearchEngine, draft: Model, draft_tokens: int = 4) -> None:
        """`plain` is the engine that would search without a draft model."""
        super().__init__([*plain.models, draft], plain.special_tokens, plain.strategy, plain.logits_processors)
        if plain.strategy.rows_per_source > 1 or plain.strategy.reorders_rows:
            raise UserError("speculative decoding generates one hypothesis: do not require phrases, which need a beam")
        if draft.vocab_size != (expected := plain.models[0].vocab_size):
            raise UserError(
                f"the draft model has a vocabulary of {draft.vocab_size:,} tokens, but the model one of {expected:,}: "
                "use a run that was trained with the same tokenizer"
            )
        self.draft_tokens, self.acceptance = draft_tokens, AcceptanceStats()

    def _begin_batch(self, max_lengths: list[int], count: int, use_cuda_graphs: bool) -> BatchProgress:
        """Leave positions for drafted tokens after the last one."""
        return super()._begin_batch([n + 2 * (self.draft_tokens + 1) for n in max_lengths], count, use_cuda_graphs)

    def _enter(
        self, inputs: SearchInputs, numbers: Sequence[int], progress: BatchProgress, first: bool = False
    ) -> SearchState:
        limit, longest = self.models[-1].max_source_length, int(inputs.lengths.max())
        if limit is not None and longest > limit:
            raise UserError(
                f"a source has {longest:,} tokens, but the draft model reads at most {limit:,}: use another one"
            )
        return super()._enter(inputs, numbers, progress)  # never as a CUDA graph

    def _start(self, inputs: SearchInputs, cache_length: int, max_length: int) -> SearchState:
        state = super()._start(inputs, cache_length, max_length)
        state.decoders = [
            SpeculativeDecoderState(**vars(decoder), num_read=torch.zeros_like(state.step))
            for decoder in state.decoders
        ]
        return SpeculativeState(**vars(state), first_token=state.tokens[:, 0].clone())

    def _step(self, state: SearchState, progress: BatchProgress) -> SearchState:
        """Generate a token for every row, and one for each drafted token that is accepted."""
        progress.steps = [step + 1 for step in progress.steps]
        state, has_space = self._make_space(state, progress)
        drafts = self._draft(state) if has_space else state.tokens[:, :0]  # B N
        tokens = torch.cat((state.tokens, drafts), 1)  # B N+1
        decoders = _decoders(state)[:-1]
        saved = [_copy_recurrent(model, decoder.cache) for model, decoder in zip(self.models, decoders)]
        all_logits = [_read_tokens(model, decoder, tokens) for model, decoder in zip(self.models, decoders)]
        logits = all_logits[0]
        if len(all_logits) > 1:
            logits = torch.stack([one.log_softmax(-1) for one in all_logits]).logsumexp(0)
        after, generated = self._verify(state.without_decoders, logits, drafts)
        for model, decoder, before in zip(self.models, decoders, saved):
            if before and not bool((generated == tokens.shape[1]).all()):
                decoder.cache = _merge(decoder.cache, before)
                _read_tokens(model, decoder, tokens, decoder.num_read + generated)
            decoder.num_read = decoder.num_read + generated
        return replace(after, decoders=state.decoders)

    def _make_space(self, state: SearchState, progress: BatchProgress) -> tuple[SearchState, bool]:
        """Grow the caches if necessary; return whether drafted tokens fit."""
        unread = (state.step - _decoders(state)[-1].num_read).masked_fill(state.done, 0)
        width = max(self.draft_tokens, int(unread.max())) + 1
        ends = [(decoder.positions[:, 0] + state.step).masked_fill(state.done, 0).max() for decoder in state.decoders]
        needed = [int(end) + width for end in ends]

        def fits() -> bool:
            return all(size <= decoder.max_positions for size, decoder in zip(needed, state.decoders))

        while progress.cache_length < progress.max_length and not fits():
            state = self._grow_caches(state, progress)
        return state, fits()

    def _draft(self, state: SearchState) -> Tensor:
        """B N: the tokens that the draft model generates next."""
        assert isinstance(state, SpeculativeState)
        model, decoder = self.models[-1], _decoders(state)[-1]
        step, num_read = state.step, decoder.num_read
        unread = max(0, int((step - num_read).max()))  # tokens that it has not read, besides the last
        index = num_read[:, None] + torch.arange(unread + 1, device=step.device)  # B M
        all_tokens = torch.cat((state.first_token[:, None], state.output_tokens[:, 0]), 1)  # B 1+T
        tokens = all_tokens.gather(1, index.clamp(max=all_tokens.shape[1] - 1)).clamp(min=0)
        logits = _read_tokens(model, decoder, tokens, step + 1 if unread else None)
        last = (step - num_read).clamp(min=0)[:, None, None]  # B 1 1
        logits = logits.gather(1, last.expand(-1, 1, logits.shape[-1]))  # B 1 V
        decoder.num_read = step + 1
        saved, ahead = _copy_recurrent(model, decoder.cache), replace(decoder)
        draft_state = map_tensors(torch.clone, state.without_decoders)
        log_normalizer = torch.zeros_like(logits[..., 0])  # scores of drafts are not used
        drafts: list[Tensor] = []
        while True:
            draft_state = self._select(draft_state, logits, log_normalizer)
            drafts.append(draft_state.tokens)
            if len(drafts) == self.draft_tokens:
                break
            logits = _read_tokens(model, ahead, draft_state.tokens)
            ahead.num_read = ahead.num_read + 1
        decoder.cache = _merge(decoder.cache, saved)
        return torch.cat(drafts, 1)

    def _verify(self, state: SearchState, logits: Tensor, drafts: Tensor) -> tuple[SearchState, Tensor]:
        """Append the tokens that the models select, up to the first one that differs from the draft.

        Args:
            logits: B N+1 V, at the last token and at the drafted tokens.
            drafts: B N.

        Returns:
            the state, and the number of new tokens (B).
        """
        active, generated = ~state.done, torch.zeros_like(state.step)  # B
        log_normalizer = log_sum_exp(logits)  # B N+1
        self.acceptance.rounds += int(active.sum())
        for n, draft in enumerate([*drafts.unbind(1), None]):
            selected = self._select(state, logits[:, n : n + 1], log_normalizer[:, n : n + 1])
            state = _where(active, selected, state)
            generated = generated + active
            if draft is None:
                break
            self.acceptance.proposed += int(active.sum())
            active = active & (state.tokens[:, 0] == draft)
            self.acceptance.accepted += int(active.sum())
            active = active & ~state.done
            if not bool(active.any()):
                break
        return state, generated

    def _select(self, state: SearchState, logits: Tensor, log_normalizer: Tensor) -> SearchState:
        """Select and append a token of every row, from logits B 1 V and log Σ exp of them, B 1."""
        logits = self._restrict(state, logits, log_normalizer)
        state, _ = self.strategy.select(state, logits, log_normalizer, None)
        processors = [
            processor.update(own_state, state.tokens, None)
            for processor, own_state in zip(self.logits_processors, state.processors)
        ]
        return replace(state, step=state.step + 1, processors=processors)


def _decoders(state: SearchState) -> list[SpeculativeDecoderState]:
    return cast(list[SpeculativeDecoderState], state.decoders)


def _read_tokens(
    model: Model, decoder: SpeculativeDecoderState, tokens: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """Read tokens B N after those that were read, and update the cache; return logits B N V.

    With `lengths` (B), a row reads only up to this number of tokens.
    """
    first = decoder.positions[:, 0]  # B: position of the first token
    positions = (first + decoder.num_read)[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # B N
    layout = Layout(positions.clamp(max=decoder.max_positions - 1), None if lengths is None else first + lengths)
    logits, cache = model.decode(tokens, Context(layout, decoder.memory), decoder.cache)
    assert cache is not None
    decoder.cache = cache
    return at_least_float32(logits)


def _copy_recurrent(model: Model, cache: State) -> State:
    """Copy the tensors of a cache that do not have one entry per position, which a call overwrites."""
    return _copy_unsized(cache, model.decoder.init_state(1, 1, torch.empty(0, device="meta")))


def _copy_unsized(cache: State, single: State) -> State:
    """Copy the tensors of a cache that are as large as in `single`, a cache for one position."""
    copies: State = {}
    for name, leaf in cache.items():
        if isinstance(leaf, dict):
            if inner := _copy_unsized(leaf, single[name]):
                copies[name] = inner
        elif leaf.shape[1:] == single[name].shape[1:]:
            copies[name] = leaf.clone()
    return copies


def _merge(cache: State, copies: State) -> State:
    """Return the cache with the copied tensors in it."""
    return {
        name: _merge(leaf, copies.get(name, {})) if isinstance(leaf, dict) else copies.get(name, leaf)
        for name, leaf in cache.items()
    }


def _where(condition: Tensor, new: SearchState, old: SearchState) -> SearchState:
    """Return the rows of `new` where the condition (B) holds, and those of `old` elsewhere."""
    if bool(condition.all()):
        return new

    def select_rows(new: Tensor, old: Tensor) -> Tensor:
        return old if new is old else torch.where(condition.view(-1, *[1] * (old.dim() - 1)), new, old)

    return map_tensors(select_rows, new, old)
