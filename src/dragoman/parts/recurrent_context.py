"""What a recurrent decoder knows of the source, and what it shows: summaries, first states, contexts, read-outs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention import Look, attend, fold_beams
from dragoman.parts.mixer import Ctx, Memory, State, beams
from dragoman.parts.score import Additive, Score
from dragoman.parts.spec import Spec, built

# ---- how a decoder sums the source up, and how it starts


class Summary(nn.Module):
    """One vector for a source, B W; the last state of the encoder's top layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        return last_state(memory)["hidden"][:, -1]


class BackwardSummary(Summary):
    def forward(self, memory: Memory) -> Tensor:
        return super().forward(memory)[:, self.width :]


class MeanSummary(Summary):
    def forward(self, memory: Memory) -> Tensor:
        real = memory.layout.real
        if real is None:
            return memory.states.mean(1)
        return (memory.states * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def last_state(memory: Memory) -> State:
    if memory.final is None:
        raise UserError("this decoder starts from an encoder's last state: give it a recurrent encoder")
    return memory.final


@dataclass(frozen=True)
class LastState(Spec):
    """The encoder's last state h_T (Cho et al. 2014)."""

    def build(self, dim: int) -> Summary:
        return Summary(dim)


@dataclass(frozen=True)
class BackwardState(Spec):
    """The last state of the encoder's backward direction, ←h_1 (Bahdanau et al. 2015, §A.2.2)."""

    def build(self, dim: int) -> Summary:
        return BackwardSummary(dim // 2)


@dataclass(frozen=True)
class MeanState(Spec):
    """The mean of the encoder's states."""

    def build(self, dim: int) -> Summary:
        return MeanSummary(dim)


class Start(nn.Module):
    """The decoder's first state: zero."""

    def forward(self, memory: Memory, kept: dict[str, Tensor], zero: State) -> State:
        """`kept` is what the context remembers of the source."""
        return zero


class CopyStart(Start):
    def forward(self, memory: Memory, kept: dict[str, Tensor], zero: State) -> State:
        last = last_state(memory)
        if {name: value.shape for name, value in last.items()} != {name: value.shape for name, value in zero.items()}:
            raise UserError("a decoder that starts from the encoder's last state needs its cell, layers and width")
        return last


class SummaryStart(Start):
    def __init__(self, summary: Summary, layers: int, dim: int) -> None:
        super().__init__()
        self.summary = summary
        self.hidden = nn.Linear(summary.width, layers * dim)

    def forward(self, memory: Memory, kept: dict[str, Tensor], zero: State) -> State:
        hidden = torch.tanh(self.hidden(self.summary(memory)))
        return zero | {"hidden": hidden.unflatten(-1, zero["hidden"].shape[1:])}


class ContextStart(Start):
    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, layers * dim)

    def forward(self, memory: Memory, kept: dict[str, Tensor], zero: State) -> State:
        if "context" not in kept:
            raise UserError("this decoder starts from its context: give it one that is the same at every step")
        hidden = torch.tanh(self.hidden(kept["context"]))
        return zero | {"hidden": hidden.unflatten(-1, zero["hidden"].shape[1:])}


@dataclass(frozen=True)
class FromZero(Spec):
    """s_0 = 0."""

    def start(self, layers: int, dim: int) -> Start:
        return Start()


@dataclass(frozen=True)
class FromLast(Spec):
    """s_0 = the encoder's last state, layer by layer (Sutskever et al. 2014; Luong et al. 2015)."""

    def start(self, layers: int, dim: int) -> Start:
        return CopyStart()


@dataclass(frozen=True)
class FromSummary(Spec):
    """s_0 = tanh(W summary)."""

    summary: Spec = field(default_factory=BackwardState)

    def start(self, layers: int, dim: int) -> Start:
        return SummaryStart(built(self.summary, dim, Summary), layers, dim)


@dataclass(frozen=True)
class FromContext(Spec):
    """s_0 = tanh(W c), c the context that is the same at every step (Cho et al. 2014, §A.1.2)."""

    def start(self, layers: int, dim: int) -> Start:
        return ContextStart(layers, dim)


# ---- what a decoder knows of the source at each step


class Context(nn.Module):
    """Nothing."""

    looks = False  # does it depend on who asks?

    def remember(self, memory: Memory) -> dict[str, Tensor]:
        return {}

    def forward(self, query: Tensor, ctx: Ctx, kept: dict[str, Tensor], path: str) -> Tensor:
        """query R T D → context R T D."""
        return query.new_zeros(query.shape)


class FixedContext(Context):
    def __init__(self, summary: Summary, dim: int) -> None:
        super().__init__()
        self.summary = summary
        self.project = nn.Linear(summary.width, dim)

    def remember(self, memory: Memory) -> dict[str, Tensor]:
        return {"context": torch.tanh(self.project(self.summary(memory)))}  # B D

    def forward(self, query: Tensor, ctx: Ctx, kept: dict[str, Tensor], path: str) -> Tensor:
        assert ctx.memory is not None
        rows = kept["context"].repeat_interleave(beams(query.shape[0], ctx.memory), 0)
        return rows[:, None].expand(query.shape)


class AttentionContext(Context):
    looks = True

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def remember(self, memory: Memory) -> dict[str, Tensor]:
        return {"key": self.score.prepare(memory.states)}

    def forward(self, query: Tensor, ctx: Ctx, kept: dict[str, Tensor], path: str) -> Tensor:
        assert ctx.memory is not None
        folded = fold_beams(query, ctx.memory)[:, None]  # B 1 K·T D
        look = Look(score=self.score, path=path)
        key, value = kept["key"][:, None], ctx.memory.states[:, None]  # B 1 S D
        return attend(folded, key, value, ctx.layout, ctx.memory.layout, ctx, look).reshape(query.shape)


@dataclass(frozen=True)
class NoContext(Spec):
    """The first state is all that the decoder learns of the source (Sutskever et al. 2014)."""

    def build(self, dim: int) -> Context:
        return Context()


@dataclass(frozen=True)
class Fixed(Spec):
    """The same c = tanh(V summary) at every step (Cho et al. 2014, §2.2)."""

    summary: Spec = field(default_factory=LastState)

    def build(self, dim: int) -> Context:
        return FixedContext(built(self.summary, dim, Summary), dim)


@dataclass(frozen=True)
class Attention(Spec):
    """c_i = Σ_j α_ij h_j, α_i = softmax_j score(s, h_j) (Bahdanau et al. 2015, §3.1)."""

    score: Spec = field(default_factory=Additive)

    def build(self, dim: int) -> Context:
        return AttentionContext(built(self.score, dim, Score))


# ---- what a decoder shows to the output layer


class Readout(nn.Module):
    """The state itself."""

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """… D each → … D."""
        return hidden


class AttentionalReadout(Readout):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return torch.tanh(self.combine(torch.cat((context, hidden), -1)))


class MaxoutReadout(Readout):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.combine = nn.Linear(3 * dim, 2 * dim)

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.combine(torch.cat((hidden, x, context), -1)).unflatten(-1, (-1, 2)).amax(-1)


@dataclass(frozen=True)
class Plain(Spec):
    """The state s_i goes to the output layer."""

    def build(self, dim: int) -> Readout:
        return Readout()


@dataclass(frozen=True)
class Attentional(Spec):
    """s̃_i = tanh(W_c [c_i; s_i]) (Luong et al. 2015, eq. 5)."""

    def build(self, dim: int) -> Readout:
        return AttentionalReadout(dim)


@dataclass(frozen=True)
class Maxout(Spec):
    """Deep output: the larger of each pair in U s_i + V y_{i−1} + C c_i (Bahdanau et al. 2015, §A.2.2).

    With s_i, as in the paper's eq. 4, where its appendix writes s_{i−1}.
    """

    def build(self, dim: int) -> Readout:
        return MaxoutReadout(dim)
