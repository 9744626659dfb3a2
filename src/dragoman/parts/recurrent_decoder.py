"""The recurrent decoder: one class whose orthogonal choices give Sutskever's, Cho's, Bahdanau's and Luong's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention import Look, attend, fold_beams
from dragoman.parts.cells import CELLS, CellKind
from dragoman.parts.mixer import Ctx, Memory, Mixer, State, beams
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


# ---- the decoder


@dataclass(frozen=True)
class RecurrentDecoder(Spec):
    """s_i = g(s_{i−1}, y_{i−1}, fed), c_i = context(s), output = readout(s_i, y_{i−1}, c_i).

    `asks`: whose state looks at the source, s_{i−1} before the step (Bahdanau) or s_i after it (Luong). `feeds`: what
    enters the cell beside the last word: nothing, the context, or the last output (input feeding, Luong §3.3).
    """

    cell: CellKind = "gru"
    layers: int = 1
    context: Spec = field(default_factory=Attention)
    asks: Literal["before", "after"] = "before"
    feeds: Literal["nothing", "context", "output"] = "context"
    start: FromZero | FromLast | FromSummary | FromContext = field(default_factory=FromSummary)
    readout: Spec = field(default_factory=Plain)
    dropout: float = 0.0

    def build(self, dim: int) -> RecurrentDecoderMixer:
        return RecurrentDecoderMixer(self, dim)


class RecurrentDecoderMixer(Mixer):
    packs = False

    def __init__(self, spec: RecurrentDecoder, dim: int) -> None:
        super().__init__()
        self.dim, self.dropout = dim, spec.dropout
        self.context = built(spec.context, dim, Context)
        self.readout = built(spec.readout, dim, Readout)
        self.start = spec.start.start(spec.layers, dim)
        self.asks_before = spec.asks == "before"
        self.feeds_context, self.feeds_output = spec.feeds == "context", spec.feeds == "output"
        #: does a step need what the step before it found? Otherwise whole sequences go through at once
        self.sequential = self.feeds_output or (self.context.looks and (self.asks_before or self.feeds_context))
        inputs = dim * (2 if self.feeds_context or self.feeds_output else 1)
        self.cells = CELLS[spec.cell](inputs, dim, spec.layers, spec.dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return {"cells": self.cells.init_state(batch, like), "fed": like.new_zeros(batch, self.dim)}

    def remember(self, memory: Memory) -> dict[str, Tensor]:
        kept = self.context.remember(memory)
        start = self.start(memory, kept, self.cells.init_state(memory.states.shape[0], memory.states))
        return kept | {f"start {name}": value for name, value in start.items()}

    def forward(self, x: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        assert ctx.memory is not None
        kept = ctx.memory.projected[self.path]
        cells, fed = self._begin(x, ctx, kept, state)
        if self.sequential:
            y, cells, fed = self._steps(x, ctx, kept, cells, fed)
        else:
            y, cells = self._whole(x, ctx, kept, cells)
        after = None if state is None else {"cells": cells, "fed": fed}
        return F.dropout(y, self.dropout, self.training), after

    def _begin(self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], state: State | None) -> tuple[State, Tensor]:
        """The state to go on from: at a sequence's first position, the one that the source gives."""
        assert ctx.memory is not None
        repeats = beams(x.shape[0], ctx.memory)
        names = [name for name in kept if name.startswith("start ")]
        start = {name.removeprefix("start "): kept[name].repeat_interleave(repeats, 0) for name in names}
        if state is None:
            return start, x.new_zeros(x.shape[0], self.dim)
        first = ctx.layout.positions[:, 0] == 0  # R
        cells = {name: torch.where(first[:, None, None], start[name], state["cells"][name]) for name in start}
        return cells, state["fed"].masked_fill(first[:, None], 0.0)

    def _whole(self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], cells: State) -> tuple[Tensor, State]:
        """Nothing is fed back: one call for the whole sequence."""
        inputs = torch.cat((x, self.context(x, ctx, kept, self.path)), -1) if self.feeds_context else x
        hidden, cells = self.cells.run(inputs, cells)
        return self.readout(x, hidden, self.context(hidden, ctx, kept, self.path)), cells

    def _steps(
        self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], cells: State, fed: Tensor
    ) -> tuple[Tensor, State, Tensor]:
        """Word by word; the input's share of the gates is computed for all words beforehand."""
        gates = self.cells.project(x)  # R T G
        outputs: list[Tensor] = []
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        for word, gate in zip(x.unbind(1), gates.unbind(1)):
            if self.asks_before:
                context = self.context(cells["hidden"][:, -1:], ctx, kept, self.path)[:, 0]
                fed = context if self.feeds_context else fed
            if self.feeds_context or self.feeds_output:
                gate = gate + self.cells.project(fed, start=self.dim)
            hidden, cells = self.cells.step(gate, cells)
            if not self.asks_before:
                context = self.context(hidden[:, None], ctx, kept, self.path)[:, 0]
                fed = context if self.feeds_context else fed
            if self.feeds_output:
                fed = self.readout(word, hidden, context)
                outputs.append(fed)
            else:
                states.append(hidden)
                contexts.append(context)
        if self.feeds_output:
            return torch.stack(outputs, 1), cells, fed
        return self.readout(x, torch.stack(states, 1), torch.stack(contexts, 1)), cells, fed
