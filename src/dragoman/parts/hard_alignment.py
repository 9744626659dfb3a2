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

    The operation of exported graphs subtracts one maximum from all sums, which rounds small ones to log 0: there each
    sum is computed by itself.
    """
    if not torch.compiler.is_exporting():
        return x.logcumsumexp(-1)
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.where(positions <= positions[:, None], x[..., None, :], IMPOSSIBLE).logsumexp(-1)


class Transition(nn.Module):
    """Zeroth order: p(a_t = i) = softmax_i h_t · T s_i, s_i being the encoder's states (Wu et al. 2018, 0-HARD)."""

    depends_on_previous = False  # whether a_t depends on a_{t−1}

    def __init__(self, dim: int) -> None:
        """`key` is the matrix T, of width `dim`."""
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Return what the recursion needs of all steps, B K·T … each: here log p(a_t), B K·T S.

        x (B K·T D) are the decoder's states of K rows per source, `key` (B S D) is `self.key` of the encoder's states,
        and `source_mask` (B S) is False at padding.
        """
        return (self._scores(x, key, source_mask).log_softmax(-1),)

    def _scores(self, x: Tensor, key: Tensor, source_mask: Tensor) -> Tensor:
        """h_t · T s_i for x (B T D) and `key` (B S D): B T S, of padding (False in `source_mask`) impossible."""
        scores = at_least_float32(x @ key.transpose(1, 2))
        return scores.masked_fill(~source_mask[:, None], IMPOSSIBLE)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """Return log p(a_t | y_<t) of R rows, R S, from log p(a_{t−1} | y_<t), R S, and the tables of step t, R ….

        Here it is the table itself, because a_t does not depend on a_{t−1}.
        """
        return tables[0]

    def forward(self, start: Tensor, tables: tuple[Tensor, ...], emissions: Tensor) -> Tensor:
        """Forward algorithm: return log p(a_t | y_<t, x) of R rows at all T steps, R T S.

        `start` (R S) is log p(a_0 | y_0) of the position before the first step; `tables` (R T … each) are those of
        all steps; `emissions` (R T−1 S) are log p(y_t | a_t) of all steps but the last.
        """
        if not self.depends_on_previous:
            return tables[0]  # log p(a_t) of all steps
        predicted = [self.step(start, *(table[:, 0] for table in tables))]
        for t in range(1, tables[0].shape[1]):
            previous = (predicted[-1] + emissions[:, t - 1]).log_softmax(-1)
            predicted.append(self.step(previous, *(table[:, t] for table in tables)))
        return torch.stack(predicted, 1)

    def flops(self, work: Workload) -> int:
        """FLOPs of T s_i of `work.source` positions and of the scores of all pairs of positions."""
        return matrix_flops(self, work.with_tokens(work.source)) + 2 * work.tokens * work.source * work.width


class MonotonicTransition(Transition):
    """p(a_t = i | a_{t−1} = j) ∝ exp(h_t · T s_i) for i ≥ j, and 0 otherwise (Wu & Cotterell 2019, 0-MONO)."""

    depends_on_previous = True

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the scores e_i and log Σ_{i ≥ j} exp e_i, the normalizer of the transitions from j, B T S each."""
        scores = self._scores(x, key, source_mask)
        return scores, cumulative_logsumexp(scores.flip(-1)).flip(-1)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """log p(a_t = i) = e_i + log Σ_{j ≤ i} p(a_{t−1} = j) / normalizer_j of R rows: R S, in time linear in S.

        `previous` is log p(a_{t−1}), `tables` are the scores e and the logarithms of the normalizers, R S each.
        """
        scores, normalizer = tables
        return scores + cumulative_logsumexp(previous - normalizer)


class JumpTransition(Transition):
    """First order: p(a_t = j + Δ | a_{t−1} = j) = softmax_Δ U [h_t; s_j] (Wu & Cotterell 2019, 1-MONO and 1-HARD).

    Jumps Δ go from −`max_jump`, or from 0 if monotonic, to `max_jump`, and never leave the source.
    """

    depends_on_previous = True

    def __init__(self, dim: int, max_jump: int, monotonic: bool) -> None:
        """`query` and `key` are the parts of U for h_t and s_j; column k of both is the jump `max_jump` − k."""
        nn.Module.__init__(self)
        self.max_jump, self.max_return = max_jump, 0 if monotonic else max_jump
        self.jumps = max_jump + self.max_return + 1
        self.query = nn.Linear(dim, self.jumps)
        self.key = nn.Linear(dim, self.jumps, bias=False)

    def tables(self, x: Tensor, key: Tensor, source_mask: Tensor) -> tuple[Tensor, ...]:
        """Return log p(a_t = i | a_{t−1} = i − Δ) for all W = `jumps` jumps Δ by which i can be reached: B T S W."""
        logits = at_least_float32(self.query(x)[:, :, None] + key[:, None])  # B T S W: of the position before the jump
        reachable = F.pad(source_mask, (self.max_return, self.max_jump)).unfold(1, self.jumps, 1).flip(-1)  # B S W
        log_p = logits.masked_fill(~reachable[:, None], IMPOSSIBLE).log_softmax(-1)
        log_p = F.pad(log_p, (0, 0, self.max_jump, self.max_return), value=IMPOSSIBLE)  # B T S+W−1 W
        length = source_mask.shape[1]
        return (torch.stack([log_p[:, :, k : k + length, k] for k in range(self.jumps)], -1),)

    def step(self, previous: Tensor, *tables: Tensor) -> Tensor:
        """log p(a_t = i) = log Σ_Δ p(a_{t−1} = i − Δ) p(Δ | i − Δ) of R rows, over W = `jumps` jumps Δ: R S."""
        origins = F.pad(previous, (self.max_jump, self.max_return), value=IMPOSSIBLE).unfold(1, self.jumps, 1)  # R S W
        return (origins + tables[0]).logsumexp(-1)

    def flops(self, work: Workload) -> int:
        """FLOPs of U's products with `work.tokens` states of the decoder and `work.source` of the encoder."""
        return module_flops(self.query, work) + module_flops(self.key, work.with_tokens(work.source))


