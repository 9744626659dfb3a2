"""The state of a search: typed trees of tensors with one row per source, and how far the search of a batch is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dragoman.models import DecodingStart
from dragoman.parts.mixer import Memory, SequenceLayout, State

EMPTY_SLOT = -1  # in place of the number of a source: a slot of the batch without one
PAD = -1  # in output tokens: a position after the end of the hypothesis

Tree = TypeVar("Tree")


def map_tensors(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Return a tree of the results of `function` for every tensor of a tree (as torch.utils._pytree.tree_map does).

    A tree is a tensor, or a dataclass, dict or list of trees. With several trees of the same structure, `function` gets
    the corresponding tensor of each. Values that are not tensors are copied from the first tree.
    """
    first: Any = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)  # type: ignore[return-value]
    if isinstance(first, dict):
        return {name: map_tensors(function, *(tree[name] for tree in trees)) for name in first}  # type: ignore
    if isinstance(first, list):
        return [map_tensors(function, *items) for items in zip(*trees)]  # type: ignore
    if not is_dataclass(first):
        return first
    dataclass_type: Any = type(first)
    fields = first.__dataclass_fields__
    return dataclass_type(**{name: map_tensors(function, *(getattr(tree, name) for tree in trees)) for name in fields})


def tree_leaves(tree: Any) -> list[Any]:
    """Return all values (tensors and others) in a nested dataclass, dict (sorted by keys) or list, as a flat list."""
    if isinstance(tree, dict):
        children = [tree[name] for name in sorted(tree)]
    elif is_dataclass(tree):
        children = [getattr(tree, name) for name in tree.__dataclass_fields__]
    elif isinstance(tree, list):
        children = tree
    else:
        return [tree]
    return [leaf for child in children for leaf in tree_leaves(child)]


def tensor_leaves(tree: Any) -> list[Tensor]:
    """Return the tensors in a nested dataclass, dict or list, in an order that depends on its structure only."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass
class DecoderState:
    """The state of one model: its cache, and what it attends to. R = B·K rows, in the order of `SearchState.tokens`."""

    cache: State  # R …: key–value caches and recurrent states
    positions: Tensor  # B K: position of the next token
    memory: Memory | None  # B …: the encoder's output
    max_positions: int  # for which the cache is allocated
    ancestors: Tensor | None = None  # B K S: the row whose cache holds each position of a row, if rows are reordered

    @staticmethod
    def start(start: DecodingStart, batch: int, reorders_rows: bool) -> DecoderState:
        """Return the state with which a model begins to decode `batch` (B) sources, with K rows (hypotheses) each.

        `start` has the first tokens and positions (B·K), the cache (for `max_length` positions) and the encoder output.
        If a row may continue the hypothesis of another row (`reorders_rows`), `ancestors` (B K S) is the row whose
        cache holds each position of a row: its own at first.
        """
        rows = len(start.tokens) // batch
        ancestors = None
        if reorders_rows and rows > 1:
            own_row = torch.arange(rows, device=start.tokens.device)
            ancestors = own_row[None, :, None].repeat(batch, 1, start.max_length)
        memory = None if start.memory is None else _without_losses(start.memory)
        positions = start.positions.unflatten(0, (batch, rows))
        return DecoderState(start.state, positions, memory, max_positions=start.max_length, ancestors=ancestors)


def _without_losses(memory: Memory) -> Memory:
    """Return a memory (encoder output) for decoding: with the length of every source, and without auxiliary losses."""
    lengths, states = memory.layout.lengths, memory.states
    if lengths is None:  # without padding
        lengths = torch.full((len(states),), states.shape[1], device=states.device)
    layout = SequenceLayout(memory.layout.positions, lengths=lengths, max_length=states.shape[1])
    return replace(memory, layout=layout, auxiliary_losses=())


class Hypothesis(NamedTuple):
    """A target: its tokens without BOS and EOS, and log p(y|x), EOS included."""

    tokens: list[int]
    score: float
    normalized_score: float  # the score by which it was ranked, after length normalization and penalties
    finished: bool  # whether it ends with EOS, and not at the length limit
    proven_optimal: bool | None = None  # set by exact search: whether no target has a higher score


@dataclass
class HypothesisBuffer:
    """Up to N hypotheses of each source that are not continued; a score of −∞ marks an unused entry."""

    normalized_scores: Tensor  # B N: scores by which hypotheses are ranked
    scores: Tensor  # B N: log p(y|x)
    lengths: Tensor  # B N: number of tokens, without EOS
    tokens: Tensor  # B N T

    @staticmethod
    def empty(batch: int, size: int, max_length: int, device: torch.device) -> HypothesisBuffer:
        """Return an empty buffer for `size` hypotheses of each of `batch` sources, of at most `max_length` tokens.

        A score of −∞ marks an unused entry.
        """
        scores = torch.full((batch, size), -torch.inf, device=device)
        lengths = torch.zeros((batch, size), dtype=torch.long, device=device)
        tokens = lengths[..., None].repeat(1, 1, max_length)  # all 0
        return HypothesisBuffer(normalized_scores=scores, scores=scores.clone(), lengths=lengths, tokens=tokens)

    def to_hypotheses(self, finished: bool) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, best first; `finished` says whether they ended with EOS."""
        columns = (column.tolist() for column in (self.tokens, self.lengths, self.scores, self.normalized_scores))
        by_source = [
            [
                Hypothesis(tokens[:length], score, normalized_score, finished)
                for tokens, length, score, normalized_score in zip(*source_columns)
                if score > -torch.inf  # −∞ marks an unused entry
            ]
            for source_columns in zip(*columns)
        ]
        return [sorted(group, key=lambda hypothesis: -hypothesis.normalized_score) for group in by_source]


