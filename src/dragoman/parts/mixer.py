"""The interface of all layers between embedding and output layer: their inputs, results and states.

Shapes in the whole project: B batch, T target or query positions, S source or key positions, D model width, H heads,
E head width, V vocabulary, K beam, R rows of a search (B·K).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.tracing import Quantity, Trace

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from dragoman.parts.positions import Position

#: Nested dict of tensors, batch first, of constant shape, dtype and stride: key–value caches and recurrent states.
State = dict[str, Any]

#: Collects attention weights: path of a layer → one tensor per call. Arguments are None if weights are not needed.
Recorder = dict[str, list[Tensor]]


LAYER_OUTPUT = Quantity("output of the layer", "TE", "y", "What this layer passes on to the next one.")
STACK_OUTPUT = Quantity("output of the stack", "TE", "y", "The final vector of this position, after all layers.")


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `function` to every tensor of a state, a nested dict of tensors, and return the new state."""
    return {
        name: map_state(function, value) if isinstance(value, dict) else function(value)
        for name, value in state.items()
    }


@dataclass(frozen=True)
class SequenceLayout:
    """The positions of the tokens of one call.

    Padded: each row is one sequence, padded on the right (`lengths`). Packed: a row holds several sequences, numbered
    by `segment_ids`. In both, token t of a sequence has position t. Position encodings may see other numbers, the
    `position_ids`.
    """

    positions: Tensor  # B T: position of each token in its sequence
    lengths: Tensor | None = None  # B: tokens of each row without padding; None if nothing is padded
    segment_ids: Tensor | None = None  # B T: sequence of each token of a packed row; None if rows are not packed
    max_length: int | None = None  # upper bound of the sequence lengths; None in decoding steps
    cu_seqlens: Tensor | None = None  # N+1: start of each sequence in a single packed row, and the end of the last
    position_ids: Tensor | None = None  # B T: positions for position encodings, at most `max_length`; None: `positions`

    @staticmethod
    def padded(width: int, lengths: Tensor) -> SequenceLayout:
        """Layout of rows padded to `width`, with `lengths` (B) tokens each."""
        positions = torch.arange(width, device=lengths.device).expand(lengths.shape[0], width)  # B T
        return SequenceLayout(positions, lengths=lengths, max_length=width)

    @staticmethod
    def packed_row(width: int, lengths: Tensor, max_length: int) -> SequenceLayout:
        """Layout of N sequences of `lengths` (N), one after another in one row of `width` columns.

        Unused columns at the end form one more segment. No sequence is longer than `max_length`. Lengths of zero are
        allowed, so that batches with different numbers of sequences have the same shapes.
        """
        ends = lengths.cumsum(0)
        cu_seqlens = nn.functional.pad(ends, (1, 0)).int()  # N+1: starts and last end; attention kernels expect int32
        columns = torch.arange(width, device=lengths.device)
        segment_ids = torch.searchsorted(ends, columns, right=True)  # N in unused columns
        # clamp: there may be more unused columns than `max_length`, for which no position exists
        positions = (columns - cu_seqlens[segment_ids]).clamp(max=max_length - 1)
        return SequenceLayout(
            positions[None], segment_ids=segment_ids[None], max_length=max_length, cu_seqlens=cu_seqlens
        )

    @staticmethod
    def continuation(first: Tensor, count: int = 1, max_length: int | None = None) -> SequenceLayout:
        """Layout of `count` new tokens in each of R sequences, of which sequence r continues at position `first[r]`.

        All positions are below `max_length`; None if no limit is known.
        """
        start = first[:, None]
        positions = start if count == 1 else start + torch.arange(count, device=first.device)
        return SequenceLayout(positions, max_length=max_length)

    @property
    def encoded_positions(self) -> Tensor:
        """B T: the position of each token for position encodings: `position_ids`, by default `positions`."""
        return self.positions if self.position_ids is None else self.position_ids

    @property
    def num_positions(self) -> int | None:
        """Upper bound of the number of different `encoded_positions`, as the size of a table of position vectors.

        None in decoding steps.
        """
        if self.max_length is None or self.position_ids is None:
            return self.max_length
        return self.max_length + 1  # `position_ids` go up to `max_length`

    @property
    def token_mask(self) -> Tensor | None:
        """B T: True for tokens, False for padding; None if nothing is padded."""
        return None if self.lengths is None else self.positions < self.lengths[:, None]


