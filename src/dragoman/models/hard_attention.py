"""The encoder–decoder with hard attention: alignments with the source are latent and summed out exactly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel
from dragoman.models.model import DecodingStart
from dragoman.parts.embedding import LogProbabilityOutput
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.hard_alignment import HardAlignment
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State


@dataclass(frozen=True)
class HardAttention(EncoderDecoder):
    """Encoder and decoder, and a distribution over the source position that each target token comes from.

    The decoder sees the target alone; the source enters through the alignment (Wu & Cotterell 2019).
    """

    alignment: HardAlignment = field(default_factory=HardAlignment)

    def build(self, dim: int = 0) -> HardAttentionModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return HardAttentionModel(self)


class HardAttentionModel(EncoderDecoderModel):
    """Inputs of the output layer are log-probabilities, B T V, already: a mixture over the source positions."""

    spec: HardAttention

    def build_output(self) -> LogProbabilityOutput:
        """Create the layer `alignment`, which computes log-probabilities of tokens from the decoder's states.

        So the output layer, which this method returns, only has to pass them on: it returns its input. The tokens'
        embedding table is that of the target if the spec ties them.
        """
        spec = self.spec
        tied = self.target_embedding if spec.tied_embeddings else None
        self.alignment = spec.alignment.build_layer(
            vocab_size=spec.target_vocab_size, dim=spec.dim, tied=tied, bias=spec.output_bias
        )
        return LogProbabilityOutput()

    @property
    def memory_layers(self) -> list[Mixer]:
        """Layers that read the encoder's output: those of the decoder, if any, and the alignment."""
        return [*super().memory_layers, self.alignment]

    def _decode_features(self, target: Tensor, context: Context) -> MixerOutput:
        """Return the input of the output layer, here log p of the next tokens, B T V, and auxiliary losses.

        The context holds positions and lengths of the targets (ids B T), and the encoded source.
        """
        decoded = super()._decode_features(target, context)
        log_p, _ = self.alignment.log_probabilities(decoded.output, target, context)
        return decoded.with_output(log_p)

    def layer_features(
        self,
        states: Tensor,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
    ) -> Tensor:
        """Return the input of the output layer if `states` (B T D) were the output of the decoder's last layer.

        So the states of lower layers can be read as predictions (a logit lens). In this model, that input is log p of
        the next tokens already, B T V. Source (B S) and target (B T) are token ids, with positions and lengths in their
        layouts.
        """
        context = Context(target_layout, self.encode(source, source_layout))
        log_p, _ = self.alignment.log_probabilities(states, target, context)
        return log_p

    @torch.inference_mode(False)  # posteriors are derivatives, which inference mode excludes
    @torch.no_grad()  # the alignment enables gradients for the part that needs them
    def posterior_alignment(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Return p(a_t | y, x), the distribution over the source positions that each target token comes from: B T S.

        Step t is about the token after `target[:, t]`. Sources (B S) and targets (B T) are padded ids; their numbers of
        tokens are `source_lengths` and `target_lengths` (B).
        """
        pairs = (source, source_lengths, target, target_lengths)
        source, source_lengths, target, target_lengths = (tensor.clone() for tensor in pairs)  # no inference tensors
        memory = self.encode(source, SequenceLayout.padded(source.shape[1], source_lengths))
        context = Context(SequenceLayout.padded(target.shape[1], target_lengths), memory)
        states = self.decoder(self.target_embedding(target), context).output
        return self.alignment.posterior(states, target, context)

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Compute log p of the tokens that follow target tokens: ids B T → B T V, and the new state.

        The state is that of decoder and alignment; with one, the tokens continue its sequences. The context holds the
        tokens' positions and lengths, and the encoded source.
        """
        decoder_state, alignment_state = (None, None) if state is None else (state["decoder"], state["alignment"])
        decoded = self.decoder(self.target_embedding(target), context, decoder_state)
        log_p, alignment_state = self.alignment.log_probabilities(decoded.output, target, context, alignment_state)
        new_state = None if state is None else {"decoder": decoded.state, "alignment": alignment_state}
        return self.output(log_p), new_state  # the output layer returns its input

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Encode the sources (ids B S, lengths B), and create empty states of decoder and alignment.

        They have `beam` rows per source and room for `max_length` target tokens; `first` is the first input token of
        all rows, or of each source (B).
        """
        start = super().start_decoding(source, lengths, beam, max_length, first)
        assert start.memory is not None
        alignment_state = self.alignment.init_state(start.tokens.shape[0], start.max_length, start.memory.states)
        return replace(start, state={"decoder": start.state, "alignment": alignment_state})

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the state whose row r (a hypothesis of the beam) continues row `rows[r]` of the given one."""
        decoder_state = super().reorder_state(state["decoder"], rows)
        return {"decoder": decoder_state, "alignment": self.alignment.reorder_state(state["alignment"], rows)}

    def grow_state(self, state: State, rows: int, max_length: int) -> tuple[State, int]:
        """Return a copy of the state with room for `max_length` target positions, and the number of positions it holds.

        The number is smaller if the decoder supports fewer positions; `rows` is the number of hypotheses in the state.
        The alignment's part stays as it is: its size depends on the source only.
        """
        decoder_state, max_length = super().grow_state(state["decoder"], rows, max_length)
        return state | {"decoder": decoder_state}, max_length

    def copy_recurrent_state(self, state: State) -> State:
        """Return the state with copies of the tensors that reading further tokens overwrites, such as recurrent states.

        Those of the alignment are never overwritten.
        """
        return state | {"decoder": super().copy_recurrent_state(state["decoder"])}

    def restrict_vocabulary(self, tokens: Tensor) -> EncoderDecoderModel:
        """Return a model that generates only `tokens` (N), under new ids 0 … N−1; it shares the other modules."""
        model = super().restrict_vocabulary(tokens)
        # the copy has its own dict of modules, so that this model keeps its alignment
        model._modules["alignment"] = self.alignment.restrict_vocabulary(tokens)
        return model

    def flops(self, work: Workload) -> int:
        """FLOPs of encoder, decoder and alignment for `work.source` source and `work.tokens` target tokens."""
        return super().flops(work) + module_flops(self.alignment, work)
