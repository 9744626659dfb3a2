"""Copying from the source: the pointer–generator's attention and its output layer (See et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_function import fold_beams
from dragoman.parts.embedding import OutputLayer, TokenEmbedding, Transform
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, CopyDistribution, Memory, Mixer, MixerOutput, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec
from dragoman.text import Tokenizer


@dataclass(frozen=True)
class Copying(Spec):
    """Pointer–generator (See et al. 2017, §2.2): p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{i: x_i = y} a_i (eq. 9).

    P_vocab is the softmax of the output layer, a the attention of the decoder's output s_t to the source, and
    p_gen = σ(w_h·h*_t + w_s·s_t + w_x·x_t + b), with h*_t = Σ_i a_i h_i and the decoder's input x_t (eq. 8).

    The paper copies by the attention of its recurrent decoder. Here a is one attention head of its own, as in CopyNet
    (Gu et al. 2016): a_i = softmax_i(s_t·W h_i / √D). So it is the same for every decoder, with many heads or without
    attention, and the decoder keeps its fused kernels.

    `coverage_loss` is λ of the coverage loss Σ_i min(a_i^t, c_i^t), c^t = Σ_{t'<t} a^{t'} (eq. 10, 12 and 13), which
    penalizes copying the same place twice. The coverage does not enter the attention scores (eq. 11), because the
    attention of all target positions is computed at once.
    """

    coverage_loss: float = 0.0

    def build_output(
        self,
        vocab_sizes: tuple[int, int],
        dim: int,
        tied: TokenEmbedding | None,
        bias: bool,
        transform: Transform | None,
        scaled: bool,
    ) -> CopyingOutput:
        """Create the output layer for source and target vocabularies of these sizes, and inputs of width `dim` (D).

        `tied`: the target embedding, whose weight it shares; None: a weight of its own. `bias`: add one. `transform`:
        layer before the product. `scaled`: divide the input by √D.
        """
        return CopyingOutput(self, vocab_sizes, dim, tied=tied, bias=bias, transform=transform, scaled=scaled)


class CopyAttention(Mixer):
    """The attention a over the source tokens that can be copied, and the probability p_gen of not copying."""

    title = "copying"
    supports_packing = False  # the weights of all pairs of a packed row would not fit into memory

    def __init__(self, dim: int, coverage_loss: float) -> None:
        """Create the weights of a_i = softmax_i(s_t·W h_i / √D) and p_gen = σ(w_h·h*_t + w_s·s_t + w_x·x_t + b).

        s_t and x_t are output and input of the decoder, h_i outputs of the encoder, and h*_t = Σ_i a_i h_i. `key` is W,
        `gate` holds w_s, w_x and b, `source_gate` is w_h; `coverage_loss` is the weight of the
        loss that penalizes copying the same place twice; 0: none.
        """
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(2 * dim, 1)
        self.source_gate = nn.Linear(dim, 1, bias=False)
        self.coverage_loss = coverage_loss

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return what is the same for all target positions, from the states h_i of the source (See et al. 2017, §2.2).

        These are the keys W h_i / √D (B S D), the part w_h·h_i (B S) of the gate p_gen that depends on the source, the
        target token as which each position is copied (B S), and whether it can be copied at all. Since the context
        vector h* = Σ_i a_i h_i is a weighted sum, w_h·h* = Σ_i a_i (w_h·h_i).
        """
        tokens = memory.copied_tokens  # B S: −1 at positions that cannot be copied
        assert tokens is not None
        return {
            "key": self.key(memory.states) / memory.states.shape[-1] ** 0.5,
            "gate": self.source_gate(memory.states)[..., 0],
            "tokens": tokens.clamp(min=0),  # valid ids; those in place of −1 get probability 0
            "copyable": tokens >= 0,
        }

    def forward_copying(self, decoded: MixerOutput, context: Context) -> tuple[CopyDistribution, tuple[Tensor, ...]]:
        """Return p_gen, the probabilities (1 − p_gen) a_i of copying source token i, and the coverage loss.

        The first two are for each position of the decoder's output, R T D; a_i is the attention to source token i.
        The R = B·K rows are folded to B, the K hypotheses of a source side by side. A source without any token to copy
        has p_gen = 1. The loss is multiplied by its weight, `self.coverage_loss`; none is returned if that is 0, and in
        decoding steps.
        """
        memory, inputs = context.encoded_source, decoded.stack_inputs  # inputs x_t of the decoder, R T D
        assert inputs is not None
        projections = self.memory_projections(memory)
        copyable, rows_and_steps = projections["copyable"][:, None], decoded.output.shape[:2]  # B 1 S, (R, T)
        scores = at_least_float32(fold_beams(decoded.output, memory) @ projections["key"].transpose(-1, -2))
        scores = scores.masked_fill(~copyable, torch.finfo(scores.dtype).min)  # finite: no NaN if nothing is copyable
        attention = scores.softmax(-1).masked_fill(~copyable, 0.0)  # B K·T S
        context.record(self.path, attention[:, None])
        gate = at_least_float32(fold_beams(self.gate(torch.cat((decoded.output, inputs), -1)), memory))[..., 0]
        gate = gate + (attention * projections["gate"][:, None]).sum(-1)  # B K·T: the argument of σ in p_gen
        gate = gate.masked_fill(~copyable.any(-1), torch.inf)[..., None]  # p_gen = 1 if nothing can be copied
        copy_probs = torch.sigmoid(-gate) * attention  # (1 − p_gen) a_i
        tokens = projections["tokens"][:, None].expand(copy_probs.shape)
        distribution = CopyDistribution(
            generation_prob=torch.sigmoid(gate).view(*rows_and_steps, 1),
            copy_probs=copy_probs.view(*rows_and_steps, -1),
            tokens=tokens.reshape(*rows_and_steps, -1),
        )
        if not self.coverage_loss or context.layout.lengths is None:  # no lengths: a decoding step, without a loss
            return distribution, ()
        loss = coverage_loss(attention.view(*rows_and_steps, -1), context.layout)
        return distribution, (self.coverage_loss * loss,)

    def flops(self, work: Workload) -> int:
        """FLOPs: keys and gates of `work.source` tokens; gates, scores and coverage of `work.tokens` target tokens.

        For each pair of a target and a source token, the score is a dot product of width D (`work.width`). The coverage
        loss sums attention by a product with a matrix of target × target positions.
        """
        per_source_token = work.with_tokens(work.source)
        source = module_flops(self.key, per_source_token) + module_flops(self.source_gate, per_source_token)
        coverage = work.tokens if self.coverage_loss else 0  # products per pair
        pairs = 2 * work.tokens * work.source * (work.width + coverage)
        return source + module_flops(self.gate, work) + pairs


