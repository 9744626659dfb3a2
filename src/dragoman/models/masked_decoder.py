"""UniLM as published: a decoder that predicts a token at the place of a mask, p(y_t | x, y_<t, mask at t)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dragoman.models.decoder_only import DecoderOnly, DecoderOnlyModel, join
from dragoman.models.model import DecodingStart, Model, first_tokens, position_limit
from dragoman.models.usage import FILL
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, Layout, MixerOutput, Recorder, State, map_state
from dragoman.text.framing import Framing
from dragoman.text.special_tokens import BOS, EOS, MASK, SEP

#: segments, which also tell the model which mask is used (Dong et al. 2019, §2.1, and the published code)
FIRST_SEGMENT, SECOND_SEGMENT, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SOURCE_SEGMENT, TARGET_SEGMENT = range(6)


@dataclass(frozen=True)
class MaskedDecoder(DecoderOnly):
    """A decoder-only stack that predicts masked tokens at their own positions, with an embedding for each segment.

    It reads BOS x EOS SEP y EOS; the paper has no SEP. `mask` is the id of the mask token, which the model itself puts
    in the place of the next token.
    """

    architecture: ClassVar[str] = "decoder of masks"
    default_framing: ClassVar[Framing] = Framing(bos=SEP, source_prefix=(BOS,), source_suffix=(EOS,))
    default_objectives: ClassVar[dict[str, str]] = {"pairs": "masked-target", "text": "unified-masked-lm"}

    token_types: int = 6
    mask: int = MASK

    def build(self, dim: int = 0) -> MaskedDecoderModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return MaskedDecoderModel(self)


class MaskedDecoderModel(DecoderOnlyModel):
    """Predicts y_t at a mask in its place, which sees x, y_<t and itself.

    A whole target is scored in one pass, with a mask for every position after the tokens: masks have the positions of
    the tokens that they stand for, and no token sees them (`Context.placeholders`). A decoding step reads a token,
    whose keys and values stay in the cache, and then a mask, whose keys and values the next token overwrites.
    """

    usage = FILL
    predicts_masks = True

    def __init__(self, spec: MaskedDecoder) -> None:
        """Build the decoder and the embeddings of the segments."""
        super().__init__(spec)
        self.mask = spec.mask
        self.types = nn.Embedding(spec.token_types, self.target_embedding.width)
        nn.init.normal_(self.types.weight, std=0.02)

    @property
    def mask_predictor(self) -> Model:
        """The model with its bidirectional mask."""
        return MaskPredictor(self)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """B: positions that the sources leave for the target and a mask after it; None if unlimited."""
        limit = super().max_target_length(source_lengths)
        return None if limit is None else limit - 1

    def embed(self, tokens: Tensor, token_types: Tensor | int) -> Tensor:
        """Tokens and their segments, B T each, or one segment for all → embeddings B T D."""
        if isinstance(token_types, int):
            return self.target_embedding(tokens) + self.types.weight[token_types]
        return self.target_embedding(tokens) + self.types(token_types)

    def forward_segments(
        self, tokens: Tensor, layout: Layout, token_types: Tensor, recorder: Recorder | None = None
    ) -> MixerOutput:
        """Read whole padded sequences, B T → B T D, under the mask that the segment of their first token stands for.

        The layout holds the lengths of the rows; `recorder` collects attention weights.
        """
        first = token_types[:, 0]
        lengths = layout.lengths if layout.lengths is not None else torch.full_like(first, tokens.shape[1])
        prefix = torch.where(first <= SECOND_SEGMENT, lengths, (token_types == SOURCE_SEGMENT).sum(1))
        prefix = torch.where(first == RIGHT_TO_LEFT, -1, prefix)  # left-to-right rows have no source: 0
        context = Context(layout, prefix_lengths=prefix, recorder=recorder)
        return self.decoder(self.embed(tokens, token_types), context)

    def forward_masked_target(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> MixerOutput:
        """Read sources (B S) and targets (B T) with masked tokens; return the output layer's inputs for the targets."""
        tokens, positions = join(source, source_lengths, target)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        types = torch.where(columns < source_lengths[:, None], SOURCE_SEGMENT, TARGET_SEGMENT)  # B S+T
        layout = Layout.padded(tokens.shape[1], source_lengths + target_lengths)
        context = Context(layout, prefix_lengths=source_lengths)
        features = self.decoder(self.embed(tokens, types), context)
        x = features.output
        return features.with_output(x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1])))

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Read source, target and a mask after every target token; return the output layer's inputs at the masks.

        The layouts hold the lengths of sources (B S, S may be 0) and targets (B T) → B T D. `recorder` collects the
        attention of the tokens; that of the masks is left out.
        """
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError("packed sources and targets cannot be joined: join them before packing")
        lengths = source_layout.lengths
        tokens, positions = join(source, lengths, target)
        width, masks = tokens.shape[1], torch.full_like(target, self.mask)
        columns = torch.arange(width, device=tokens.device).expand(len(tokens), -1)
        types = torch.where(columns < lengths[:, None], SOURCE_SEGMENT, TARGET_SEGMENT)
        types = torch.cat((types, torch.full_like(target, TARGET_SEGMENT)), 1)
        limit = position_limit(self.decoder)
        places = torch.cat((columns, positions + 1), 1)  # B S+2T; beyond the limit there is only padding
        layout = Layout(places if limit is None else places.clamp(max=limit - 1), max_length=width)
        placeholders = (torch.arange(places.shape[1], device=tokens.device) >= width).expand_as(places)
        recorded: Recorder | None = None if recorder is None else {}
        context = Context(layout, prefix_lengths=lengths, placeholders=placeholders, recorder=recorded)
        features = self.decoder(self.embed(torch.cat((tokens, masks), 1), types), context)
        for path, weights in (recorded or {}).items():
            assert recorder is not None
            recorder.setdefault(path, []).extend(each[..., :width, :width] for each in weights)
        return features.with_output(features.output[:, width:])

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Read the sources (B S, of `lengths` B) once, and repeat the decoder state for the `beam` rows of each.

        `max_length` target tokens, and a mask, fit into the state after the source. `first` is the first input token of
        all rows, or of each source (B).
        """
        batch, width = source.shape
        max_length = self._supported_length(width + max_length)
        state = self.decoder.init_state(batch, max_length + 1, self.target_embedding.weight)  # + 1: the mask
        if width:
            context = Context(Layout.padded(width, lengths), prefix_lengths=lengths)
            state = self.decoder(self.embed(source, SOURCE_SEGMENT), context, state).state
        if beam > 1:
            state = map_state(lambda tensor: tensor.repeat_interleave(beam, 0), state)
        tokens = first_tokens(first, batch, source.device).repeat_interleave(beam)
        positions = lengths.repeat_interleave(beam)  # the target follows the source
        return DecodingStart(memory=None, state=state, tokens=tokens, positions=positions, max_length=max_length)

    def _supported_length(self, max_length: int) -> int:
        """Return how many of `max_length` positions can be used, with a mask after them."""
        limit = position_limit(self.decoder)
        return max_length if limit is None else min(max_length, limit - 1)

    def grow_state(self, state: State, rows: int, max_length: int) -> tuple[State, int]:
        """Return the state with room for `max_length` positions, or as many as supported, and this number."""
        max_length = self._supported_length(max_length)
        return super().grow_state(state, rows, max_length + 1)[0], max_length  # + 1: the mask after the tokens

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Tokens, B T → logits of the next tokens, B T V, and the new state.

        Each token is predicted at a mask token, which is read after the tokens before it and is not kept in the state.
        With a state, the tokens continue its sequences, one after another; without one, they are whole sequences,
        read without a separate source.
        """
        if state is None:
            lengths = context.layout.lengths
            if lengths is None:
                lengths = torch.full_like(target[:, 0], target.shape[1])
            no_source = Layout.padded(0, torch.zeros_like(lengths))
            layout = replace(context.layout, lengths=lengths)
            features = self.forward_features(target[:, :0], no_source, target, layout, context.recorder)
            return self.output(features.output), None
        all_logits = []
        for column, position in zip(target.split(1, 1), context.layout.positions.split(1, 1)):
            state = self._read(column, position, context, state).state
            assert state is not None
            predicted = self._read(torch.full_like(column, self.mask), position + 1, context, state, is_mask=True)
            all_logits.append(self.output(predicted.output))
        return torch.cat(all_logits, 1), state

    def _read(
        self, tokens: Tensor, positions: Tensor, context: Context, state: State, is_mask: bool = False
    ) -> MixerOutput:
        """Read one token of the target per row, or a mask after it, whose attention is not recorded: R 1 → R 1 D.

        R is the number of rows. Keys and values of the token are written into the caches of the state; in beam search,
        `context.ancestors` (B K S) says which of the K rows of a source wrote each of them.
        """
        ancestors = context.ancestors
        if ancestors is not None:  # room for a mask; a hypothesis sees its own
            batch, beam, _ = ancestors.shape
            ancestors = pad(ancestors, (0, 1))
            own_row = torch.arange(beam, device=tokens.device)[None, :, None].expand(batch, -1, 1)
            ancestors = ancestors.scatter(2, positions.view(batch, beam, 1), own_row)
        max_length = context.layout.max_length
        layout = Layout(positions, max_length=None if max_length is None else max_length + 1)
        step = replace(context, layout=layout, ancestors=ancestors, recorder=None if is_mask else context.recorder)
        return self.decoder(self.embed(tokens, TARGET_SEGMENT), step, state)

    def flops(self, work: Workload) -> int:
        """FLOPs: the decoder for source and target tokens and the masks, the output layer for `work.tokens` masks."""
        whole_sequence = work.with_tokens(work.source + 2 * work.tokens)  # each target token has a mask
        return module_flops(self.decoder, whole_sequence) + module_flops(self.output, work)


class MaskPredictor(Model):
    """A masked decoder that labels its source: the most probable tokens at masks, from both sides."""

    can_generate = False

    def __init__(self, model: MaskedDecoderModel) -> None:
        """Use the weights of a model, which are not registered a second time."""
        super().__init__()
        self._model = [model]

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → logits of tokens, B S V; without `token_types` (B S) a source is the first segment."""
        (model,) = self._model
        types = torch.full_like(source, FIRST_SEGMENT) if token_types is None else token_types
        layout = Layout.padded(source.shape[1], source_lengths)
        return model.output(model.forward_segments(source, layout, types).output)