# ---- emissions: p(y_t | a_t, y_<t, x)


class Emission(nn.Module):
    """p(y_t | a_t = i) = softmax W tanh(V [h_t; s_i]) (Wu et al. 2018, eq. 10)."""

    def __init__(self, vocab_size: int, dim: int, tied: TokenEmbedding | None, bias: bool) -> None:
        """`query` and `key` are the parts of V for h_t and s_i; `output` is W, with the table `tied` or its own."""
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.output = OutputLayer(vocab_size, dim, tied, bias)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the logits of all tokens at all pairs of positions of R rows: query R T D, key R S D → R T S V."""
        return at_least_float32(self.output(torch.tanh(query[:, :, None] + key[:, None])))

    def token_logits(self, query: Tensor, key: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits of one token per row at all source positions.

        Shape: query R D, key R S D, tokens R, for R rows → R S.
        """
        features = torch.tanh(query[:, None] + key)  # R S D
        logits = (features @ self.output.weight[tokens][:, :, None])[..., 0]
        if self.output.bias is not None:
            logits = logits + self.output.bias[tokens][:, None]
        return at_least_float32(logits)

    def flops(self, work: Workload) -> int:
        """FLOPs of V for each position of source and target, and of W for each pair of positions."""
        projections = module_flops(self.query, work) + module_flops(self.key, work.with_tokens(work.source))
        return projections + module_flops(self.output, work.with_tokens(work.tokens * work.source))