@dataclass(kw_only=True)
class StrategyState:
    """The state of a strategy besides tokens and scores. Subclasses add their tensors."""

    finished: HypothesisBuffer | None = None  # hypotheses that ended with EOS, best first
    truncated: HypothesisBuffer | None = None  # hypotheses that were truncated by the length limit
    ended_rows: Tensor | None = None  # B K: the rows that have ended, where rows end on their own

    @property
    def beams(self) -> Sequence[StrategyState]:
        """The states that have the buffers `finished` and `truncated`: this one, or one per group in diverse beams."""
        return [self]


@dataclass
class ConstraintTensors:
    """Constraints on the targets of a batch, as tensors with one row per source; None where there are none."""

    prefix: Tensor | None = None  # B P: tokens with which targets begin
    prefix_length: Tensor | None = None  # B: how many of them
    required: RequiredPhraseTensors | None = None


@dataclass
class RequiredPhraseTensors:
    """Phrases that targets must contain: C phrases of up to L tokens for each source, padded."""

    tokens: Tensor  # B C L
    lengths: Tensor  # B C
    counts: Tensor  # B C: how often a phrase must occur, 0 for padding
    #: B C L L: the number of matched tokens after j matched tokens and then the phrase's i-th token
    #: (the automaton of Knuth, Morris & Pratt 1977)
    transitions: Tensor


@dataclass
class SearchState:
    """The state of the search of B sources with K hypotheses each. Every tensor has one row per source.

    Steps are functions from state to state. `map_tensors` maps the tensors of a state, so that sources can leave,
    others can take their slots, and CUDA graphs can keep a state in fixed memory.
    """

    tokens: Tensor  # B K: the last token of each hypothesis, which is decoded next
    step: Tensor  # B: number of generated tokens
    max_length: Tensor  # B: largest number of tokens, EOS included
    done: Tensor  # B: whether the search of a source has ended
    key: Tensor  # B: number of the source, from which samples are drawn
    decoders: list[DecoderState]  # one per model
    constraints: ConstraintTensors
    source_mask: Tensor | None = None  # B S: source positions that are not padding, if the strategy needs attention
    scores: Tensor = field(default_factory=lambda: torch.empty(0))  # B K: log p of each hypothesis
    output_tokens: Tensor = field(default_factory=lambda: torch.empty(0))  # B K T: generated tokens
    strategy: Any = field(default_factory=StrategyState)  # a StrategyState, of the class that the strategy uses
    processors: list[Any] = field(default_factory=list)  # the state of each logits processor, or None

    @property
    def without_decoders(self) -> SearchState:
        """A copy of the state without the states of the models (caches and encoder outputs)."""
        return replace(self, decoders=[])


def _by_source(state: SearchState) -> SearchState:
    """Return the state with caches viewed as B K … instead of B·K …, so that dimension 0 of every tensor is the source.

    `state.tokens` has the shape B K: K hypotheses of each of B sources.
    """
    shape = state.tokens.shape
    decoders = [
        replace(decoder, cache=map_tensors(lambda leaf: leaf.unflatten(0, shape), decoder.cache))
        for decoder in state.decoders
    ]
    return replace(state, decoders=decoders)


def select_sources(state: SearchState, sources: Tensor) -> SearchState:
    """Return the state of N sources of a batch, given by their indices `sources` (N) in it."""
    selected = map_tensors(lambda leaf: leaf[sources], _by_source(state))
    for decoder in selected.decoders:
        decoder.cache = map_tensors(lambda leaf: leaf.flatten(0, 1), decoder.cache)  # N K … → N·K …
    return selected


def replace_sources(state: SearchState, slots: Tensor, new: SearchState) -> None:
    """Overwrite the rows `slots` (N) of the batch, one row per source, with the state of N new sources, in place."""
    pairs = zip(tensor_leaves(_by_source(state)), tensor_leaves(_by_source(new)))
    for leaf, values in pairs:
        leaf.index_copy_(0, slots, values.to(leaf.dtype))


