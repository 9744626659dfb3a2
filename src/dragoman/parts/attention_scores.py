"""Attention scores of recurrent decoders: dot, scaled dot, general, additive, tanh product, concat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.spec import Spec


class Score(nn.Module):
    """Dot product q·k (Luong et al. 2015, “dot”)."""

    # for a walk through the model, in which the query is the decoder's state s, the key the encoder's output h
    formula = "s·h"
    key_formula = "h"  # of prepared keys

    def prepare(self, key: Tensor) -> Tensor:
        """Compute what depends on the keys alone, once per source: B S D → B S A, with A numbers per key.

        Here the keys are returned unchanged (A = D).
        """
        return key

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Dot products of queries, B … T D, with the prepared keys, B … S D → scores B … T S."""
        return query @ prepared.transpose(-1, -2)

    def terms(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the A terms whose sum is the score of one query (D) and each of S prepared keys (S A): S A.

        They explain the attention to a user. Of a dot product they are the products of the elements (A = D).
        """
        return query * prepared

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: a dot product of width D for each pair.

        D is `work.width`; each of the D products is a multiplication and an addition.
        """
        return 2 * work.tokens * work.source * work.width


@dataclass(frozen=True)
class Dot(Spec):
    """score(q, k) = q·k."""

    def build(self, dim: int) -> Score:
        """Create the dot product; it has no weights, so that the width `dim` is not needed."""
        return Score()


@dataclass(frozen=True)
class ScaledDot(Spec):
    """score(q, k) = q·k / √d (Vaswani et al. 2017, §3.2.1)."""

    def build(self, dim: int) -> ScaledDotScore:
        """Create the scaled dot product; it has no weights, so that the width `dim` is not needed."""
        return ScaledDotScore()


class ScaledDotScore(Score):
    formula = "s·h / √d"

    def terms(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the products of the elements of one query (D) and each of S keys (S D), divided by √D: S D.

        Their sum is the score of the key.
        """
        return super().terms(query, prepared) / math.sqrt(query.shape[-1])

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Dot products of queries, B … T D, and keys, B … S D, divided by √D: scores B … T S."""
        return super().forward(query, prepared) / math.sqrt(query.shape[-1])


@dataclass(frozen=True)
class General(Spec):
    """score(q, k) = q·W k (Luong et al. 2015, “general”)."""

    def build(self, dim: int) -> GeneralScore:
        """Create the score for queries and keys of width `dim`."""
        return GeneralScore(dim)


class GeneralScore(Score):
    formula, key_formula = "s·W h", "W h"

    def __init__(self, dim: int) -> None:
        """The score is q·W k; `key` is W, for queries and keys of width `dim`."""
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        """Multiply the keys by W, once per source: B S D → B S D."""
        return self.key(key)

    def flops(self, work: Workload) -> int:
        """FLOPs: W k for each of `work.source` source tokens, a dot product for each target–source pair of tokens."""
        per_source_token = work.with_tokens(work.source)
        return module_flops(self.key, per_source_token) + super().flops(work)


@dataclass(frozen=True)
class Additive(Spec):
    """score(q, k) = v·tanh(W q + U k) (Bahdanau et al. 2015, §A.1.2)."""

    inner_dim: int | None = None

    def build(self, dim: int) -> AdditiveScore:
        """Create the score for queries and keys of width `dim`, with `inner_dim` tanh units (`dim` by default)."""
        return AdditiveScore(dim, self.inner_dim or dim)


class AdditiveScore(Score):
    formula, key_formula = "v·tanh(W s + U h)", "U h"

    def __init__(self, dim: int, inner_dim: int) -> None:
        """The score is v·tanh(W q + U k): `query` is W, `key` U (`dim` to `inner_dim` each), `value` the vector v."""
        super().__init__()
        self.query = nn.Linear(dim, inner_dim, bias=False)
        self.key = nn.Linear(dim, inner_dim, bias=False)
        self.value = nn.Linear(inner_dim, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        """Multiply the keys by U, once per source: B S D → B S A, with A = `inner_dim`."""
        return self.key(key)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """v·tanh(W q + U k): queries B … T D, prepared keys U k, B … S A (A = `inner_dim`) → scores B … T S."""
        inner = torch.tanh(self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3))  # B … T S A
        return self.value(inner).squeeze(-1)

    def terms(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the A terms v_a tanh(W q + U k)_a of the score of one query q (D) and S keys; U k is S A: S A."""
        return self.value.weight[0] * torch.tanh(self.query(query) + prepared)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: W q, U k, and the product with v per pair."""
        per_source_token, per_pair = work.with_tokens(work.source), work.with_tokens(work.tokens * work.source)
        projections = module_flops(self.query, work) + module_flops(self.key, per_source_token)
        return projections + module_flops(self.value, per_pair)


@dataclass(frozen=True)
class TanhProduct(Spec):
    """score(q, k) = Σ_d v_d tanh((W q)_d) tanh((U k)_d), a matrix product over all keys (Shazeer et al. 2017, §G)."""

    inner_dim: int | None = None

    def build(self, dim: int) -> TanhProductScore:
        """Create the score for queries and keys of width `dim`, with `inner_dim` tanh units (`dim` by default)."""
        return TanhProductScore(dim, self.inner_dim or dim)


class TanhProductScore(AdditiveScore):
    """Has the weights of `AdditiveScore`: `query` is W, `key` U, `value` the vector v."""

    formula, key_formula = "v·(tanh(W s) ⊙ tanh(U h))", "tanh(U h)"

    def prepare(self, key: Tensor) -> Tensor:
        """Compute tanh(U k), once per source: B S D → B S A, with A = `inner_dim`."""
        return torch.tanh(self.key(key))

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Σ_d v_d tanh((W q)_d) tanh((U k)_d): queries B … T D, prepared keys tanh(U k), B … S A → scores B … T S.

        A = `inner_dim` is the number of rows of W and U.
        """
        weighted_query = torch.tanh(self.query(query)) * self.value.weight[0].to(query.dtype)  # v ⊙ tanh(W q)
        return weighted_query @ prepared.transpose(-1, -2)

    def terms(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the A terms v_a tanh(W q)_a tanh(U k)_a of one query q (D) and S keys; tanh(U k) is S A: S A."""
        return self.value.weight[0] * torch.tanh(self.query(query)) * prepared

    def flops(self, work: Workload) -> int:
        """FLOPs: W q for `work.tokens` target, U k for `work.source` source tokens, and a dot product for each pair.

        The dot products are as wide as the outputs of W.
        """
        projections = module_flops(self.query, work) + module_flops(self.key, work.with_tokens(work.source))
        return projections + 2 * work.tokens * work.source * self.query.out_features


@dataclass(frozen=True)
class Concat(Spec):
    """score(q, k) = v·tanh(W [q; k]) (Luong et al. 2015, “concat”)."""

    inner_dim: int | None = None

    def build(self, dim: int) -> ConcatScore:
        """Create the score for queries and keys of width `dim`, with `inner_dim` tanh units (`dim` by default)."""
        return ConcatScore(dim, self.inner_dim or dim)


class ConcatScore(Score):
    """The matrix over [q; k] is multiplied in two halves, so that the half of the keys is computed once."""

    formula, key_formula = "v·tanh(W [s; h])", "W_h h"  # the half of W for h

    def __init__(self, dim: int, inner_dim: int) -> None:
        """The score is v·tanh(W [q; k]): `both` is W, with `inner_dim` rows, `value` the vector v."""
        super().__init__()
        self.both = nn.Linear(2 * dim, inner_dim, bias=False)
        self.value = nn.Linear(inner_dim, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        """Multiply the keys by the second half of W (`both`), once per source: B S D → B S A, A = `inner_dim`."""
        return key @ self.both.weight[:, key.shape[-1] :].T  # the first D columns of W are for the query

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """v·tanh(W [q; k]): queries B … T D, keys multiplied by their half of W, B … S A → scores B … T S.

        A = `inner_dim` is the number of rows of W (`both`), whose first D columns are for q.
        """
        projected = query @ self.both.weight[:, : query.shape[-1]].T  # B … T A
        return self.value(torch.tanh(projected.unsqueeze(-2) + prepared.unsqueeze(-3))).squeeze(-1)

    def terms(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the A terms v_a tanh(W [q; k])_a of one query (D) and S keys, multiplied by their half of W, S A: S A.

        Their sum is the score of the key.
        """
        projected = query @ self.both.weight[:, : query.shape[-1]].T  # A
        return self.value.weight[0] * torch.tanh(projected + prepared)

    def flops(self, work: Workload) -> int:
        """FLOPs of v·tanh(W [q; k]), W being the weight of `both`, and v that of `value`.

        Half of W is multiplied by each of `work.tokens` queries, the other half by each of `work.source` keys, and v by
        the tanh of each pair.
        """
        queries_and_keys = (work.tokens + work.source) * self.both.weight.numel()  # 2 FLOPs for each element of a half
        pairs = work.with_tokens(work.tokens * work.source)
        return queries_and_keys + module_flops(self.value, pairs)
