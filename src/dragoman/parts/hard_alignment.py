"""Hard attention with exact marginalization: each target token is aligned with one source position, a latent variable.

p(y|x) = Σ_a Π_t p(a_t | a_{t−1}, y_<t, x) p(y_t | a_t, y_<t, x): a hidden Markov model whose states are the positions
of the source. The sum over all alignments a is computed by the forward algorithm (Wu, Shapiro & Cotterell 2018; Wu &
Cotterell 2019). Given the decoder's states h_t, which depend on y_<t only, nothing but its recursion is sequential.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.parts.attention_function import fold_beams
from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.flops import Workload, matrix_flops, module_flops
from dragoman.parts.mixer import Context, Memory, Mixer, State, beam_size, map_state
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec

IMPOSSIBLE = -1e30  # log-probability of what cannot happen: exp gives exactly 0, and differences are not NaN

#: numbers (of features or logits of all pairs of positions) that exist at a time; larger batches are computed in parts
MAX_PAIR_NUMBERS = {"cpu": 2**25, "cuda": 2**29}


# ---- transitions: p(a_t | a_{t−1}, y_<t, x)


def cumulative_logsumexp(x: Tensor) -> Tensor:
    """Return log Σ_{j ≤ i} exp(x_j) over the last dimension, … S → … S.

    While a model is exported, each sum is computed by itself: the operation that `logcumsumexp` becomes in an exported
    graph subtracts one maximum from all sums, which rounds small ones to log 0.
    """
    if not torch.compiler.is_exporting():
        return x.logcumsumexp(-1)
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.where(positions <= positions[:, None], x[..., None, :], IMPOSSIBLE).logsumexp(-1)


class Transition(nn.Module):
    """Distribution of the source position a_t that target token t comes from, and the forward algorithm over it.

    This base class is of order zero: p(a_t = i) = softmax_i h_t · T s_i, h_t being the decoder's states and s_i the
    encoder's, does not depend on the previous position (Wu et al. 2018, 0-HARD).
    """

    depends_on_previous = False  # whether a_t depends on a_{t−1}

    def __init__(self, dim: int) -> None:
        """Create the matrix T of p(a_t = i) = softmax_i h_t · T s_i, as `key`.

        h_t are the states of the decoder, s_i those of the encoder, `dim` wide.
        """
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Compute for all steps at once what `step` reads, a tuple of tensors B K·T …: here log p(a_t), B K·T S.

        x (B K·T D) are the decoder's states h of K hypotheses per source, `key` (B S D) is `self.key` of the encoder's
        states s, and `source_mask` (B S) is False at padding.
        """
        return (self._scores(x, key, source_mask).log_softmax(-1),)

    def _scores(self, x: Tensor, key: Tensor, source_mask: Tensor) -> Tensor:
        """Return h_t · T s_i of decoder states x (B T D) and keys T s_i (B S D): B T S.

        Padding of the source, where `source_mask` (B S) is False, gets a score whose probability is 0.
        """
        scores = at_least_float32(x @ key.transpose(1, 2))
        return scores.masked_fill(~source_mask[:, None], IMPOSSIBLE)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """Return log p(a_t | y_<t) of R rows, R S, given `previous`, log p(a_{t−1} | y_<t), R S.

        `tables` are those that the method `tables` returns, of step t only. Here the only one, log p(a_t), is returned,
        because a_t does not depend on a_{t−1}.
        """
        return tables[0]

    def forward(self, start: Tensor, tables: tuple[Tensor, ...], emissions: Tensor) -> Tensor:
        """Run the forward algorithm of the hidden Markov model: log p(a_t | y_<t, x) of R rows at all T steps, R T S.

        `start` (R S) is the log-probability of the position a_0 before the first step. `tables` (R T … each) are those
        that the method `tables` returns. `emissions` (R T−1 S) are log p(y_t | a_t) of all steps but the last.
        """
        if not self.depends_on_previous:
            return tables[0]  # log p(a_t) of all steps
        log_alignments = [self.step(start, *(table[:, 0] for table in tables))]
        for t in range(1, tables[0].shape[1]):
            previous = (log_alignments[-1] + emissions[:, t - 1]).log_softmax(-1)  # given y_{t−1} as well
            log_alignments.append(self.step(previous, *(table[:, t] for table in tables)))
        return torch.stack(log_alignments, 1)

    def flops(self, work: Workload) -> int:
        """FLOPs: T s_i of `work.source` source positions, and the scores h_t · T s_i of all pairs of positions.

        The states h_t and s_i are `work.width` numbers wide, each with a multiplication and an addition.
        """
        return matrix_flops(self, work.with_tokens(work.source)) + 2 * work.tokens * work.source * work.width


