"""UniLM as published: a decoder that predicts a token at the place of a mask, p(y_t | x, y_<t, mask at t)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dragoman.models.decoder_only import DecoderOnly, DecoderOnlyModel, join, select_positions
from dragoman.models.model import Model, position_limit
from dragoman.models.usage import FILL
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, MixerOutput, Recorder, SequenceLayout, State
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
    positions_after_target = 1

    def __init__(self, spec: MaskedDecoder) -> None:
        """Build the decoder and the embeddings of the segments (`types`), such as source and target."""
        super().__init__(spec)
        self.mask = spec.mask  # id of the mask token
        self.types = nn.Embedding(spec.token_types, self.target_embedding.width)
        nn.init.normal_(self.types.weight, std=0.02)

    @property
    def mask_predictor(self) -> Model:
        """The same weights as a model that predicts masked tokens of its source from both sides."""
        return MaskPredictor(self)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """Return the largest number of target tokens for each source, B; None if unlimited.

        These are the positions that the source (`source_lengths`, B) and one mask after the last token leave.
        """
        limit = super().max_target_length(source_lengths)
        return None if limit is None else limit - self.positions_after_target

    def embed(self, tokens: Tensor, token_types: Tensor | int) -> Tensor:
        """Embed tokens (ids B T) and their segments (B T, or one number for all): B T D.

        A segment, such as `SOURCE_SEGMENT`, also tells the model which attention mask is used.
        """
        if isinstance(token_types, int):
            return self.target_embedding(tokens) + self.types.weight[token_types]
        return self.target_embedding(tokens) + self.types(token_types)

    def forward_segments(
        self, tokens: Tensor, layout: SequenceLayout, token_types: Tensor, recorder: Recorder | None = None
    ) -> MixerOutput:
        """Run all layers but the output layer on whole padded sequences: ids B T → B T D.

        The segment of a row's first token (`token_types`, B T) decides its attention mask: bidirectional,
        left-to-right, right-to-left, or bidirectional over the tokens of `SOURCE_SEGMENT` only. The layout holds the
        lengths of the rows; `recorder`, if given, collects attention weights.
        """
        first_type = token_types[:, 0]
        lengths = layout.lengths if layout.lengths is not None else torch.full_like(first_type, tokens.shape[1])
        # a prefix is visible from all positions: the whole row if the mask is bidirectional, otherwise the source
        num_source_tokens = (token_types == SOURCE_SEGMENT).sum(1)  # 0 in left-to-right rows
        # FIRST_SEGMENT and SECOND_SEGMENT, the smallest numbers, are bidirectional
        prefix_lengths = torch.where(first_type <= SECOND_SEGMENT, lengths, num_source_tokens)
        prefix_lengths = torch.where(first_type == RIGHT_TO_LEFT, -1, prefix_lengths)  # −1 stands for that mask
        context = Context(layout, prefix_lengths=prefix_lengths, recorder=recorder)
        return self.decoder(self.embed(tokens, token_types), context)

    def forward_masked_target(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> MixerOutput:
        """Read each source (ids B S) and its target (ids B T), in which some tokens are masks, as one sequence.

        Returns the input of the output layer at the target positions, B T D. Sources and targets are padded; their
        numbers of tokens are `source_lengths` and `target_lengths` (B). All positions see the source.
        """
        tokens, positions = join(source, source_lengths, target)  # B S+T and B T
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        # B S+T: the segment of each token, which has an embedding
        types = torch.where(columns < source_lengths[:, None], SOURCE_SEGMENT, TARGET_SEGMENT)
        layout = SequenceLayout.padded(tokens.shape[1], source_lengths + target_lengths)
        context = Context(layout, prefix_lengths=source_lengths)
        return select_positions(self.decoder(self.embed(tokens, types), context), positions)

    def forward_features(
        self,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Read source, target and, for every target token, a mask in the place of the next token, as one sequence.

        Returns the input of the output layer at the masks, B T D. Source (ids B S; S may be 0) and target (ids B T) are
        padded, with lengths in their layouts. The masks come last, but have the positions of the tokens that they stand
        for. `recorder`, if given, collects the attention of the tokens; that of the masks is left out. Layouts without
        lengths, such as those of packed rows, raise a ValueError.
        """
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError("packed sources and targets cannot be joined: join them before packing")
        source_lengths = source_layout.lengths
        tokens, target_positions = join(source, source_lengths, target)  # B S+T and B T
        width, masks = tokens.shape[1], torch.full_like(target, self.mask)
        columns = torch.arange(width, device=tokens.device).expand(len(tokens), -1)  # B S+T
        types = torch.where(columns < source_lengths[:, None], SOURCE_SEGMENT, TARGET_SEGMENT)
        types = torch.cat((types, torch.full_like(target, TARGET_SEGMENT)), 1)  # B S+2T, with the masks
        positions = torch.cat((columns, target_positions + 1), 1)  # B S+2T; a mask stands for the next token
        limit = position_limit(self.decoder)
        if limit is not None:
            positions = positions.clamp(max=limit - 1)  # beyond the limit there is only padding
        is_mask = (torch.arange(positions.shape[1], device=tokens.device) >= width).expand_as(positions)
        context = Context(
            layout=SequenceLayout(positions, max_length=width),
            prefix_lengths=source_lengths,
            placeholders=is_mask,
            recorder=recorder,
        )
        features = self.decoder(self.embed(torch.cat((tokens, masks), 1), types), context)
        for calls in (recorder or {}).values():  # of each layer the weights of its calls; the last one is this call
            calls[-1] = calls[-1][..., :width, :width]  # B H S+2T S+2T, without those of the masks
        return features.with_output(features.output[:, width:])

    def embed_source(self, source: Tensor) -> Tensor:
        """Embed the tokens of a source (ids B S) and their segment: B S D."""
        return self.embed(source, SOURCE_SEGMENT)

    def grow_state(self, state: State, rows: int, max_length: int) -> tuple[State, int]:
        """Return a larger copy of the state, with room for `max_length` tokens, and the number of tokens that it holds.

        This number is `max_length`, or less if the model supports fewer tokens; `rows` is the number of hypotheses in
        the state. The copy has one position more (`positions_after_target`): a token is predicted at a mask after the
        tokens before it.
        """
        max_length = self.supported_length(max_length)
        larger_state, _ = super().grow_state(state, rows, max_length + self.positions_after_target)
        return larger_state, max_length

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Compute the logits of the tokens that follow tokens (ids B T): B T V, and the new state.

        Each is predicted at a mask token, which is read after the tokens before it and is not kept in the state. With a
        state, the tokens continue its sequences, one after another; without one, they are whole sequences, read without
        a separate source. The context holds their positions and lengths.
        """
        if state is None:
            lengths = context.layout.lengths
            if lengths is None:
                lengths = torch.full_like(target[:, 0], target.shape[1])
            no_source = SequenceLayout.padded(0, torch.zeros_like(lengths))
            layout = replace(context.layout, lengths=lengths)
            # with an empty source, B 0
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
        """Read one target token per row at the given positions: ids R 1 → the input of the output layer, R 1 D.

        If it is a mask (`is_mask`), its attention is not recorded. Keys and values of the token are written into the
        caches of the state. In beam search, `context.ancestors` (B K S) says which of the K rows of a source wrote each
        of them, and gets one more column here, for the mask.
        """
        ancestors = context.ancestors
        if ancestors is not None:
            batch, beam, _ = ancestors.shape
            ancestors = pad(ancestors, (0, 1))
            own_row = torch.arange(beam, device=tokens.device)[None, :, None].expand(batch, -1, 1)
            ancestors = ancestors.scatter(2, positions.view(batch, beam, 1), own_row)  # each row writes this token
        max_length = context.layout.max_length
        # one more position, for a mask after the last token
        layout = SequenceLayout(positions, max_length=None if max_length is None else max_length + 1)
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
        """Share the weights of `model`, which generates targets, to predict masked tokens of a source instead."""
        super().__init__()
        self._model = [model]  # in a list, so that torch does not register its weights a second time

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of all tokens at each source position: ids B S, lengths B → B S V.

        `token_types` (B S) are segments, by default the first one. A target, as other models have, is not used.
        """
        (model,) = self._model  # a list of one
        types = torch.full_like(source, FIRST_SEGMENT) if token_types is None else token_types
        layout = SequenceLayout.padded(source.shape[1], source_lengths)
        return model.output(model.forward_segments(source, layout, types).output)
