"""Recurrent decoders: source summaries, initial states, contexts, readouts, and the decoder made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_function import AttentionArgs, attend, fold_beams
from dragoman.parts.attention_scores import Additive, Score
from dragoman.parts.deferred_gradients import deferred_weight_gradients
from dragoman.parts.dropout import dropout
from dragoman.parts.flops import Workload, matrix_flops, module_flops
from dragoman.parts.mixer import Context, Memory, Mixer, MixerOutput, SequenceLayout, State, beam_size
from dragoman.parts.recurrence import CellKind, build_cells, continue_rows
from dragoman.parts.spec import Spec, build_part
from dragoman.parts.tracing import Quantity

PREVIOUS_STATE = Quantity(
    "previous state", "TE", "h = sᵢ₋₁", "What the decoder remembers of the tokens before: the state of its cells."
)
STATE_QUERY = Quantity("query", "HTE", "s", "The state of the decoder asks which source words matter now.")
SOURCE_KEY = Quantity("keys", "HSE", "U h", "What every source word offers to be found by, from the encoder's states.")
SOURCE_VALUE = Quantity("values", "HSE", "h", "The encoder's state of every source word, which attention passes on.")
ENERGIES = Quantity(
    "scores", "HTS", "score(s, h)", "The energies: how well each source word fits the state, larger is better."
)
NEW_STATE = Quantity("new state", "TE", "sᵢ", "The state after this step, which the gates have composed.")
READOUT = Quantity(
    "readout", "TE", "r(sᵢ, y, cᵢ)", "What the output layer reads: the state, combined with attention and input."
)

# ---- summaries of the source


class Summary(Spec):
    """Base class of functions that summarize an encoded source in one vector. Without weights, the spec is called."""

    def width(self, dim: int) -> int:
        """Return the width of the vector that summarizes a source, in a model of width `dim`."""
        return dim

    def __call__(self, memory: Memory) -> Tensor:
        """Return one vector per encoded source, B × `width`: here the final state of the encoder's top layer."""
        return encoder_final_state(memory)["hidden"][:, -1]  # of B L D, the last of L layers


def encoder_final_state(memory: Memory) -> State:
    """Return the final state of the encoder, or raise an error if the encoder is not recurrent.

    It has the names "hidden" and, of an LSTM, "cell": B L D each, with L layers.
    """
    if memory.final_state is None:
        raise UserError(
            "this decoder starts from the final state of the encoder, but the encoder has none: use a recurrent encoder"
        )
    return memory.final_state


@dataclass(frozen=True)
class LastState(Summary):
    """The final state h_T of the encoder's top layer (Cho et al. 2014)."""


@dataclass(frozen=True)
class BackwardState(Summary):
    """The final state ←h_1 of the encoder's backward direction (Bahdanau et al. 2015, §A.2.2)."""

    def width(self, dim: int) -> int:
        """Half of the model's width `dim`: that of one direction."""
        return dim // 2

    def __call__(self, memory: Memory) -> Tensor:
        """Return the backward half of the encoder's final state, B D/2."""
        _, backward = super().__call__(memory).chunk(2, -1)
        return backward


@dataclass(frozen=True)
class MeanState(Summary):
    """The mean of the encoder's states."""

    def __call__(self, memory: Memory) -> Tensor:
        """Return the mean over the tokens of each source without padding, B D."""
        token_mask = memory.layout.token_mask
        if token_mask is None:
            return memory.states.mean(1)
        return (memory.states * token_mask[..., None]).sum(1) / token_mask.sum(1, keepdim=True)


# ---- initial states


class InitialState(nn.Module):
    """The initial state of the decoder: zero."""

    def forward(self, memory: Memory, projections: dict[str, Tensor], zero: State) -> State:
        """Return the initial state of the decoder's cells for the encoded sources `memory`: here `zero`.

        `zero` is a state of zeros with the right shapes: "hidden" and, of an LSTM, "cell", B L D each with L layers.
        `projections` are what the decoder's context, such as attention, has computed from the sources once.
        """
        return zero

    def flops(self, work: Workload) -> int:
        """FLOPs for one source: each matrix is multiplied once, however many tokens there are."""
        return matrix_flops(self, work.with_tokens(1))