def following_emissions(logits: Tensor, log_normalizer: Tensor, tokens: Tensor) -> Tensor:
    """Return log p of the token after each of `tokens` (R rows, R T) but the last, at all source positions: R T−1 S.

    `logits` (R T S V) are those of the next tokens, `log_normalizer` (R T S) their log Σ exp.
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
            return JumpTransition(dim, self.max_jump, self.monotonic)
        return (MonotonicTransition if self.monotonic else Transition)(dim)

    def build_layer(self, vocab_size: int, dim: int, tied: TokenEmbedding | None, bias: bool) -> HardAlignmentLayer:
        """Create the layer for `vocab_size` tokens; its output layer shares the embedding table `tied`, if any."""
        return HardAlignmentLayer(self.build_transition(dim), Emission(vocab_size, dim, tied, bias))


class HardAlignmentLayer(Mixer):
    """Decoder states → log p(y_t | y_<t, x) = log Σ_i p(a_t = i | y_<t, x) p(y_t | a_t = i, y_<t, x).

    State: log p(a_t | y_<t) of the last token read (R S), and what gives the probability of the next token at each
    position when it is known: the emission's query (R D) and the normalizers of its logits (R S).
    """

    title = "hard alignment"
    supports_packing = False

    def __init__(self, transition: Transition, emission: Emission) -> None:
        """The layer is made of `transition`, p(a_t | a_{t−1}), and `emission`, p(y_t | a_t)."""
        super().__init__()
        self.transition, self.emission = transition, emission

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state of `batch` rows, whose sources have the padded length of `like`, B S D."""
        positions = at_least_float32(like.new_zeros(batch, like.shape[1]))
        return {
            "query": like.new_zeros(batch, like.shape[2]),
            "log_normalizer": positions,
            "log_alignment": positions.clone(),
        }

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return the keys of transition (B S D, or B S × number of jumps) and emission (B S D)."""
        return {"transition": self.transition.key(memory.states), "emission": self.emission.key(memory.states)}

    def restrict_vocabulary(self, tokens: Tensor) -> HardAlignmentLayer:
        """Return a layer for the vocabulary `tokens` (N) only, which shares the other weights."""
        layer, emission = copy(self), copy(self.emission)
        layer._modules, emission._modules = dict(self._modules), dict(emission._modules)  # of the copies only
        emission.output = self.emission.output.restrict_vocabulary(tokens)
        layer.emission = emission
        return layer

    def log_probabilities(
        self, x: Tensor, tokens: Tensor, context: Context, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Decoder states x (R T D) after reading `tokens` (R T) → log p of the next tokens, R T V, and the new state.

        The context holds the layout of the tokens and the encoded sources, of K = R / B rows each.
        """
        inputs = self._inputs(x, tokens, context, state)
        length = inputs.start.shape[1]
        # limit the rows computed at a time: the largest tensor of one row has T · S · max(D, V) elements
        numbers = x.shape[1] * length * max(x.shape[2], len(self.emission.output.weight))
        rows = max(1, MAX_PAIR_NUMBERS.get(x.device.type, MAX_PAIR_NUMBERS["cpu"]) // numbers)
        function: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._forward_algorithm
        if torch.is_grad_enabled() and rows < len(x):  # the backward pass computes the logits of each part again
            function = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
        tensors = (tokens, inputs.start, inputs.query, inputs.key, *inputs.tables)
        if torch.compiler.is_exporting():
            parts = [function(*tensors)]
        else:
            parts = [function(*part) for part in zip(*(tensor.split(rows) for tensor in tensors))]
        log_p, log_alignment, log_normalizer = (torch.cat(part) if len(part) > 1 else part[0] for part in zip(*parts))
        folded = log_alignment.reshape(context.encoded_source.states.shape[0], 1, -1, length)  # B 1 K·T S
        context.record(self.path, folded.exp())
        if state is None:
            return log_p, None
        new = {"query": inputs.query, "log_normalizer": log_normalizer, "log_alignment": log_alignment}
        return log_p, self._last_state(new, context, state)

    def posterior(self, x: Tensor, tokens: Tensor, context: Context) -> Tensor:
        """Return p(a_t | y, x) of whole sequences, given all `tokens` (B T): B T S, from decoder states x (B T D).

        Row t belongs to the token after `tokens[:, t]`; the last one of a sequence, which is not known, to the state
        before it: p(a_t | y_<t, x). p(a_t = i | y) is the derivative of log p(y) by log p(y_t | a_t = i).
        """
        inputs = self._inputs(x, tokens, context, None)
        logits = self.emission(inputs.query, inputs.key)
        emissions = following_emissions(logits, logits.logsumexp(-1), tokens)  # B T−1 S
        with torch.enable_grad():
            emissions = emissions.detach().requires_grad_()
            log_alignment = self.transition(inputs.start, inputs.tables, emissions)
            log_p = (log_alignment[:, :-1] + emissions).logsumexp(-1)  # B T−1
            mask = context.layout.token_mask
            known = torch.ones_like(log_p, dtype=torch.bool) if mask is None else mask[:, 1:]
            [posterior] = torch.autograd.grad(log_p.masked_fill(~known, 0.0).sum(), emissions)
        predicted = log_alignment.detach().exp()
        return torch.cat((torch.where(known[..., None], posterior, predicted[:, :-1]), predicted[:, -1:]), 1)

    def _inputs(self, x: Tensor, tokens: Tensor, context: Context, state: State | None) -> ForwardInputs:
        """Return what the forward algorithm reads, for decoder states x (R T D, R = B·K rows) after `tokens` (R T)."""
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
        """Return log p(a | y) of the position before the first of `tokens` (R T), now that this token is known: R S.

        R is the number of rows; `key` (R S D) are the keys of the emissions.
        At the start of a sequence it is the first position; otherwise it follows from the state.
        """
        first = at_least_float32(key.new_full(key.shape[:2], IMPOSSIBLE))
        first[:, 0] = 0.0
        if state is None:
            return first
        emitted = self.emission.token_logits(state["query"], key, tokens[:, 0]) - state["log_normalizer"]
        continued = (state["log_alignment"] + emitted).log_softmax(-1)
        return torch.where(context.layout.positions[:, :1] == 0, first, continued)

    def _forward_algorithm(
        self, tokens: Tensor, start: Tensor, query: Tensor, key: Tensor, *tables: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(y_t | y_<t) (R T V), log p(a_t | y_<t) (R T S) and the normalizers of the emissions (R T S).

        `tokens` (R T) of R rows are y_{t−1}, `start` (R S) is log p of the position before, query (R T D) and key
        (R S D) are those of the emissions, and `tables` those of the transitions.
        """
        logits = self.emission(query, key)  # R T S V
        log_normalizer = logits.logsumexp(-1)  # R T S
        emissions = following_emissions(logits, log_normalizer, tokens)
        log_alignment = self.transition(start, tables, emissions)
        log_p = (logits + (log_alignment - log_normalizer)[..., None]).logsumexp(2)
        return log_p, log_alignment, log_normalizer

    def _last_state(self, new: State, context: Context, state: State) -> State:
        """Return the state after the last token of R rows: `new` (R T …) there, or the old one if it has none."""
        token_mask = context.layout.token_mask
        if token_mask is None:
            return map_state(lambda leaf: leaf[:, -1].contiguous(), new)
        count = token_mask.sum(1)[:, None]  # R 1
        last = (count - 1).clamp(min=0)[..., None]  # R 1 1
        after = map_state(lambda leaf: leaf.gather(1, last.expand(-1, 1, leaf.shape[2]))[:, 0], new)
        return {name: torch.where(count > 0, after[name], state[name]) for name in after}

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: transitions and emissions."""
        return module_flops(self.transition, work) + module_flops(self.emission, work)