@dataclass
class BatchProgress:
    """How far the search of a batch is."""

    max_length: int  # of the targets, in tokens
    cache_length: int  # number of tokens for which caches are allocated
    sources: list[int]  # the number of the source in each slot, or EMPTY_SLOT
    steps: list[int]  # how many steps each slot has done
    use_cuda_graphs: bool  # steps are captured, so that there should be few shapes
    max_lengths: list[int]  # of the targets of each source, by its number

    @property
    def all_at_limit(self) -> bool:
        """Whether all sources of the batch have reached their length limits, so that their search must end now.

        `sources` has the number of the source in each slot of the batch, `steps` its number of steps.
        """
        slots = zip(self.sources, self.steps)
        return all(number == EMPTY_SLOT or step >= self.max_lengths[number] for number, step in slots)

    def num_slots(self, count: int) -> int:
        """Return the number of slots (rows) of a batch of `count` sources; with CUDA graphs, it is rounded up.

        There are fewer shapes to capture then.
        """
        return round_up_size(count, minimum=1) if self.use_cuda_graphs and count else count


class AsyncRead:
    """Truth values that are copied from the device without waiting for it; `read` waits."""

    def __init__(self, values: Tensor) -> None:
        """Start to copy the truth values `values` to the CPU; `self.event` is recorded when the copy is complete.

        It is None for values that are on the CPU already.
        """
        self.values, self.event = values, torch.cuda.Event() if values.is_cuda else None
        if self.event is not None:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values = pinned.copy_(values, non_blocking=True)
            self.event.record()

    def read(self) -> list[bool]:
        """Wait for the copy to the CPU, which `__init__` has started, and return the truth values."""
        if self.event is not None:
            self.event.synchronize()
        return self.values.tolist()


def round_up_size(number: int, minimum: int = 16) -> int:
    """Round up to a power of 2 or 3 times a power of 2 (1, 2, 3, 4, 6, 8, 12, 16, 24, 32 …), at least `minimum`.

    With few sizes there are few shapes, each of which has to be captured as a CUDA graph. `minimum` is a power of 2.
    """
    power = max(minimum, 1 << (number - 1).bit_length())
    # 3/4 of the power if that suffices, and is not below the minimum
    return power * 3 // 4 if power > minimum and power % 4 == 0 and number <= power * 3 // 4 else power


@dataclass(frozen=True)
class PartialResult:
    """The result for a source whose search is still running, without BOS and EOS."""

    stable_prefix: list[int]  # common prefix of all hypotheses: it does not change any more
    best_tokens: list[int]  # the best hypothesis
    score: float  # its log p
    single_hypothesis: bool  # whether the search has one hypothesis only


def partial_result(
    state: SearchState, slot: int, eos: int, length_divisor: Callable[[float], float]
) -> PartialResult | None:
    """Return the result so far for one source of a running search; None if it has no hypothesis left.

    Live, finished and truncated hypotheses are compared: their common prefix will not change any more.

    Args:
        slot: The row of the source in the batch.
        eos: The token id that ends a hypothesis, which is not part of the result.
        length_divisor: Returns the number by which log p of a hypothesis of this length (in tokens) is divided.
    """
    hypotheses: list[Hypothesis] = []
    live_tokens = state.output_tokens[slot, :, : int(state.step[slot])].tolist()
    for padded_tokens, score in zip(live_tokens, state.scores[slot].tolist()):
        if score > -torch.inf:  # −∞ marks an unused row
            tokens = [token for token in padded_tokens if token != PAD]
            hypotheses.append(Hypothesis(tokens, score, score / length_divisor(len(tokens)), finished=False))
    # `beams`: the states with these two buffers, one per group in diverse beam search, or else a single one
    for buffer in [buffer for beam in state.strategy.beams for buffer in (beam.finished, beam.truncated)]:
        if buffer is not None:
            source_buffer = map_tensors(lambda leaf: leaf[slot : slot + 1], buffer)  # with one row
            hypotheses += source_buffer.to_hypotheses(finished=True)[0]  # only tokens and scores are used here
    if not hypotheses:
        return None
    all_tokens = [hypothesis.tokens for hypothesis in hypotheses]
    # a finished hypothesis of greedy search or sampling ends with EOS in `output_tokens`
    targets = [tokens[:-1] if tokens[-1:] == [eos] else tokens for tokens in all_tokens]
    best = max(range(len(hypotheses)), key=lambda index: hypotheses[index].normalized_score)
    # one column per position: the tokens that the hypotheses have there
    stable_prefix = [column[0] for column in takewhile(lambda column: len({*column}) == 1, zip(*targets))]
    single_hypothesis = len(state.scores[slot]) == 1
    return PartialResult(stable_prefix, targets[best], hypotheses[best].score, single_hypothesis)