@dataclass
class Memory:
    """The encoded source: constant during decoding, neither reordered nor repeated for the hypotheses of a beam."""

    states: Tensor  # B S D: output of the encoder
    layout: SequenceLayout
    encoder_inputs: Tensor | None = None  # B S D: embeddings with positions, input of the first encoder layer
    final_state: State | None = None  # final state of a recurrent encoder: hidden (and cell), B L D
    copied_tokens: Tensor | None = None  # B S: target token as which a position can be copied, −1 for none
    auxiliary_losses: tuple[Tensor, ...] = ()  # of the encoder, one number each for the whole batch
    projections: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # for decoding: path → project_memory()

    def select_rows(self, rows: Tensor) -> Memory:
        """Return the encoded source of each of R rows: `rows` (R) are numbers of sources in the batch, and may repeat.

        The batch must be padded, not packed. `copied_tokens` are the target tokens as which source tokens can be copied
        (−1: none). `auxiliary_losses` stay those of the whole batch. `projections` are left out: layers compute them
        anew.
        """
        lengths = self.layout.lengths
        return Memory(
            states=self.states[rows],
            layout=replace(
                self.layout, positions=self.layout.positions[rows], lengths=None if lengths is None else lengths[rows]
            ),
            encoder_inputs=None if self.encoder_inputs is None else self.encoder_inputs[rows],
            final_state=None if self.final_state is None else map_state(lambda t: t[rows], self.final_state),
            copied_tokens=None if self.copied_tokens is None else self.copied_tokens[rows],
            auxiliary_losses=self.auxiliary_losses,
        )


class AttentionMasks:
    """Attention masks of one call, computed by the first layer that needs them and shared by layers with equal keys."""

    def __init__(self) -> None:
        """Start without masks; layers add those that they compute, under a key that says what they depend on.

        The key is the `mask_key` of a layer, such as ("self", number of keys, kind of mask).
        """
        self.additive: dict[Hashable, Tensor | None] = {}  # B 1 T S: 0 or −∞; None: all visible
        self.blocks: dict[Hashable, BlockMask] = {}  # FlexAttention's, for packed rows
        self.cached_keys: dict[Hashable, CachedKeys] = {}  # by the length of the cache


class CachedKeys(NamedTuple):
    """Layout of key–value caches: the keys of all K hypotheses of a source are attended to as one sequence."""

    rows: Tensor  # R 1: row numbers, to write into the cache
    queries: SequenceLayout  # B K, or R T if there is no beam
    keys: SequenceLayout  # B K·S, or R S
    mask: Tensor | None = None  # B K K·S: True for the keys of a hypothesis and its ancestors


@dataclass(frozen=True)
class Context:
    """Read-only inputs that all layers of one call share.

    The caller sets the fields up to `recorder`; the stack adds the others before it calls its layers.
    """

    layout: SequenceLayout
    memory: Memory | None = None
    prefix_lengths: Tensor | None = None  # R: length of the prefix of each row that is visible from everywhere
    placeholders: Tensor | None = None  # B T: True for tokens of whole sequences that no other token sees
    ancestors: Tensor | None = None  # B K S: which hypothesis of the beam wrote the cache at each position
    recorder: Recorder | None = None
    masks: AttentionMasks | None = None  # shared by all layers of the stack; None: masks are not shared
    shared_position: Position | None = None  # the stack's position encoding, for its attention layers
    stack_inputs: Tensor | None = None  # B T D: embeddings with positions, input of the first layer
    source_context: Tensor | None = None  # B T D: attention over the source, returned by a layer below

    @property
    def encoded_source(self) -> Memory:
        """The encoder's output (`memory`); an error if the model has no encoder."""
        if self.memory is None:
            raise UserError(
                "a layer that attends to the source needs an encoder, but this model has none: use the layer in the "
                "decoder of an EncoderDecoder"
            )
        return self.memory

    def with_new_masks(self) -> Context:
        """Return the context with an empty cache of attention masks.

        The fields are written out, because some versions of PyTorch cannot compile `replace` in gradient checkpointing.
        """
        return Context(
            layout=self.layout,
            memory=self.memory,
            prefix_lengths=self.prefix_lengths,
            placeholders=self.placeholders,
            ancestors=self.ancestors,
            recorder=self.recorder,
            masks=AttentionMasks(),
            shared_position=self.shared_position,
            stack_inputs=self.stack_inputs,
            source_context=self.source_context,
        )

    def record(self, path: str, weights: Tensor) -> None:
        """Append attention weights of the layer `path` (its name in the model) to the recorder, if a caller set one."""
        if self.recorder is not None:
            self.recorder.setdefault(path, []).append(weights.detach())

    @property
    def is_traced(self) -> bool:
        """Whether layers record their intermediate results, which explain the model to a user."""
        return isinstance(self.recorder, Trace)

    def trace(self, path: str, quantity: Quantity, value: Tensor) -> None:
        """Record an intermediate result of the layer `path` (its name in the model), if the call is traced.

        `quantity` names and explains it, and says which axes `value` has after the batch.
        """
        if isinstance(self.recorder, Trace):
            self.recorder.add(path, quantity, value)


