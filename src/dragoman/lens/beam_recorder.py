"""The beam as a tree: a strategy that writes down what another one does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

import torch
from torch import Tensor

from dragoman.lens.inspection_types import BeamNode, BeamTree, NodeStatus
from dragoman.parts.precision import at_least_float32
from dragoman.run import Run
from dragoman.run.decoding import length_limits
from dragoman.run.translation_constraints import Constraints
from dragoman.search import Beam, Hypothesis, TokenSearch, build_engine
from dragoman.search.engine import Strategy
from dragoman.search.slots import Tree as Slots


def recorded_search(
    run: Run, source: Tensor, lengths: Tensor, settings: TokenSearch, wishes: Constraints
) -> tuple[Hypothesis, BeamTree]:
    """The best hypothesis of one source (1 S), and every hypothesis that was looked at on the way to it."""
    limits = length_limits(run, settings.length_limit, lengths)
    searching = build_engine(
        run.inference_models, run.special_tokens, settings, wishes.logits_processors, wishes.include is not None
    )
    watching = RecordingStrategy(searching.strategy, run.special_tokens.eos, settings)
    searching.strategy, searching.use_cuda_graphs = watching, False  # what is recorded and replayed cannot be watched
    asked = wishes.to_tensors(run.target_tokenizer, limits, len(run.special_tokens.forced_bos))
    keys = torch.zeros(1, dtype=torch.long)
    hypotheses = searching.search(source, lengths, limits, keys, asked)[0]
    nodes = assign_ranks(watching.nodes, hypotheses)
    pieces = run.target_tokenizer.tokens([node.token_id for node in nodes[1:]])
    named = [nodes[0], *(replace(node, token=piece) for node, piece in zip(nodes[1:], pieces))]
    return hypotheses[0], BeamTree(type(settings).__name__.lower(), tuple(named))


@dataclass
class FinishedHypothesis:
    """A hypothesis that was set aside: log p, by what it is compared, and its size without END."""

    score: float
    normalised: float
    size: int


class RecordingStrategy(Strategy):
    """Does as its strategy does, and keeps a node for every continuation that was chosen or nearly so.

    Of a step the 2K best continuations are kept beside those that were chosen. Only the first source is watched.
    """

    def __init__(self, strategy: Strategy, end: int, settings: TokenSearch) -> None:
        self.strategy, self.end, self.settings = strategy, end, settings
        self.rows_per_source = strategy.rows_per_source
        self.needs_attention, self.reorders_rows = strategy.needs_attention, strategy.reorders_rows
        self.nodes = [BeamNode(0, None, 0, 0, "", -1, 0.0, 0.0, 0.0, "kept")]
        self.at = [0] * strategy.rows_per_source  # the node at which each row stands

    def init_state(self, slots: Slots, longest: int) -> None:
        self.strategy.init_state(slots, longest)

    def hypotheses(self, slots: Slots) -> list[list[Hypothesis]]:
        return self.strategy.hypotheses(slots)

    def select(self, slots: Slots, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        over, scores = bool(slots["over"][0]), _scores(slots)[0].clone()
        ended = slots["ended"][0].clone() if "ended" in slots else torch.zeros_like(scores, dtype=torch.bool)
        log_p = logits[0] - norm[0, :, None]  # K V, before the strategy may write into them
        tokens, parents = self.strategy.select(slots, logits, norm, looks)
        if not over:
            own = torch.arange(len(scores)) if parents is None else parents[0].cpu()
            self._record(slots, scores.cpu(), ended.cpu(), at_least_float32(log_p).cpu(), tokens[0].cpu(), own)
        return tokens, parents

    def _record(
        self, slots: Slots, scores: Tensor, ended: Tensor, log_p: Tensor, tokens: Tensor, parents: Tensor
    ) -> None:
        """One step of a source: scores and ended K, log p K V, what was chosen K."""
        step = int(slots["step"][0]) + 1
        at_limit = step >= int(slots["limit"][0])
        going: NodeStatus = "truncated" if at_limit else "pruned" if bool(slots["over"][0]) else "kept"
        before, total = list(self.at), scores[:, None] + log_p  # K V
        taken: set[tuple[int, int]] = set()

        def add(row: int, token: int, fate: NodeStatus, into: int, normalised: float | None = None) -> int:
            taken.add((row, token))
            score = float(total[row, token])
            shown = score / self._penalty(step) if normalised is None else normalised
            node = BeamNode(
                len(self.nodes), before[row], step, into, "", token, float(log_p[row, token]), score, shown, fate
            )
            self.nodes.append(node)
            return node.index

        for into, (row, token) in enumerate(zip(parents.tolist(), tokens.tolist())):
            if bool(ended[row]) or total[row, token] == -torch.inf:
                continue
            fate: NodeStatus = "finished" if token == self.end else going
            self.at[into] = add(row, token, fate, into)
        aside = _complete(slots)
        for row in range(len(scores)):
            score = float(total[row, self.end])
            match = next(
                (one for one in aside if one.size == step - 1 and isclose(one.score, score, rel_tol=1e-5)), None
            )
            if match is not None and (row, self.end) not in taken:
                add(row, self.end, "finished", row, match.normalised)
        open_ = total.masked_fill(ended[:, None], -torch.inf).flatten()
        for place in open_.topk(min(2 * len(scores), len(open_))).indices.tolist():
            row, token = divmod(place, log_p.shape[1])
            if (row, token) not in taken and open_[place] > -torch.inf:
                add(row, token, "pruned", row)

    def _penalty(self, length: int) -> float:
        return self.settings.length_divisor(length) if isinstance(self.settings, Beam) else 1.0


def assign_ranks(nodes: list[BeamNode], hypotheses: list[Hypothesis]) -> list[BeamNode]:
    """The nodes, with their places among what was given back."""
    ends = {_tokens(nodes, node): node.index for node in nodes if node.status in ("finished", "truncated")}
    found = list(nodes)
    for rank, one in reversed(list(enumerate(hypotheses, 1))):  # samples may be alike: the best rank is the last word
        number = ends.get((*one.tokens, one.finished))
        if number is not None:
            found[number] = replace(found[number], rank=rank)
    return found


def _tokens(nodes: list[BeamNode], node: BeamNode) -> tuple[int | bool, ...]:
    """The words of a hypothesis, and whether END comes after them."""
    finished = node.status == "finished"
    tokens = [] if finished else [node.token_id]
    while node.parent:
        node = nodes[node.parent]
        tokens.append(node.token_id)
    return (*reversed(tokens), finished)


def _groups(slots: Slots) -> list[Slots]:
    """What strategies of several beams keep for each, or the slots themselves."""
    return list(slots["groups"].values()) if "groups" in slots else [slots]


def _scores(slots: Slots) -> Tensor:
    return torch.cat([group["scores"] for group in _groups(slots)], 1)


def _complete(slots: Slots) -> list[FinishedHypothesis]:
    found = []
    for group in _groups(slots):
        if "aside" in group:
            columns = (group["aside"][name][0].tolist() for name in ("score", "normalized", "size"))
            found += [FinishedHypothesis(*one) for one in zip(*columns) if one[0] > -torch.inf]
    return found