class MonotonicTransition(Transition):
    """p(a_t = i | a_{t−1} = j) ∝ exp(h_t · T s_i) for i ≥ j, and 0 otherwise (Wu & Cotterell 2019, 0-MONO)."""

    depends_on_previous = True

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Return for all steps the scores e_i = h_t · T s_i, and log Σ_{i ≥ j} exp e_i for all j, B T S each.

        The latter normalizes the transitions from j, since p(a_t = i | a_{t−1} = j) ∝ exp e_i for i ≥ j. x (B T D) are
        the decoder's states h, `key` (B S D) are T s_i, and `source_mask` (B S) is False at padding.
        """
        scores = self._scores(x, key, source_mask)
        return scores, cumulative_logsumexp(scores.flip(-1)).flip(-1)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """Return log p(a_t = i) = e_i + log Σ_{j ≤ i} p(a_{t−1} = j) / normalizer_j of R rows: R S, in linear time.

        `previous` is log p(a_{t−1}), `tables` are the scores e and the logarithms of the normalizers, R S each.
        """
        scores, log_normalizers = tables
        return scores + cumulative_logsumexp(previous - log_normalizers)


class JumpTransition(Transition):
    """First order: p(a_t = j + Δ | a_{t−1} = j) = softmax_Δ U [h_t; s_j] (Wu & Cotterell 2019, 1-MONO and 1-HARD).

    Jumps Δ go from −`max_jump`, or from 0 if monotonic, to `max_jump`, and never leave the source.
    """

    depends_on_previous = True

    def __init__(self, dim: int, max_jump: int, monotonic: bool) -> None:
        """Create U of p(jump Δ) = softmax_Δ U [h_t; s_j] as two linear layers: `query` for h_t and `key` for s_j.

        Output k of both is the score of the jump `max_jump` − k, by which the source position grows. `dim` is the width
        of decoder states h and encoder states s; the largest jump back, `max_return`, is 0 if `monotonic`.
        """
        nn.Module.__init__(self)  # not that of `Transition`, whose weight has another size
        self.max_jump, self.max_return = max_jump, 0 if monotonic else max_jump
        self.jumps = max_jump + self.max_return + 1
        self.query = nn.Linear(dim, self.jumps)
        self.key = nn.Linear(dim, self.jumps, bias=False)

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Return log p(a_t = i | a_{t−1} = i − Δ) for all W = `jumps` jumps Δ by which i can be reached: B T S W.

        Jump number k is Δ = `max_jump` − k. x (B T D) are the decoder's states, `key` (B S W) is the part of the scores
        that depends on the position before the jump, and `source_mask` (B S) is False at padding, which no jump
        reaches.
        """
        logits = at_least_float32(self.query(x)[:, :, None] + key[:, None])  # B T S W: by position before the jump
        # B S W: whether jump number k leads from a position to a token of the source; windows of the mask have the
        # order of growing jumps, from −max_return on, and are flipped to that of jump numbers
        is_reachable = F.pad(source_mask, (self.max_return, self.max_jump)).unfold(1, self.jumps, 1).flip(-1)
        log_p = logits.masked_fill(~is_reachable[:, None], IMPOSSIBLE).log_softmax(-1)
        # B T S+W−1 W: with columns before and after the source, from which no jump comes
        log_p = F.pad(log_p, (0, 0, self.max_jump, self.max_return), value=IMPOSSIBLE)
        length = source_mask.shape[1]
        after_jump = [log_p[:, :, k : k + length, k] for k in range(self.jumps)]  # B T S each: by position after jump k
        return (torch.stack(after_jump, -1),)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """Return log p(a_t = i) = log Σ_Δ p(a_{t−1} = i − Δ) p(Δ | i − Δ) of R rows, over W = `jumps` jumps Δ: R S.

        `previous` (R S) is log p(a_{t−1}); the only table, log p(Δ | i − Δ) of this step, is R S W.
        """
        # R S W: log p of the positions from which each one can be reached, from i − `max_jump` to i + `max_return`
        origins = F.pad(previous, (self.max_jump, self.max_return), value=IMPOSSIBLE).unfold(1, self.jumps, 1)
        return (origins + tables[0]).logsumexp(-1)

    def flops(self, work: Workload) -> int:
        """FLOPs of the scores U [h_t; s_j] of all jumps: for `work.tokens` decoder and `work.source` encoder states."""
        return module_flops(self.query, work) + module_flops(self.key, work.with_tokens(work.source))