def coverage_loss(attention: Tensor, layout: SequenceLayout) -> Tensor:
    """Return the mean of Σ_i min(a_i^t, c_i^t) over target tokens, c^t = Σ_{t'<t} a^{t'} (See et al. 2017, eq. 12).

    So copying from places that earlier target tokens have attended to is penalized. a^t is the attention of target
    position t, B T S; the layout says which of these positions are padding.
    """
    # sums over earlier positions, by a matrix product: a cumulative sum on a GPU is not deterministic
    coverage = attention.new_ones(attention.shape[1], attention.shape[1]).tril(-1) @ attention  # B T S
    losses = torch.minimum(attention, coverage).sum(-1)  # B T
    mask = layout.token_mask
    return losses.mean() if mask is None else (losses * mask).sum() / mask.sum()


class CopyingOutput(OutputLayer):
    """Output layer of the pointer–generator: its logits are the log-probabilities of the mixture."""

    is_mixture = True

    def __init__(
        self,
        spec: Copying,
        vocab_sizes: tuple[int, int],
        dim: int,
        tied: TokenEmbedding | None,
        bias: bool,
        transform: Transform | None,
        scaled: bool,
    ) -> None:
        """Create the output layer of P_vocab and, as `pointer`, the attention to the source.

        `vocab_sizes` are those of source and target. P_vocab shares the weight of the target embedding `tied`, if any;
        `bias` adds one, `transform` is a layer before the product, and `scaled` divides its input by √dim. `copy_table`
        (V of the source) maps a source token to the target token that it is copied as, −1 for none. Until
        `match_vocabularies` is called, it is the token with the same id. A negative weight of the coverage loss raises
        a UserError.
        """
        source_vocab_size, target_vocab_size = vocab_sizes
        super().__init__(target_vocab_size, dim, tied=tied, bias=bias, transform=transform, scaled=scaled)
        if spec.coverage_loss < 0:
            raise UserError(
                "system.settings.coverage_loss is the weight of a loss and must be at least 0, but is "
                f"{spec.coverage_loss:g}: set it to 0 to leave out this loss, or to a positive number"
            )
        self.pointer = CopyAttention(dim, spec.coverage_loss)
        ids = torch.arange(source_vocab_size)
        self.copy_table: Tensor
        self.register_buffer("copy_table", torch.where(ids < target_vocab_size, ids, -1), persistent=False)

    def match_vocabularies(self, source: Tokenizer, target: Tokenizer) -> None:
        """Fill `copy_table`: every source token is copied as the target token with the same text, −1 if there is none.

        With one vocabulary, where equal tokens have equal ids, only corpus tags and feature symbols, which are put
        before a source (`source_prefix_ids`), are not copied.
        """
        if source is target:
            self.copy_table[source.source_prefix_ids] = -1
            return
        target_ids = {token: number for number, token in enumerate(target.tokens(range(target.vocab_size)))}
        matches = [target_ids.get(token, -1) for token in source.tokens(range(source.vocab_size))]
        self.copy_table[: len(matches)] = torch.tensor(matches, device=self.copy_table.device)

    def copied_tokens(self, source: Tensor, layout: SequenceLayout, width: int) -> Tensor:
        """Return as which target token each source token (B S) can be copied, −1 for none: B `width`.

        The layout says which positions are padding. `width` is the length of the encoder's output, S or more.
        """
        tokens = self.copy_table[source]  # B S: target token as which each source token is copied, or −1
        if layout.token_mask is not None:
            tokens = tokens.masked_fill(~layout.token_mask, -1)
        return nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=-1)

    def add_copy_probabilities(self, decoded: MixerOutput, context: Context) -> MixerOutput:
        """Add the probabilities of copying and the coverage loss to the decoder's result, whose output is R T D.

        The context holds the encoded source of the R rows.
        """
        copying, losses = self.pointer.forward_copying(decoded, context)
        return decoded._replace(copying=copying, auxiliary_losses=decoded.auxiliary_losses + losses)

    def logits(self, x: Tensor, copying: CopyDistribution | None = None) -> Tensor:
        """Return log(p_gen P_vocab(v) + (1 − p_gen) Σ_{i: x_i = v} a_i) of all tokens v: … D → … V, in float32.

        `copying` holds p_gen and the (1 − p_gen) a_i, with the target token as which each source token i is copied.
        Probabilities too small for the number format count as its smallest positive number. Without `copying`, return
        the logits of P_vocab.
        """
        if copying is None:
            return self(x)
        p = copying.generation_prob * at_least_float32(self(x)).softmax(-1)
        p = p.scatter_add(-1, copying.tokens, copying.copy_probs.to(p.dtype))
        return p.clamp(min=torch.finfo(p.dtype).tiny).log()

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """Return a layer for a vocabulary of N `tokens` (ids in this one), in which token i is `tokens[i]`.

        Tokens that are not among them cannot be copied. `copy_table` gives for each source token the id of the target
        token as which it is copied, −1 for none.
        """
        layer = super().restrict_vocabulary(tokens)
        assert isinstance(layer, CopyingOutput)
        # V+1: new id of each token, −1 if it has none; the last entry is found under −1, the id of no token
        new_ids = torch.full((self.weight.shape[0] + 1,), -1, device=tokens.device)
        new_ids[tokens] = torch.arange(len(tokens), device=tokens.device)
        layer._buffers = {**self._buffers, "copy_table": new_ids[self.copy_table]}  # of the copy only
        return layer