class CopyDistribution(NamedTuple):
    """How probable it is at each target position that the next token is copied from the source, and from where."""

    generation_prob: Tensor  # … 1: p_gen
    copy_probs: Tensor  # … S: (1 − p_gen) a_i, zero at positions that cannot be copied
    tokens: Tensor  # … S: target token as which each position is copied

    def map(self, function: Callable[[Tensor], Tensor]) -> CopyDistribution:
        """Apply `function`, which selects or reshapes target positions, to all three tensors."""
        return CopyDistribution(*map(function, self))


class MixerOutput(NamedTuple):
    """What a layer returns."""

    output: Tensor  # B T D
    state: State | None = None  # to continue from; None if the layer was called without a state
    source_context: Tensor | None = None  # B T D: attention over the source, for recurrent layers above
    final_state: State | None = None  # recurrent state after the last token, if called without a state
    auxiliary_losses: tuple[Tensor, ...] = ()
    stack_inputs: Tensor | None = None  # B T D: embeddings with positions; returned by stacks
    copying: CopyDistribution | None = None  # added by an output layer that copies from the source

    def select_rows(self, rows: slice) -> MixerOutput:
        """Return these rows of the batch, as the input of the output layer, which reads no other fields.

        So only `output` and `copying`, the probabilities of copying source tokens, remain; states and losses do not.
        """
        copying = None if self.copying is None else self.copying.map(lambda tensor: tensor[rows])
        return MixerOutput(self.output[rows], copying=copying)

    def with_output(self, output: Tensor) -> MixerOutput:
        """Return a copy with another `output`; state, losses and all other fields stay."""
        return MixerOutput(output, *self[1:])