# ---- emissions: p(y_t | a_t, y_<t, x)


class Emission(nn.Module):
    """p(y_t | a_t = i) = softmax W tanh(V [h_t; s_i]) (Wu et al. 2018, eq. 10)."""

    def __init__(self, vocab_size: int, dim: int, tied: TokenEmbedding | None, bias: bool) -> None:
        """Create V of softmax W tanh(V [h_t; s_i]) as `query` for decoder states h_t and `key` for encoder states s_i.

        All are `dim` wide. `output` is W, with `vocab_size` rows: the embedding table `tied`, if any; `bias` adds one.
        """
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.output = OutputLayer(vocab_size, dim, tied=tied, bias=bias)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the logits of all V tokens for all pairs of positions in R rows: W tanh(query + key), R T S V.

        `query` (R T D) and `key` (R S D) are the parts of V [h_t; s_i] that depend on target and source position, by
        decoder state h_t and encoder state s_i.
        """
        return at_least_float32(self.output(torch.tanh(query[:, :, None] + key[:, None])))

    def token_logits(self, query: Tensor, key: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits of one token per row at all source positions: W tanh(query + key), R S.

        `query` (R D) and `key` (R S D) are the parts of V [h_t; s_i] that depend on decoder state h_t and encoder state
        s_i; `tokens` (R) are the ids.
        """
        features = torch.tanh(query[:, None] + key)  # R S D
        logits = (features @ self.output.weight[tokens][:, :, None])[..., 0]
        if self.output.bias is not None:
            logits = logits + self.output.bias[tokens][:, None]
        return at_least_float32(logits)

    def flops(self, work: Workload) -> int:
        """FLOPs of W tanh(V [h_t; s_i]): V for each position of source and target, and W for each pair of positions."""
        projections = module_flops(self.query, work) + module_flops(self.key, work.with_tokens(work.source))
        return projections + module_flops(self.output, work.with_tokens(work.tokens * work.source))


def following_emissions(logits: Tensor, log_normalizer: Tensor, tokens: Tensor) -> Tensor:
    """Return log p(y_{t+1} | a = i) of the token after each of `tokens` (R T) but the last, for all i: R T−1 S.

    `logits` (R T S V) are those of the next tokens at each of S source positions, `log_normalizer` (R T S) their
    log Σ exp over the vocabulary.
    """
    following = tokens[:, 1:, None, None].expand(-1, -1, logits.shape[2], 1)  # R T−1 S 1
    return logits[:, :-1].gather(3, following)[..., 0] - log_normalizer[:, :-1]


# ---- the layer


class ForwardInputs(NamedTuple):
    """What the forward algorithm reads."""

    start: Tensor  # R S: log p of the position before the first step
    query: Tensor  # R T D: of the emissions
    key: Tensor  # R S D: of the emissions
    tables: tuple[Tensor, ...]  # R T …: of the transitions


@dataclass(frozen=True)
class HardAlignment(Spec):
    """Latent alignments of target tokens with source positions, summed out exactly.

    `order` 0: the position depends on the decoder's state; `order` 1: it is a jump of at most `max_jump` positions from
    the previous one. `monotonic`: it never moves backward. Before the first token, the position is the first one.
    """

    order: Literal[0, 1] = 0
    monotonic: bool = True
    max_jump: int = 5

    def build_transition(self, dim: int) -> Transition:
        """Create the transition p(a_t | a_{t−1}) for a model of width `dim`."""
        if self.order == 1:
            return JumpTransition(dim, max_jump=self.max_jump, monotonic=self.monotonic)
        return (MonotonicTransition if self.monotonic else Transition)(dim)

    def build_layer(self, vocab_size: int, dim: int, tied: TokenEmbedding | None, bias: bool) -> HardAlignmentLayer:
        """Create the layer for `vocab_size` tokens and states of width `dim`.

        Its output layer shares the embedding table `tied`, if any, and has a bias if `bias`.
        """
        return HardAlignmentLayer(self.build_transition(dim), Emission(vocab_size, dim, tied=tied, bias=bias))


