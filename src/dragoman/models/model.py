"""The interface of all models and of their specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models.usage import Usage
from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.flops import Workload
from dragoman.parts.mixer import Context, Memory, MixerOutput, Recorder, SequenceLayout, State
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec
from dragoman.parts.stack import StackMixer
from dragoman.text import Framing, Tokenizer


class ModelSpec(Spec):
    """Description of a whole model."""

    architecture: ClassVar[str]  # in words, such as "encoder–decoder"
    default_framing: ClassVar[Framing]  # special tokens around source and target, unless a checkpoint has its own
    default_objectives: ClassVar[Mapping[str, str]]  # by the content of the data: pairs, text, turns or features
    supports_shortlist: ClassVar[bool] = False  # whether its models have `restrict_vocabulary`
    dim: int

    def build(self, dim: int = 0) -> Model:
        """Create the model; the argument `dim` is unused, because the width is a field of the model's spec."""
        raise NotImplementedError

    def with_labels(self, num_labels: int, of_sequence: bool = False) -> ModelSpec:
        """Return the spec of a tagger with this encoder and a new output layer for `num_labels` labels of words.

        With `of_sequence`, that of a classifier, whose labels are those of whole sequences. Only encoder-only models
        support it: others raise a UserError.
        """
        raise UserError(
            "tagging and classification need an encoder-only system, but this one is of the kind "
            f"{type(self).__name__}: set system.name to tagger, classifier or roberta"
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """Rows of the embedding tables of source and target.

        Only those of encoder–decoders can grow, by tokens for a new language: others, as here, raise a UserError.
        """
        raise self._growth_error()

    def with_vocabulary_sizes(self, source: int, target: int) -> ModelSpec:
        """Return the spec of a model with larger vocabularies; models other than encoder–decoders raise a UserError."""
        raise self._growth_error()

    def _growth_error(self) -> UserError:
        """Return the error of models that are not encoder–decoders, to which no new language can be added."""
        return UserError(
            "--add-language adds tokens to the vocabulary of an encoder–decoder, but this model has the architecture "
            f"{self.architecture}: leave out --add-language, or name an encoder–decoder with --start-from"
        )

    def with_feature_symbols(self, first: int, count: int, invariant_positions: bool) -> ModelSpec:
        """Return the spec of a model that distinguishes feature symbols, such as PST, before a source from its tokens.

        They have `count` ids from `first` on; `invariant_positions` makes their order irrelevant. Only encoder–decoders
        do so: others, as here, read features like other tokens, and their spec stays the same.
        """
        return self


@dataclass
class DecodingStart:
    """What a search begins with: encoded sources, decoder state and first tokens of R rows (hypotheses)."""

    memory: Memory | None  # None: a decoder-only model has read the sources into its state
    state: State
    tokens: Tensor  # R: first input token
    positions: Tensor  # R: its position
    max_length: int  # positions in the state; finished rows stay at the last one


class Model(nn.Module):
    """A model of p(y|x) or p(y), or of one label per token.

    Sequences are passed as ids with their layout, or padded with their lengths. A decoder-only model reads the source,
    which may be empty (B 0), as the prefix of its sequence; an encoder-only model has no target.
    """

    spec: ModelSpec
    output: OutputLayer
    decoder: StackMixer
    target_embedding: TokenEmbedding
    vocab_size: int  # outputs of the output layer
    can_generate = True
    predicts_masks = False  # whether a token is predicted at a mask in its place, not at the token before it
    is_decoder_only = False  # whether source and target form one sequence
    source_features: int | None = None  # width of the vectors if the source is features (B S F), not tokens (B S)
    num_labels = 0  # labels of a tagger or classifier; 0 for models that predict tokens
    one_label_per_sequence = False  # whether the label at the first token is that of the whole sequence
    label_names: tuple[str, ...] = ()  # names of the predicted labels, if they are no tokens of the target tokenizer
    usage: Usage | None = None  # the command that uses it, unless the objective of its training says otherwise

    @property
    def mask_predictor(self) -> Model | None:
        """The model that predicts masked tokens of its source; None, as here, if it is not trained for that."""
        return None

    @property
    def output_stack(self) -> StackMixer:
        """The stack of layers below the output layer: the decoder, or the encoder of a model without a decoder."""
        return self.decoder

    def match_vocabularies(self, source: Tokenizer, target: Tokenizer) -> None:
        """Tell the output layer which tokens of source and target are equal, so that it can copy them."""
        self.output.match_vocabularies(source, target)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        """Embedding tables of source and target tokens; None for a side that the model does not embed as tokens."""
        return None, None

    def forward_features(
        self,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Run all layers but the output layer; return its input at each target position, B T D, and auxiliary losses.

        Source (B S) and target (B T) are token ids, and their layouts hold positions and lengths of the sequences.
        `recorder`, if given, collects attention weights.
        """
        raise NotImplementedError

    def forward_targets(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor, source_rows: Tensor
    ) -> MixerOutput:
        """Run all layers but the output layer for R targets, several of each source; return its input, R T D.

        Target r (ids R T, lengths R) belongs to source number `source_rows[r]` (ids B S, lengths B); all are padded.
        """
        source_layout = SequenceLayout.padded(source.shape[1], source_lengths[source_rows])
        target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
        return self.forward_features(source[source_rows], source_layout, target, target_layout)

    def layer_features(
        self,
        states: Tensor,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
    ) -> Tensor:
        """Return the input of the output layer if `states` (B T D) were the output of the last layer: here `states`.

        So the states of lower layers can be read as predictions (a logit lens). Models that compute something between
        layers and output layer override it; they use the ids of source (B S) and target (B T) and their layouts
        (positions, lengths).
        """
        return states

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Teacher forcing: padded tokens, B S and B T → logits of the next tokens, B T V."""
        source_layout = SequenceLayout.padded(source.shape[1], source_lengths)
        target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
        return self.logits(self.forward_features(source, source_layout, target, target_layout))

    def logits(self, features: MixerOutput) -> Tensor:
        """Return the logits of the next tokens, B T V, from the result of `forward_features`.

        It holds the input of the output layer, B T D, and, in models that copy, the probabilities of copying.
        """
        return self.output.logits(features.output, features.copying)

    def label_logits(self, features: MixerOutput) -> Tensor:
        """Return the logits, B T V, whose softmax are the probabilities of all labels; here those of the tokens.

        V is 0 if the model predicts nothing. `features` is the result of `forward_features`.
        """
        return self.logits(features)

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Compute the logits of the tokens that follow target tokens: ids B T → logits B T V, and the new state.

        The context holds the tokens' layout (positions and lengths) and the encoded source. With a state, the tokens
        continue the sequences that it has read; without one, they are whole sequences, and no state is returned.
        """
        decoded = self.decoder(self.target_embedding(target), context, state)
        result = self.output.add_copy_probabilities(decoded, context)  # unchanged in models that do not copy
        return self.output.logits(result.output, result.copying), result.state

    def posterior_alignment(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> Tensor | None:
        """Return p(a_t | y, x), the distribution over the source positions that each target token comes from: B T S.

        Step t is about the token after `target[:, t]`. Sources (B S) and targets (B T) are padded. None, as here, if
        the model has no alignment besides its attention.
        """
        return None

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Encode the sources (ids B S, lengths B) and create the decoder state of a search, `beam` rows per source.

        `max_length` target tokens fit into the state. `first` is the id of the first input token of all rows, or of
        each source (B). Models that generate text override this method; here it raises a UserError.
        """
        raise UserError("this model labels its source and cannot generate text: use a model with a decoder")

    def restrict_vocabulary(self, tokens: Tensor) -> Model:
        """Return a model that generates only N `tokens`, as ids 0 … N−1, and shares the weights.

        Only encoder–decoders support it: others raise a UserError.
        """
        raise UserError(
            "a shortlist (--shortlist) restricts the target tokens that an encoder–decoder can generate, but this "
            "model is no encoder–decoder: leave out --shortlist"
        )

    def copyable_tokens(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the ids (N) of the target tokens that the output layer can copy from sources (ids B S, lengths B).

        Each is returned once; N is 0 for models that do not copy.
        """
        layout = SequenceLayout.padded(source.shape[1], lengths)
        tokens = self.output.copied_tokens(source, layout, width=source.shape[1])  # B S; −1: cannot be copied
        return torch.empty(0, dtype=torch.long) if tokens is None else tokens[tokens >= 0].unique()

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the decoder state whose row r (a hypothesis of the beam) continues row `rows[r]` of the given one."""
        return self.decoder.reorder_state(state, rows)

    def grow_state(self, state: State, rows: int, max_length: int) -> tuple[State, int]:
        """Return a larger copy of the decoder state, and the number of positions for which it has room.

        The number is `max_length`, or less if the model supports fewer positions. `rows` is the number of hypotheses in
        the state. Recurrent states, whose size does not depend on positions, are not copied.
        """
        max_length = min(max_length, position_limit(self.decoder) or max_length)  # None: no limit
        empty = self.decoder.init_state(rows, max_length, like=next(self.decoder.parameters()))
        return _copy_into(empty, state), max_length

    def copy_recurrent_state(self, state: State) -> State:
        """Return the decoder state with copies of its recurrent states, which reading further tokens overwrites.

        Key–value caches, in which every position has its own entry, are shared. A tensor is a recurrent state if its
        shape is that in a state for a single position.
        """
        state_of_one = self.decoder.init_state(batch=1, max_length=1, like=torch.empty(0, device="meta"))
        return _copy_recurrent(state, state_of_one)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """Return the largest supported number of target tokens for sources of these lengths, B; None if unlimited."""
        return None

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """Return for each pair how many tokens its row of a batch has, which decides how many rows fit into the batch.

        `source` and `target` are numbers of tokens. Here source and target have a row each, in a batch of sources and
        one of targets: the longer one counts.
        """
        return np.maximum(source, target)

    @property
    def max_source_length(self) -> int | None:
        """Largest supported number of source tokens; None, as here, if unlimited."""
        return None

    @property
    def supports_packing(self) -> bool:
        """Whether a row of a batch may hold several sequences; false if any module needs one sequence per row."""
        return all(getattr(part, "supports_packing", True) for part in self.modules() if part is not self)

    @property
    def memory_paths(self) -> list[str]:
        """Names in the model of the layers that read the encoder's output, in order; here none."""
        return []

    def flops(self, work: Workload) -> int:
        """FLOPs of a forward pass over `work.tokens` target and `work.source` source tokens."""
        raise NotImplementedError

    def training_flops(self, work: Workload) -> int:
        """FLOPs of a training step over `work.tokens` target tokens: forward, and twice as many backward.

        Assumes a label at every position; objectives with fewer labels save a part of the output layer.
        """
        return 3 * self.flops(work)  # one forward, two backward


def first_tokens(first: int | Tensor, batch: int, device: torch.device) -> Tensor:
    """Return the first target token of each of `batch` sources, B; `first` is one id for all, or one for each (B)."""
    return first if isinstance(first, Tensor) else torch.full((batch,), first, dtype=torch.long, device=device)


def position_limit(stack: nn.Module) -> int | None:
    """Return the longest sequence that the position encodings of a stack support; None if there is no limit."""
    limits = [part.max_length for part in stack.modules() if isinstance(part, Position) and part.max_length is not None]
    return min(limits, default=None)


def _copy_recurrent(state: State, state_of_one: State) -> State:
    """Return a state with copies of the tensors whose rows have the same shape in `state_of_one`, for one position.

    These are recurrent states, whose size does not depend on the positions; other tensors are shared.
    """
    new_state: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            new_state[name] = _copy_recurrent(value, state_of_one[name])
        else:
            is_recurrent = value.shape[1:] == state_of_one[name].shape[1:]
            new_state[name] = value.clone() if is_recurrent else value
    return new_state


def _copy_into(larger: State, state: State) -> State:
    """Copy the tensors of a state into the beginning of those of `larger`, an empty state for more positions.

    `larger` is changed in place, gets the dtypes of `state`, and is returned. Tensors that have the same shape in both
    are used without copying.
    """
    for name, value in state.items():
        if isinstance(value, dict):
            larger[name] = _copy_into(larger[name], value)
        elif larger[name].shape == value.shape:  # a recurrent state, whose size does not depend on the positions
            larger[name] = value
        else:
            larger[name] = larger[name].to(value.dtype)
            larger[name][tuple(slice(size) for size in value.shape)] = value
    return larger
