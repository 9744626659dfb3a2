"""The state of a search: typed trees of tensors with one row per source, and how far the search of a batch is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dragoman.models import DecodingStart
from dragoman.parts.mixer import Layout, Memory, State

EMPTY_SLOT = -1  # stands for the source number of a slot without a source
PAD = -1  # stands in the output tokens of a row that has ended

Tree = TypeVar("Tree")


def map_tensors(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply `function` to every tensor of a tree, or to the corresponding tensors of several trees of one structure.

    A tree is a tensor, or a dataclass, dict or list of trees. Other values are taken from the first tree.
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
    """Return the leaves (tensors and other values) of nested dataclasses, dicts (sorted by key) and lists."""
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
    """Return the tensors of a tree (nested dataclasses, dicts and lists), always in the same order."""
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
        """Create the state with which a model begins to decode `batch` sources.

        `reorders_rows`: a row may continue the hypothesis of another row. Then `ancestors` (B K S) says which row's
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
    """Return a memory (encoded source) with explicit lengths and without auxiliary losses, for decoding."""
    lengths, states = memory.layout.lengths, memory.states
    if lengths is None:
        lengths = torch.full((len(states),), states.shape[1], device=states.device)
    layout = Layout(memory.layout.positions, lengths=lengths, max_length=states.shape[1])
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
    """Up to N hypotheses of each source that are not continued; a score of −∞ marks an empty place."""

    normalized_scores: Tensor  # B N: scores by which hypotheses are ranked
    scores: Tensor  # B N: log p(y|x)
    lengths: Tensor  # B N: number of tokens, without EOS
    tokens: Tensor  # B N T

    @staticmethod
    def empty(batch: int, size: int, max_length: int, device: torch.device) -> HypothesisBuffer:
        """Create a buffer for `size` hypotheses of each source, of at most `max_length` tokens."""
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
                for tokens, length, score, normalized_score in zip(*source)
                if score > -torch.inf
            ]
            for source in zip(*columns)
        ]
        return [sorted(source, key=lambda hypothesis: -hypothesis.normalized_score) for source in by_source]


@dataclass(kw_only=True)
class StrategyState:
    """What a strategy keeps besides tokens and scores. Subclasses add their tensors."""

    finished: HypothesisBuffer | None = None  # hypotheses that ended with EOS, best first
    truncated: HypothesisBuffer | None = None  # hypotheses that were truncated by the length limit
    ended_rows: Tensor | None = None  # B K: the rows that have ended, where rows end on their own

    @property
    def beams(self) -> Sequence[StrategyState]:
        """The states that hold finished and truncated hypotheses: of the groups of a diverse beam, or else this one."""
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
        """The state without the models' caches and encoder outputs."""
        return replace(self, decoders=[])


def _by_source(state: SearchState) -> SearchState:
    """View caches as B K … instead of B·K …, so that every tensor of the state has one row per source."""
    shape = state.tokens.shape
    decoders = [
        replace(decoder, cache=map_tensors(lambda leaf: leaf.unflatten(0, shape), decoder.cache))
        for decoder in state.decoders
    ]
    return replace(state, decoders=decoders)


def select_sources(state: SearchState, sources: Tensor) -> SearchState:
    """Return the state of the sources with the indices `sources` (N) in the batch."""
    selected = map_tensors(lambda leaf: leaf[sources], _by_source(state))
    for decoder in selected.decoders:
        decoder.cache = map_tensors(lambda leaf: leaf.flatten(0, 1), decoder.cache)
    return selected


def replace_sources(state: SearchState, slots: Tensor, new: SearchState) -> None:
    """Write the state of N new sources into the rows `slots` (N) of the batch, in place of the sources there."""
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
        """Whether all sources have reached their length limits, so that their search must end now."""
        slots = zip(self.sources, self.steps)
        return all(number == EMPTY_SLOT or step >= self.max_lengths[number] for number, step in slots)

    def num_slots(self, count: int) -> int:
        """The number of slots of a batch for `count` sources; with CUDA graphs, rounded up to a few sizes."""
        return round_up_size(count, minimum=1) if self.use_cuda_graphs and count else count


class AsyncRead:
    """Truth values that are copied from the device without waiting for it; `read` waits."""

    def __init__(self, values: Tensor) -> None:
        """Start the copy of `values` to the CPU."""
        self.values, self.event = values, torch.cuda.Event() if values.is_cuda else None
        if self.event is not None:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values = pinned.copy_(values, non_blocking=True)
            self.event.record()

    def read(self) -> list[bool]:
        """Return the values, after waiting for the copy."""
        if self.event is not None:
            self.event.synchronize()
        return self.values.tolist()


def round_up_size(number: int, minimum: int = 16) -> int:
    """Round up to `minimum` or a number of the series 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 …

    With few sizes there are few shapes, each of which has to be captured as a CUDA graph.
    """
    power = max(minimum, 1 << (number - 1).bit_length())
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
    """Return the result so far for the source in a slot of the batch; None if all its hypotheses were dropped.

    Live, finished and truncated hypotheses count: their common prefix will not change any more. `length_divisor` gives
    the number by which the score of a hypothesis of some length is divided in comparisons.
    """
    hypotheses: list[Hypothesis] = []
    rows = state.output_tokens[slot, :, : int(state.step[slot])].tolist()
    for row, score in zip(rows, state.scores[slot].tolist()):
        if score > -torch.inf:
            tokens = [token for token in row if token != PAD]
            hypotheses.append(Hypothesis(tokens, score, score / length_divisor(len(tokens)), finished=False))
    for buffer in [buffer for beam in state.strategy.beams for buffer in (beam.finished, beam.truncated)]:
        if buffer is not None:  # `finished` plays no part here: only tokens and scores are used
            (of_source,) = map_tensors(lambda leaf: leaf[slot : slot + 1], buffer).to_hypotheses(finished=True)
            hypotheses += of_source
    if not hypotheses:
        return None
    targets = [h.tokens[:-1] if h.tokens[-1:] == [eos] else h.tokens for h in hypotheses]
    best = max(range(len(hypotheses)), key=lambda index: hypotheses[index].normalized_score)
    stable_prefix = [column[0] for column in takewhile(lambda column: len({*column}) == 1, zip(*targets))]
    single_hypothesis = len(state.scores[slot]) == 1
    return PartialResult(stable_prefix, targets[best], hypotheses[best].score, single_hypothesis)