class Mixer(nn.Module):
    """Base class of layers: x (B T D), context, state → MixerOutput.

    Without a state, x holds whole sequences. With a state, x continues the sequences that the state has read; the
    layer may modify this state in place, and the caller continues with the returned one.
    """

    path: str = ""  # qualified name in the model: key of memory projections and of recorded attention weights
    title: str = "layer"  # what it is, in a label such as “encoder layer 2: self-attention”
    supports_packing: bool = True
    #: linear layers that LoRA can adapt, by attribute, with the names of the matrices stacked in their weight
    adaptable: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state, such as key–value caches, to decode `batch` rows of up to `max_length` tokens.

        Its tensors have dtype and device of `like`. This base class has no state.
        """
        return {}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the state whose row r (a hypothesis of the beam) continues row `rows[r]` of the given one."""
        return map_state(lambda tensor: tensor.index_select(0, rows), state)

    def key_labels(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return a label for each key of recorded attention weights; `tokens` are those that the layer attends to."""
        return tokens

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Compute what depends on the encoder's output alone, such as projected keys and values; here nothing."""
        return {}

    def memory_projections(self, memory: Memory) -> dict[str, Tensor]:
        """Return `project_memory(memory)` for the encoded source: computed before decoding, or else now."""
        projections = memory.projections.get(self.path)
        return self.project_memory(memory) if projections is None else projections

    def score_terms(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the terms whose sums are the attention scores of one query (E) and S keys (S E), to explain them.

        Each score is the sum of A terms, S A; here of the E products of the elements, times the scale of the layer.
        """
        scale = getattr(self, "scale", None) or query.shape[-1] ** -0.5  # 1/√E unless the layer has its own
        return query * key * scale

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Compute the output of the layer and the new state: x, B T D → B T D.

        Without a state, x holds whole sequences; with one, x continues the sequences that it has read. The context
        holds what all layers of the call share: positions and lengths of the tokens, and the encoded source.
        """
        raise NotImplementedError


class LayerSequence(Mixer):
    """Named layers, run one after the other; the state maps their names to their states."""

    output_quantity: ClassVar[Quantity] = LAYER_OUTPUT  # the name of its output in a trace

    def named_layers(self) -> list[tuple[str, Mixer]]:
        """Return the layers as (name, layer), in the order in which they run."""
        raise NotImplementedError

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the states of all layers, by name, with dtype and device of `like`."""
        return {name: layer.init_state(batch, max_length, like) for name, layer in self.named_layers()}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the states of all layers whose row r (a hypothesis of the beam) continues row `rows[r]`."""
        return {name: layer.reorder_state(state[name], rows) for name, layer in self.named_layers()}

    def prepare(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the input and the context (what all layers share) for the first layer: here those of the sequence."""
        return x, context

    def finish(self, x: Tensor, y: Tensor, layout: SequenceLayout) -> Tensor:
        """Compute the output of the sequence from its input x and the output y of its last layer: here y itself.

        The layout says which positions are padding, which some norms ignore.
        """
        return y

    def steps(self, context: Context, state: State | None) -> Sequence[tuple[str, Callable[..., MixerOutput]]]:
        """Return (name, function) of what `forward` calls one after the other: here always the layers.

        Subclasses may choose by the context and the state, which is None for whole sequences.
        """
        return self.named_layers()

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Run the layers one after the other: x, B T D → B T D, with the new states by layer and all auxiliary losses.

        A layer's attention over the source (`source_context`) is passed on to the layers above it. The final state is
        that of the last layer that has one.
        """
        y, context = self.prepare(x, context)
        new_state: State = {}
        final_state: State | None = None
        losses: tuple[Tensor, ...] = ()
        for name, layer in self.steps(context, state):
            result = layer(y, context, None if state is None else state[name])
            y, new_state[name] = result.output, result.state
            if context.is_traced:  # intermediate results are recorded, to explain the model
                # a step may be a function instead of a layer, without a path
                context.trace(getattr(layer, "path", self.path), LAYER_OUTPUT, y)
            losses += result.auxiliary_losses
            if result.final_state is not None:
                final_state = result.final_state
            if result.source_context is not None:
                context = replace(context, source_context=result.source_context)
        y, state = self.finish(x, y, context.layout), None if state is None else new_state
        context.trace(self.path, self.output_quantity, y)  # under the name that this class has for its output
        return MixerOutput(
            y,
            state,
            source_context=context.source_context,
            final_state=final_state,
            auxiliary_losses=losses,
            stack_inputs=context.stack_inputs,
        )


def assign_paths(root: nn.Module) -> None:
    """Set the `path` of every layer in the model `root` to its qualified name, such as "decoder.layers.0.1"."""
    for path, module in root.named_modules():
        if isinstance(module, Mixer):
            module.path = path


def stack_layers(root: nn.Module) -> list[Mixer]:
    """Return the layers of all stacks (such as encoder and decoder) in the model `root`, the last layer first.

    Layers and stacks are of the class `Mixer`. A layer of a stack is inside exactly one other `Mixer`, the stack; the
    parts of a layer are inside more.
    """
    layers = {path: module for path, module in root.named_modules() if isinstance(module, Mixer)}
    return [
        layer for path, layer in reversed(layers.items()) if sum(path.startswith(f"{other}.") for other in layers) == 1
    ]


def beam_size(rows: int, memory: Memory) -> int:
    """Number of hypotheses per source: that of decoder rows, divided by that of encoded sources in `memory`."""
    return rows // memory.states.shape[0]