class CopiedInitialState(InitialState):
    def forward(self, memory: Memory, projections: dict[str, Tensor], zero: State) -> State:
        """Return the final state of the encoder (in `memory`), with which the decoder starts.

        Its shapes must be those of `zero`, the decoder's state, otherwise a UserError is raised; `projections` are not
        used.
        """
        final = encoder_final_state(memory)
        encoder_shapes = {name: [*value.shape[1:]] for name, value in final.items()}  # layers and width, by name
        decoder_shapes = {name: [*value.shape[1:]] for name, value in zero.items()}
        if encoder_shapes != decoder_shapes:
            raise UserError(
                "a decoder that starts from the encoder's final state needs the same cell, number of layers and "
                f"width as the encoder, but the encoder's states have the shapes {encoder_shapes} and the "
                f"decoder's {decoder_shapes}: use the same settings for both"
            )
        return final


class ProjectedInitialState(InitialState):
    """tanh(W v), v being a summary of the source or, without one, the fixed context."""

    def __init__(self, summary: Summary | None, layers: int, dim: int) -> None:
        """Create W of the initial hidden state tanh(W v) as `hidden`, for `layers` states of width `dim`.

        v is what `summary` computes from the encoder's output, such as its last state, or, if `summary` is None, the
        source vector that the decoder reads at every step.
        """
        super().__init__()
        self.summary = summary
        self.hidden = nn.Linear(summary.width(dim) if summary else dim, layers * dim)

    def forward(self, memory: Memory, projections: dict[str, Tensor], zero: State) -> State:
        """Return the hidden state tanh(W v) of L layers, B L D; other parts, such as the LSTM's cell, are zero.

        v is the summary of the encoded sources `memory`, or, without a summary, the source vector
        `projections["context"]`, which is the same at every step; a UserError is raised if the decoder has none. `zero`
        is the state of zeros, "hidden" and, of an LSTM, "cell", B L D each.
        """
        source_vector = self.summary(memory) if self.summary else projections.get("context")
        if source_vector is None:
            raise UserError(
                "the initial state FromContext is computed from a source vector that is the same at every step: use "
                "FixedContext as the context of the decoder"
            )
        hidden = torch.tanh(self.hidden(source_vector))  # B L·D
        return zero | {"hidden": hidden.unflatten(-1, zero["hidden"].shape[1:])}


@dataclass(frozen=True)
class FromZero(Spec):
    """s_0 = 0."""

    def build_initial_state(self, layers: int, dim: int) -> InitialState:
        """Create an initial state of zeros, for `layers` layers of width `dim`."""
        return InitialState()


@dataclass(frozen=True)
class FromLast(Spec):
    """s_0 = the final state of the encoder, layer by layer (Sutskever et al. 2014; Luong et al. 2015)."""

    def build_initial_state(self, layers: int, dim: int) -> InitialState:
        """Create a module that copies the encoder's final state, which must have `layers` layers of width `dim`."""
        return CopiedInitialState()


@dataclass(frozen=True)
class FromSummary(Spec):
    """s_0 = tanh(W summary)."""

    summary: Spec = field(default_factory=BackwardState)

    def build_initial_state(self, layers: int, dim: int) -> InitialState:
        """Create the module that computes tanh(W v) for `layers` layers of width `dim` from the source's summary v."""
        return ProjectedInitialState(build_part(self.summary, dim, Summary), layers=layers, dim=dim)


@dataclass(frozen=True)
class FromContext(Spec):
    """s_0 = tanh(W c), c being a fixed context (Cho et al. 2014, §A.1.2)."""

    def build_initial_state(self, layers: int, dim: int) -> InitialState:
        """Create the module that computes tanh(W v) for `layers` layers of width `dim`.

        v is the source vector that the decoder reads at every step (its fixed context): no other summary is computed.
        """
        return ProjectedInitialState(summary=None, layers=layers, dim=dim)


# ---- contexts: what the decoder sees of the source at each step