class HardAlignmentLayer(Mixer):
    """Decoder states → log p(y_t | y_<t, x) = log Σ_i p(a_t = i | y_<t, x) p(y_t | a_t = i, y_<t, x).

    State: log p(a_t | y_<t) of the last token read (R S), and what gives the probability of the next token at each
    position when it is known: the emission's query (R D) and the normalizers of its logits (R S).
    """

    title = "hard alignment"
    supports_packing = False

    def __init__(self, transition: Transition, emission: Emission) -> None:
        """Combine the `transition` between source positions, p(a_t | a_{t−1}), and the `emission`, p(y_t | a_t)."""
        super().__init__()
        self.transition, self.emission = transition, emission

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create an empty state of `batch` rows; `like` (B S D) are the encoder's outputs, of S positions each.

        Zeros are enough, because the first token of a sequence does not read the state. After a token, it holds log p
        of the token's source position, and what the probabilities of the next token are computed from.
        """
        zeros = at_least_float32(like.new_zeros(batch, like.shape[1]))
        return {"query": like.new_zeros(batch, like.shape[2]), "log_normalizer": zeros, "log_alignment": zeros.clone()}

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Compute what depends on the source alone, from the encoder's outputs (B S D).

        These are the keys of the transition (B S D, or B S W with W possible jumps) and of the emission (B S D).
        """
        return {"transition": self.transition.key(memory.states), "emission": self.emission.key(memory.states)}

    def restrict_vocabulary(self, tokens: Tensor) -> HardAlignmentLayer:
        """Return a layer that generates only N `tokens` (ids), as ids 0 … N−1; it shares the other weights."""
        layer, emission = copy(self), copy(self.emission)
        layer._modules, emission._modules = dict(self._modules), dict(emission._modules)  # of the copies only
        emission.output = self.emission.output.restrict_vocabulary(tokens)
        layer.emission = emission
        return layer

    def log_probabilities(
        self, x: Tensor, tokens: Tensor, context: Context, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Decoder states x (R T D) after reading `tokens` (R T) → log p of the next tokens, R T V, and the new state.

        The context holds positions and lengths of the tokens and the B encoded sources, of K = R / B rows each. Without
        a state, rows are whole sequences; with one, they continue it.
        """
        inputs = self._inputs(x, tokens, context, state)
        length = inputs.start.shape[1]  # S
        # limit the rows computed at a time: the largest tensor of one row has T · S · max(D, V) elements, the output
        # layer's weight having V rows
        numbers_per_row = x.shape[1] * length * max(x.shape[2], len(self.emission.output.weight))
        rows = max(1, MAX_PAIR_NUMBERS.get(x.device.type, MAX_PAIR_NUMBERS["cpu"]) // numbers_per_row)
        function: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._forward_algorithm
        if torch.is_grad_enabled() and rows < len(x):  # the backward pass computes each part again: logits take memory
            function = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
        tensors = (tokens, inputs.start, inputs.query, inputs.key, *inputs.tables)
        if torch.compiler.is_exporting():  # the number of rows is not known
            parts = [function(*tensors)]
        else:
            parts = [function(*part) for part in zip(*(tensor.split(rows) for tensor in tensors))]
        log_p, log_alignment, log_normalizer = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*parts))
        folded = log_alignment.reshape(context.encoded_source.states.shape[0], 1, -1, length)  # B 1 K·T S
        context.record(self.path, folded.exp())
        if state is None:
            return log_p, None
        all_states = {"query": inputs.query, "log_normalizer": log_normalizer, "log_alignment": log_alignment}
        return log_p, self._last_state(all_states, context, state)

    def posterior(self, x: Tensor, tokens: Tensor, context: Context) -> Tensor:
        """Return p(a_t | y, x), the source position of each target token given the whole target, B T S.

        x (B T D) are the decoder's states after reading each of `tokens` (B T). Step t is about the token after
        `tokens[:, t]`. That after the last one is not known: its alignment is p(a_t | y_<t, x).
        p(a_t = i | y) is computed as the derivative of log p(y) by log p(y_t | a_t = i).
        """
        inputs = self._inputs(x, tokens, context, None)
        logits = self.emission(inputs.query, inputs.key)
        emissions = following_emissions(logits, logits.logsumexp(-1), tokens)  # B T−1 S
        with torch.enable_grad():
            emissions = emissions.detach().requires_grad_()
            log_alignment = self.transition(inputs.start, inputs.tables, emissions)  # B T S
            log_p = (log_alignment[:, :-1] + emissions).logsumexp(-1)  # B T−1: of the token after each
            mask = context.layout.token_mask
            # B T−1: whether the next token is a token, not padding
            is_known = torch.ones_like(log_p, dtype=torch.bool) if mask is None else mask[:, 1:]
            [posterior] = torch.autograd.grad(log_p.masked_fill(~is_known, 0.0).sum(), emissions)  # B T−1 S
        predicted = log_alignment.detach().exp()  # p(a_t | y_<t, x)
        return torch.cat((torch.where(is_known[..., None], posterior, predicted[:, :-1]), predicted[:, -1:]), 1)

    def _inputs(self, x: Tensor, tokens: Tensor, context: Context, state: State | None) -> ForwardInputs:
        """Return what the forward algorithm reads, for decoder states x (R T D) after reading `tokens` (R T).

        R = B·K rows are K hypotheses of each of B sources, which the context holds. The state, if any, is the one that
        the tokens continue.
        """
        memory = context.encoded_source
        keys, source_mask = self.memory_projections(memory), memory.layout.token_mask
        if source_mask is None:
            source_mask = torch.ones(memory.states.shape[:2], dtype=torch.bool, device=x.device)
        folded = fold_beams(x, memory)  # B K·T D
        tables = self.transition.tables(folded, keys["transition"], source_mask)
        key = keys["emission"].repeat_interleave(beam_size(x.shape[0], memory), 0)  # R S D
        return ForwardInputs(
            start=self._start(tokens, key, context, state),
            query=self.emission.query(x),
            key=key,
            tables=tuple(table.reshape(*x.shape[:2], *table.shape[2:]) for table in tables),
        )

    def _start(self, tokens: Tensor, key: Tensor, context: Context, state: State | None) -> Tensor:
        """Return the log-probability of the source position that the first of `tokens` (R T) comes from, R S.

        At the start of a sequence (position 0 in the context) it is the first source position. Otherwise the state
        holds log p(a_t | y_<t), to which log p(y_t | a_t) of the token is added; `key` (R S D) is that of the emission.
        """
        at_first = at_least_float32(key.new_full(key.shape[:2], IMPOSSIBLE))
        at_first[:, 0] = 0.0
        if state is None:
            return at_first
        log_emission = self.emission.token_logits(state["query"], key, tokens[:, 0]) - state["log_normalizer"]
        continued = (state["log_alignment"] + log_emission).log_softmax(-1)
        return torch.where(context.layout.positions[:, :1] == 0, at_first, continued)

    def _forward_algorithm(
        self, tokens: Tensor, start: Tensor, query: Tensor, key: Tensor, *tables: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(y_t | y_<t) (R T V), log p(a_t | y_<t) (R T S) and the normalizers of the emissions (R T S).

        `tokens` (R T) of R rows are y_{t−1}, `start` (R S) is log p of the source position before the first step.
        `query` (R T D) and `key` (R S D) are those of the emissions, and `tables` (R T …) those of the transitions.
        """
        logits = self.emission(query, key)  # R T S V
        log_normalizer = logits.logsumexp(-1)  # R T S
        emissions = following_emissions(logits, log_normalizer, tokens)
        log_alignment = self.transition(start, tables, emissions)
        # log Σ_i p(a_t = i) p(y_t | a_t = i) over the source positions i
        log_p = (logits + (log_alignment - log_normalizer)[..., None]).logsumexp(2)
        return log_p, log_alignment, log_normalizer

    def _last_state(self, all_states: State, context: Context, old_state: State) -> State:
        """Return the state after the last token of each of R rows, from the states after all T tokens (R T …).

        A row without tokens (which the context's layout says) keeps its old state.
        """
        token_mask = context.layout.token_mask
        if token_mask is None:
            return map_state(lambda tensor: tensor[:, -1].contiguous(), all_states)
        num_tokens = token_mask.sum(1)[:, None]  # R 1
        last = (num_tokens - 1).clamp(min=0)[..., None]  # R 1 1
        new_state = map_state(lambda tensor: tensor.gather(1, last.expand(-1, 1, tensor.shape[2]))[:, 0], all_states)
        return {name: torch.where(num_tokens > 0, new_state[name], old_state[name]) for name in new_state}

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: transitions and emissions."""
        return module_flops(self.transition, work) + module_flops(self.emission, work)
