"""Beam search: at each step the K likeliest hypotheses; finished ones are set aside."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.configs import Beam
from dragoman.search.engine import Hypothesis, Strategy
from dragoman.search.greedy import write_tokens
from dragoman.search.penalties import coverage_penalty, looked
from dragoman.search.slots import Tree
from dragoman.search.stopping import search_ends
from dragoman.search.topk import first_true, topk, topk_continuations


class BeamSearch(Strategy):
    """The `settings.best` hypotheses of each source, best first, by log p(y|x) / |y|^α.

    Of the K·V continuations the 2K best are looked at: an END among the first K finishes a hypothesis, which is set
    aside; the first K others are continued. Length and coverage penalties rank finished hypotheses only; which ones are
    continued is decided by log p(y|x) alone.
    """

    reorders_rows = True

    def __init__(self, settings: Beam, end: int) -> None:
        self.settings, self.end, self.rows_per_source = settings, end, settings.size
        self.watches = settings.coverage_penalty > 0

    def init_state(self, slots: Tree, longest: int) -> None:
        tokens = slots["tokens"]
        batch, width = tokens.shape
        slots["scores"] = torch.full((batch, width), -torch.inf, device=tokens.device)
        slots["scores"][:, 0] = 0.0  # at first all hypotheses are the same: let one speak
        slots["written"] = torch.zeros((batch, width, longest), dtype=torch.long, device=tokens.device)
        slots["aside"] = empty(batch, self.settings.max_finished, longest, tokens.device)  # finished
        slots["cut"] = empty(batch, width, longest, tokens.device)  # truncated by the length limit
        if self.watches:
            slots["looks"] = torch.zeros(batch, width, slots["real"].shape[1], device=tokens.device)  # B K S, in all

    def select(
        self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None, penalty: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`penalty` (B V) is subtracted from log p of tokens where continuations are compared, not from the scores."""
        settings, width = self.settings, self.rows_per_source
        step, limit, written = slots["step"], slots["limit"], slots["written"]
        if self.watches:
            slots["looks"] = slots["looks"] + at_least_float32(looked(looks))
        best, parent, token = candidates(slots["scores"], logits, norm, 2 * width, penalty)  # B 2K
        divisor = settings.length_divisor(step + 1)[:, None]  # B 1
        end = token == self.end
        finished = torch.where(end[:, :width], best[:, :width], -torch.inf)
        normalized = finished / divisor + self._coverage(slots, parent[:, :width])
        set_aside(slots["aside"], finished, normalized, gather_rows(written, parent[:, :width]), step)
        kept = first_true(~end, width)  # B K
        scores, token, parent = best.gather(1, kept), token.gather(1, kept), parent.gather(1, kept)
        slots["written"] = written = write_tokens(gather_rows(written, parent), step, token)
        at_limit = limit == step + 1
        truncate(slots["cut"], at_limit, scores, scores / divisor + self._coverage(slots, parent), written, limit)
        ends = search_ends(settings, slots["aside"]["normalized"], scores, step + 1, limit)
        slots["over"] = over = slots["over"] | (limit <= step + 1) | ends
        slots["scores"] = scores.masked_fill(over[:, None], -torch.inf)  # a finished source is not continued
        if self.watches:
            slots["looks"] = gather_rows(slots["looks"], parent)
        return token, parent

    def _coverage(self, slots: Tree, parent: Tensor) -> Tensor | float:
        """B N: the penalty of what the hypotheses `parent` (B N) have written, this step's token counted in."""
        if not self.watches:
            return 0.0
        return coverage_penalty(slots["looks"], slots["real"][:, None], self.settings.coverage_penalty).gather(
            1, parent
        )

    def hypotheses(self, slots: Tree) -> list[list[Hypothesis]]:
        """The finished hypotheses, then those that the length limit truncated, or both by score."""
        results = []
        best = self.settings.n_best
        for finished, truncated in zip(rows(slots["aside"], True), rows(slots["cut"], False)):
            found = finished + truncated
            if self.settings.unfinished == "beside":
                found.sort(key=lambda one: -one.normalized_score)
            results.append(found[:best])
        return results


def candidates(
    scores: Tensor, logits: Tensor, norm: Tensor, count: int, penalty: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """B K scores so far and B K V logits → the best continuations: log p of them, their hypotheses, their tokens, B N.

    With a `penalty` (B V) they are chosen and ordered by log p − penalty of their token.
    """
    if penalty is None:
        return topk_continuations(scores, logits, norm, count)
    _, parent, token = topk_continuations(scores, logits - penalty[:, None], norm, count)
    log_p = logits.flatten(1).gather(1, parent * logits.shape[2] + token) - norm.gather(1, parent)
    return scores.gather(1, parent) + log_p.clamp_(max=0), parent, token


def gather_rows(rows: Tensor, parents: Tensor) -> Tensor:
    """B K …, the rows that stand at `parents` (B N): B N …"""
    index = parents.reshape(*parents.shape, *(1,) * (rows.dim() - 2)).expand(-1, -1, *rows.shape[2:])
    return rows.gather(1, index)


def empty(batch: int, room: int, longest: int, device: torch.device) -> Tree:
    """Room for hypotheses of each source that are not continued, by their normalised scores."""
    nothing = torch.full((batch, room), -torch.inf, device=device)
    return {
        "normalized": nothing,
        "score": nothing.clone(),
        "size": torch.zeros((batch, room), dtype=torch.long, device=device),  # without END
        "written": torch.zeros((batch, room, longest), dtype=torch.long, device=device),
    }


def set_aside(aside: Tree, score: Tensor, normalized: Tensor, written: Tensor, size: Tensor) -> None:
    """Add finished hypotheses, score B K, −∞ where there is none: a better one replaces the worst, best first."""
    room = aside["score"].shape[1]
    aside["normalized"], order = topk(torch.cat((aside["normalized"], normalized), 1), room)
    aside["score"] = torch.cat((aside["score"], score), 1).gather(1, order)
    aside["size"] = torch.cat((aside["size"], size[:, None].expand_as(score)), 1).gather(1, order)
    aside["written"] = gather_rows(torch.cat((aside["written"], written), 1), order)


def truncate(cut: Tree, at_limit: Tensor, score: Tensor, normalized: Tensor, written: Tensor, size: Tensor) -> None:
    """Keep the live hypotheses, B K, of the sources (B) that have reached their length limit."""
    here = at_limit[:, None]
    cut["normalized"] = torch.where(here, normalized, cut["normalized"])
    cut["score"] = torch.where(here, score, cut["score"])
    cut["size"] = torch.where(here, size[:, None], cut["size"])
    cut["written"] = torch.where(here[..., None], written, cut["written"])


def rows(kept: Tree, finished: bool) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first."""
    columns = (kept[name].tolist() for name in ("written", "size", "score", "normalized"))
    found = [
        [
            Hypothesis(written[:size], score, normalized, finished)
            for written, size, score, normalized in zip(*source)
            if score > -torch.inf
        ]
        for source in zip(*columns)
    ]
    return found if finished else [sorted(some, key=lambda one: -one.normalized_score) for some in found]