class ContextModule(nn.Module):
    """Base class of what the decoder sees of the source at each step, its context vector; here zeros: nothing."""

    attends = False  # whether the context depends on the query, as in attention

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Compute what depends on the encoder's output alone, once per source; here nothing."""
        return {}

    def score_terms(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the A terms whose sum is the attention score of one query (D) and each of S keys (S A): S A.

        An explanation of the attention shows them; here they are those of dot products.
        """
        return query * key

    def forward(self, query: Tensor, context: Context, projections: dict[str, Tensor], path: str) -> Tensor:
        """Return what the decoder sees of the source at each of T steps of R rows, R T D; here zeros.

        The query (R T D) are the states of the decoder, `projections` the result of `project_memory`, `path` the name
        under which attention weights are recorded. The call's `context` holds the encoded source.
        """
        return query.new_zeros(query.shape)


class FixedContextModule(ContextModule):
    def __init__(self, summary: Summary, dim: int) -> None:
        """Create V and b of the source vector c = tanh(V s + b) as `project`, for a model of width `dim`.

        s is the vector that `summary` computes from the encoder's output, such as its last state or the mean.
        """
        super().__init__()
        self.summary = summary
        self.project = nn.Linear(summary.width(dim), dim)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return the source vector of each source, c = tanh(V s + b), B D, s being the summary of the source."""
        return {"context": torch.tanh(self.project(self.summary(memory)))}

    def forward(self, query: Tensor, context: Context, projections: dict[str, Tensor], path: str) -> Tensor:
        """Return the source vector `projections["context"]` (B D) for all T steps of R = B·K rows: R T D.

        The rows are K hypotheses of each of B sources. The query, R T D, gives only the shape, because the vector is
        the same at every step; there is no attention to record under the name `path`.
        """
        hypotheses_per_source = beam_size(query.shape[0], context.encoded_source)
        rows = projections["context"].repeat_interleave(hypotheses_per_source, 0)  # R D
        return rows[:, None].expand(query.shape)

    def flops(self, work: Workload) -> int:
        """FLOPs for one source: V is multiplied once, however many tokens there are."""
        return matrix_flops(self, work.with_tokens(1))


class AttentionContextModule(ContextModule):
    attends = True

    def __init__(self, score: Score) -> None:
        """Create attention over the source; `score`, such as a dot product, compares queries and encoder states."""
        super().__init__()
        self.score = score

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Prepare the encoder's states (B S D) as keys of the score function, once per source."""
        return {"key": self.score.prepare(memory.states)}

    def forward(self, query: Tensor, context: Context, projections: dict[str, Tensor], path: str) -> Tensor:
        """Attend from the decoder's states (query, R T D) to the source: weighted sums of the encoder's states, R T D.

        The R rows are the hypotheses of the encoded sources in `context`. `projections` holds the prepared keys; `path`
        is the name under which attention weights are recorded.
        """
        memory = context.encoded_source
        folded = fold_beams(query, memory)[:, None]  # B 1 K·T D
        key, value = projections["key"][:, None], memory.states[:, None]  # B 1 S A (keys, A numbers each) and B 1 S D
        args = AttentionArgs(score=self.score, path=path)
        if context.is_traced:  # intermediate results are recorded, with formulas that explain them
            keys = replace(SOURCE_KEY, formula=self.score.key_formula)
            energies = replace(ENERGIES, formula=self.score.formula)
            args = replace(args, quantities=(STATE_QUERY, keys, SOURCE_VALUE, energies))
        # the layout of the queries has R rows, but is not read: no mask or bias depends on their positions
        y = attend(
            folded, key, value, query_layout=context.layout, key_layout=memory.layout, context=context, args=args
        )
        return y.reshape(query.shape)

    def score_terms(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the A terms whose sum is the score of one query (D) and each of S prepared keys (S A): S A."""
        return self.score.terms(query, key)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: score and weighted sum of each pair.

        The encoder's states, which are summed, are `work.width` numbers wide, each with a multiplication and an
        addition.
        """
        return module_flops(self.score, work) + 2 * work.tokens * work.source * work.width


@dataclass(frozen=True)
class NoContext(Spec):
    """The decoder sees the source through its initial state only (Sutskever et al. 2014)."""

    def build(self, dim: int) -> ContextModule:
        """Create a context of zeros."""
        return ContextModule()


@dataclass(frozen=True)
class FixedContext(Spec):
    """c = tanh(V summary), the same at every step (Cho et al. 2014, §2.2)."""

    summary: Spec = field(default_factory=LastState)

    def build(self, dim: int) -> ContextModule:
        """Create the context for a model of width `dim`."""
        return FixedContextModule(build_part(self.summary, dim, Summary), dim)


@dataclass(frozen=True)
class AttentionContext(Spec):
    """c_i = Σ_j α_ij h_j, α_i = softmax_j score(s, h_j) (Bahdanau et al. 2015, §3.1)."""

    score: Spec = field(default_factory=Additive)

    def build(self, dim: int) -> ContextModule:
        """Create the attention for a model of width `dim`."""
        return AttentionContextModule(build_part(self.score, dim, Score))


# ---- readouts: what the decoder passes to the output layer


class ReadoutModule(nn.Module):
    """Base class of readouts, which compute what the output layer reads; here the decoder's state itself."""

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return what the output layer reads, … D: here the state of the cells, `hidden` (… D).

        Subclasses combine it with the input x and with what the decoder sees of the source, `context`, … D each.
        """
        return hidden


class AttentionalReadoutModule(ReadoutModule):
    def __init__(self, dim: int) -> None:
        """Create W_c of the readout tanh(W_c [context; state]) as `combine`, all of width `dim`."""
        super().__init__()
        self.combine = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return tanh(W_c [context; hidden]), … D each → … D; the input x is not used.

        `context` is what the decoder sees of the source, such as its attention, `hidden` the state of the cells.
        """
        return torch.tanh(self.combine(torch.cat((context, hidden), -1)))


class MaxoutReadoutModule(ReadoutModule):
    def __init__(self, dim: int) -> None:
        """Create the matrix `combine` from state, input and context, of width `dim` each, to `dim` pairs of numbers.

        The context is what the decoder sees of the source, such as its attention; the larger of each pair is returned.
        """
        super().__init__()
        self.combine = nn.Linear(3 * dim, 2 * dim)

    def forward(self, x: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Map input x, state (`hidden`) and context, … D each, to D pairs of numbers; return the larger of each: … D.

        `context` is what the decoder sees of the source, such as its attention.
        """
        return self.combine(torch.cat((hidden, x, context), -1)).unflatten(-1, (-1, 2)).amax(-1)


@dataclass(frozen=True)
class StateReadout(Spec):
    """s_i."""

    def build(self, dim: int) -> ReadoutModule:
        """Create a readout that returns the state itself."""
        return ReadoutModule()


@dataclass(frozen=True)
class AttentionalReadout(Spec):
    """s̃_i = tanh(W_c [c_i; s_i]) (Luong et al. 2015, eq. 5)."""

    def build(self, dim: int) -> ReadoutModule:
        """Create the readout for a model of width `dim`."""
        return AttentionalReadoutModule(dim)


@dataclass(frozen=True)
class MaxoutReadout(Spec):
    """Deep output: the maximum of each pair in U s_i + V y_{i−1} + C c_i (Bahdanau et al. 2015, §A.2.2).

    Uses s_i, as in eq. 4 of the paper; its appendix has s_{i−1}.
    """

    def build(self, dim: int) -> ReadoutModule:
        """Create the readout for a model of width `dim`."""
        return MaxoutReadoutModule(dim)


# ---- the decoder


@dataclass(frozen=True)
class RecurrentDecoder(Spec):
    """s_i = g(s_{i−1}, y_{i−1}, feedback), c_i = context(s), output = readout(s_i, y_{i−1}, c_i).

    `attends`: the query of the context is s_{i−1}, "before" the step (Bahdanau), or s_i, "after" it (Luong).
    `feedback`: additional input of the cell: "nothing", the "context", or the last "output" (Luong §3.3).
    `cell_dim`: number of LSTM cells, whose output is projected to the width of the model.
    """

    cell: CellKind = "gru"
    layers: int = 1
    context: Spec = field(default_factory=AttentionContext)
    attends: Literal["before", "after"] = "before"
    feedback: Literal["nothing", "context", "output"] = "context"
    initial_state: FromZero | FromLast | FromSummary | FromContext = field(default_factory=FromSummary)
    readout: Spec = field(default_factory=StateReadout)
    dropout: float = 0.0
    cell_dim: int | None = None

    def build(self, dim: int) -> RecurrentDecoderMixer:
        """Create the decoder for a model of width `dim`."""
        return RecurrentDecoderMixer(self, dim)


class RecurrentDecoderMixer(Mixer):
    title = "recurrent decoder"
    supports_packing = False

    def __init__(self, spec: RecurrentDecoder, dim: int) -> None:
        """Build the parts of the spec: cells, attention (`context`), initial state (`start`) and output (`readout`).

        With feedback, the cells read [previous token; feedback], of width 2 · dim. The feedback is the attention over
        the source (`feeds_context`) or the previous output (`feeds_output`). Attention is computed with the state
        before the step (`attends_before`) or after it as the query.
        """
        super().__init__()
        self.dim, self.dropout = dim, spec.dropout
        self.context = build_part(spec.context, dim, ContextModule)
        self.readout = build_part(spec.readout, dim, ReadoutModule)
        self.start = spec.initial_state.build_initial_state(spec.layers, dim)
        self.attends_before = spec.attends == "before"
        self.feeds_context, self.feeds_output = spec.feedback == "context", spec.feedback == "output"
        #: whether a step needs a result of the previous step; otherwise whole sequences are computed at once
        self.sequential = self.feeds_output or (self.context.attends and (self.attends_before or self.feeds_context))
        inputs = dim * (2 if self.feeds_context or self.feeds_output else 1)
        self.cells = build_cells(
            spec.cell,
            inputs=inputs,
            dim=dim,
            layers=spec.layers,
            dropout=spec.dropout,
            bidirectional=False,
            cell_dim=spec.cell_dim,
        )

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create a state of zeros for `batch` rows: that of the cells, and the feedback into the next step, B D.

        It has dtype and device of `like`, and does not depend on `max_length`.
        """
        return {"cells": self.cells.init_state(batch, like), "feedback": like.new_zeros(batch, self.dim)}

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return what depends on the source alone, once per source: keys of the attention, and the initial state.

        The latter has the names "start_hidden" and, for an LSTM, "start_cell".
        """
        projections = self.context.project_memory(memory)
        start = self.start(memory, projections, self.cells.init_state(memory.states.shape[0], memory.states))
        return projections | {f"start_{name}": value for name, value in start.items()}

    def score_terms(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the A terms whose sum is the attention score of one query (D) and each of S keys (S A): S A."""
        return self.context.score_terms(query, key)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Read the embeddings of R rows: x, R T D → output R T D, new state, attention over the source R T D.

        Runs step by step if a step needs a result of the previous one (`sequential`), or if intermediate results are
        recorded, otherwise all steps at once. The context holds positions and lengths of the tokens, and the source.
        """
        projections = self.memory_projections(context.encoded_source)
        cells, feedback = self._state_to_continue(x, context, projections, state)
        # without a state, the final state is not needed, so that padding, which comes last, may change it: no lengths
        layout = SequenceLayout(context.layout.positions) if state is None else context.layout
        if self.sequential or context.is_traced:
            with deferred_weight_gradients():  # computes each weight's gradient once for all steps
                y, source_context, cells, feedback = self._run_steps(
                    x, context, projections, cells=cells, feedback=feedback, token_mask=layout.token_mask
                )
        else:  # whole sequences at once
            # a context that is fed to the cells here is the same at every step, so that the query x does not matter
            inputs = torch.cat((x, self.context(x, context, projections, self.path)), -1) if self.feeds_context else x
            hidden, cells = continue_rows(self.cells, inputs, layout, state=cells)
            source_context = self.context(hidden, context, projections, self.path)
            y = self.readout(x, hidden, source_context)
        new_state = None if state is None else {"cells": cells, "feedback": feedback}
        return MixerOutput(dropout(y, self.dropout, self.training), new_state, source_context)

    def _state_to_continue(
        self, x: Tensor, context: Context, projections: dict[str, Tensor], state: State | None
    ) -> tuple[State, Tensor]:
        """Return the cells' state and the feedback (R D) from which the R rows of x continue.

        A row at position 0, or without a state, begins with the initial state and a feedback of zeros. The initial
        state is that of the source (`projections`), repeated here for the hypotheses of a beam.
        """
        beam = beam_size(x.shape[0], context.encoded_source)
        names = [name for name in projections if name.startswith("start_")]
        initial = {name.removeprefix("start_"): projections[name].repeat_interleave(beam, 0) for name in names}
        if state is None:
            return initial, x.new_zeros(x.shape[0], self.dim)
        is_first = context.layout.positions[:, 0] == 0  # R
        cells = {name: torch.where(is_first[:, None, None], initial[name], state["cells"][name]) for name in initial}
        return cells, state["feedback"].masked_fill(is_first[:, None], 0.0)

    def _run_steps(
        self,
        x: Tensor,
        context: Context,
        projections: dict[str, Tensor],
        cells: State,
        feedback: Tensor,
        token_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, State, Tensor]:
        """Compute step by step: output R T D, attention over the source R T D, final state and last feedback R D.

        x (R T D) are the embeddings of T tokens in R rows; `cells` and `feedback` (R D) are the state to begin with,
        `projections` what is computed from the source once, such as the keys of the attention. At each step, the
        attention is computed before or after the cells (`attends_before`), and the feedback enters the gates: the
        attention (`feeds_context`), the output (`feeds_output`) or none. `token_mask` (R T) is False at padding, which
        leaves state and feedback unchanged; None: no padding.
        """
        gates = self.cells.project(x)  # R T G: what x adds to the inputs of all gates of all cells, G numbers
        feedback_weight = self.cells.weight("ih", layer=0)[0][:, self.dim :]  # G D: columns after those for x
        attends_before = self.attends_before or not self.context.attends  # a fixed context is there before the step
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        outputs: list[Tensor] = []
        for step, (token, step_gates) in enumerate(zip(x.unbind(1), gates.unbind(1))):
            previous, previous_feedback = cells, feedback
            context.trace(self.path, PREVIOUS_STATE, cells["hidden"][:, -1:])
            if attends_before:
                attended = self.context(cells["hidden"][:, -1:], context, projections, self.path)[:, 0]
                feedback = attended if self.feeds_context else feedback
            if self.feeds_context or self.feeds_output:
                step_gates = step_gates + F.linear(feedback, feedback_weight)
            if context.is_traced:
                for quantity, value in self.cells.gates_of_step(step_gates, cells):
                    context.trace(self.path, quantity, value[:, None])
            hidden, cells = self.cells.step(step_gates, cells)
            if context.is_traced:
                new_state = replace(NEW_STATE, formula=f"sᵢ = {self.cells.state_formula}")
                context.trace(self.path, new_state, hidden[:, None])
            if not attends_before:
                attended = self.context(hidden[:, None], context, projections, self.path)[:, 0]
                feedback = attended if self.feeds_context else feedback
            if self.feeds_output:
                feedback = self.readout(token, hidden, attended)
                outputs.append(feedback)
            states.append(hidden)
            contexts.append(attended)
            if token_mask is not None:  # padding does not change the state
                mask = token_mask[:, step, None]
                cells = {name: torch.where(mask[..., None], cells[name], previous[name]) for name in cells}
                feedback = torch.where(mask, feedback, previous_feedback)
        source_context = torch.stack(contexts, 1)  # R T D
        y = torch.stack(outputs, 1) if self.feeds_output else self.readout(x, torch.stack(states, 1), source_context)
        context.trace(self.path, READOUT, y)
        return y, source_context, cells, feedback
