"""The tree of a beam search: a strategy that records the continuations that another strategy selects or prunes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import isclose

import torch
from torch import Tensor

from dragoman.lens.inspection_types import BeamNode, BeamTree, NodeStatus
from dragoman.parts.precision import at_least_float32
from dragoman.search import Constraints, Hypothesis, SearchState, TokenSearch, build_engine
from dragoman.search.engine import Strategy
from dragoman.search.probability_table import OTHER_WORD, ProbabilityTable
from dragoman.search.search_config import DecodingRun


def recorded_search(
    run: DecodingRun, source: Tensor, lengths: Tensor, search: TokenSearch, constraints: Constraints
) -> tuple[Hypothesis, BeamTree]:
    """Decode one source (1 S) of `lengths` (1); return the best hypothesis and the tree of all that were considered.

    `search` is beam search or sampling; `constraints` are prefixes, words to include, and the like.
    """
    (result,) = recorded_searches(run, source, lengths, search, constraints)
    return result


def recorded_searches(
    run: DecodingRun, source: Tensor, lengths: Tensor, search: TokenSearch, constraints: Constraints
) -> list[tuple[Hypothesis, BeamTree]]:
    """Decode a batch of sources (B S) of `lengths` (B); return for each the best hypothesis and the tree of all.

    The engine's strategy (beam search or sampling), which selects tokens at every step, is wrapped in one that records
    a node for each continuation that it selects, and for the best of the others. Nodes of results get their rank.
    """
    special_tokens, tokenizer = run.special_tokens, run.target_tokenizer
    # maximum target lengths (B), by the limit of the search or else of the run
    max_lengths = search.length_limit.or_else(run.length_limit).max_lengths(lengths, run.models)
    engine = build_engine(
        run.inference_models,
        special_tokens,
        search,
        constraints.logits_processors,
        has_required_phrases=constraints.include is not None,
    )
    recorder = RecordingStrategy(engine.strategy, special_tokens.eos, search)
    # a CUDA graph replays kernels without calling Python, so that nothing would be recorded
    engine.strategy, engine.use_cuda_graphs = recorder, False
    # `forced_bos`: the tokens, such as a language code, that every translation begins with
    tensors = constraints.to_tensors(tokenizer, max_lengths, num_forced=len(special_tokens.forced_bos))
    # the key of a source, under which its nodes are recorded, is its index
    results = engine.search(source, lengths, max_lengths, keys=torch.arange(len(source)), constraints=tensors)
    trees = []
    for number, hypotheses in enumerate(results):
        root, *nodes = assign_ranks(recorder.records[number].nodes, hypotheses)
        tokens = tokenizer.tokens([node.token_id for node in nodes])
        nodes_with_tokens = (replace(node, token=token) for node, token in zip(nodes, tokens))
        trees.append((hypotheses[0], BeamTree(type(search).__name__.lower(), (root, *nodes_with_tokens))))
    return trees


def table_search_tree(table: ProbabilityTable, search: TokenSearch) -> BeamTree:
    """Decode with a hand-written table of next-word probabilities in place of a model; return the tree of hypotheses.

    OTHER_WORD, which has the probability of all words that the table does not name, is removed from the tree.
    """
    request = table.request()
    _, tree = recorded_search(table, request.source, request.lengths, search, request.constraints)
    return tree.without(OTHER_WORD)


class RecordedNodes:
    """The nodes of the search of one source."""

    def __init__(self, rows: int) -> None:
        """Begin with a root without tokens, which all hypotheses continue.

        `rows` is the number of hypotheses of a source that are decoded in parallel: the beam size or number of samples.
        """
        root = BeamNode(
            index=0,
            parent=None,
            step=0,
            beam_index=0,
            token="",
            token_id=-1,  # none
            log_probability=0.0,
            score=0.0,
            normalized_score=0.0,
            status="kept",
        )
        self.nodes = [root]
        self.row_nodes = [0] * rows  # for each row, the index in `nodes` of the hypothesis that it continues


class RecordingStrategy(Strategy):
    """Selects tokens like another strategy, and adds a node for every selected continuation.

    Of the 2K best continuations of a step, as many as beam search with K hypotheses considers, those that were not
    selected are recorded as pruned ones.
    """

    def __init__(self, strategy: Strategy, eos: int, search: TokenSearch) -> None:
        """Wrap `strategy`, whose steps are recorded.

        `eos` is the id of the EOS token; `search` has the length penalty that normalizes scores. `self.records` has the
        nodes of each source, by its key: a number that identifies the source when the engine moves it in the batch.
        The engine reads the other attributes: whether selection needs attention weights, and whether it reorders rows.
        """
        self.strategy, self.eos, self.search = strategy, eos, search
        self.rows_per_source = strategy.rows_per_source
        self.needs_attention, self.reorders_rows = strategy.needs_attention, strategy.reorders_rows
        self.records: defaultdict[int, RecordedNodes] = defaultdict(lambda: RecordedNodes(strategy.rows_per_source))

    @property
    def nodes(self) -> list[BeamNode]:
        """The nodes of the source that was recorded first, parents before children."""
        return next(iter(self.records.values())).nodes

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the state before the first step, initialized by the wrapped strategy; `max_length` is in tokens."""
        return self.strategy.init_state(state, max_length)

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return for each source the hypotheses that the wrapped strategy has found, best first."""
        return self.strategy.hypotheses(state)

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, Tensor | None]:
        """Let the wrapped strategy select the next tokens, and record the step of every source that is not done.

        A batch has B slots with one source each, and a source has K rows, one for each hypothesis.

        Args:
            logits: of the next token (B K V); the strategy may change them in place.
            log_normalizer: log Σ exp of the logits (B K).
            attention: cross-attention of the step, if the strategy needs it.

        Returns:
            The state after the step, and for each row (B K) the row of its source that it continues; None if every row
            continues itself.
        """
        scores, ended = state.scores, state.strategy.ended_rows  # log p and whether a hypothesis has ended, before: B K
        # None in beam search, which moves ended hypotheses out of their rows
        ended = torch.zeros_like(scores, dtype=torch.bool) if ended is None else ended
        log_p = logits - log_normalizer[..., None]  # B K V, before the strategy changes the logits
        done_before = state.done.tolist()
        next_state, parents = self.strategy.select(state, logits, log_normalizer, attention)
        parent_rows = torch.arange(scores.shape[1]).expand_as(scores) if parents is None else parents
        tensors = [scores.cpu(), ended.cpu(), at_least_float32(log_p).cpu(), parent_rows.cpu()]
        for slot, key in enumerate(state.key.tolist()):
            if not done_before[slot]:
                self._record(self.records[key], next_state, slot, *(tensor[slot] for tensor in tensors))
        return next_state, parents

    def _record(
        self,
        record: RecordedNodes,
        state: SearchState,
        slot: int,
        scores: Tensor,
        ended: Tensor,
        log_p: Tensor,
        parents: Tensor,
    ) -> None:
        """Add the nodes of a step of one source: selected and finished continuations, then the pruned ones.

        A source has K rows, one for each hypothesis of the beam. Pruned are those of the 2K best continuations (as many
        as beam search considers) that were not selected.

        Args:
            record: the nodes of the source so far.
            state: the search state after the step, except for `state.step`, which the engine increases later.
            slot: index of the source in the batch.
            scores: log p of each row before the step (K).
            ended: whether each row had ended before the step (K).
            log_p: log-probabilities of the next token (K V).
            parents: for each row after the step, the row that it continues (K).
        """
        step, tokens = int(state.step[slot]) + 1, state.tokens[slot].cpu()
        at_limit = step >= int(state.max_length[slot])
        # status of selected continuations without EOS; if the search of the source ends, they are not continued
        live_status: NodeStatus = "truncated" if at_limit else "pruned" if bool(state.done[slot]) else "kept"
        parent_nodes = list(record.row_nodes)  # a copy: `record.row_nodes` changes below
        total = scores[:, None] + log_p  # log p of each hypothesis with each next token: K V
        recorded: set[tuple[int, int]] = set()  # (row, token) of the nodes of this step

        def add(row: int, token: int, status: NodeStatus, new_row: int, normalized: float | None = None) -> int:
            """Add the node of a token that continues `row` and lies in `new_row` after the step; return its index.

            `normalized` is its length-normalized score, which is computed if it is None.
            """
            recorded.add((row, token))
            score, token_score = float(total[row, token]), float(log_p[row, token])
            if normalized is None:
                normalized = score / self.search.length_divisor(step)
            index = len(record.nodes)
            node = BeamNode(
                index=index,
                parent=parent_nodes[row],
                step=step,
                beam_index=new_row,
                token="",  # set after the search, when all ids are converted at once
                token_id=token,
                log_probability=token_score,
                score=score,
                normalized_score=normalized,
                status=status,
            )
            record.nodes.append(node)
            return index

        for new_row, (row, token) in enumerate(zip(parents.tolist(), tokens.tolist())):
            if bool(ended[row]) or total[row, token] == -torch.inf:  # nothing was selected for this row
                continue
            record.row_nodes[new_row] = add(row, token, "finished" if token == self.eos else live_status, new_row)
        # a beam moves hypotheses with EOS to a buffer of finished ones; here they are recognized by their scores
        finished = _finished_scores(state, slot, length=step - 1)
        for row in range(len(scores)):
            eos_score = float(total[row, self.eos])
            matches = [normalized for score, normalized in finished if isclose(score, eos_score, rel_tol=1e-5)]
            if matches and (row, self.eos) not in recorded:
                add(row, self.eos, "finished", new_row=row, normalized=matches[0])
        continuations = total.masked_fill(ended[:, None], -torch.inf).flatten()
        for index in continuations.topk(min(2 * len(scores), len(continuations))).indices.tolist():
            row, token = divmod(index, log_p.shape[1])
            if (row, token) not in recorded and continuations[index] > -torch.inf:
                add(row, token, "pruned", new_row=row)


def assign_ranks(nodes: list[BeamNode], hypotheses: list[Hypothesis]) -> list[BeamNode]:
    """Return a copy of the nodes with a rank (1 for the best) at the last node of each hypothesis.

    `hypotheses` are the results of the search, best first; their nodes are identified by their tokens.
    """
    last_nodes = {_path_tokens(nodes, node): node.index for node in nodes if node.status in ("finished", "truncated")}
    ranked = list(nodes)
    for rank, hypothesis in reversed(list(enumerate(hypotheses, 1))):  # of equal samples the best rank remains
        index = last_nodes.get((*hypothesis.tokens, hypothesis.finished))
        if index is not None:
            ranked[index] = replace(ranked[index], rank=rank)
    return ranked


def _path_tokens(nodes: list[BeamNode], node: BeamNode) -> tuple[int | bool, ...]:
    """Return the token ids, without EOS, of the hypothesis that ends at `node`, followed by whether it is finished."""
    finished = node.status == "finished"
    tokens = [] if finished else [node.token_id]
    while node.parent:  # until the parent is the root, with index 0
        node = nodes[node.parent]
        tokens.append(node.token_id)
    return (*reversed(tokens), finished)


def _finished_scores(state: SearchState, slot: int, length: int) -> list[tuple[float, float]]:
    """Return (log p, length-normalized score) of the finished hypotheses with `length` tokens before EOS.

    `slot` is the index of a source in the batch. The buffers of finished hypotheses have tensors (B, hypotheses), with
    −∞ as the score of unused entries. There is one buffer, in diverse beam search one for each group of hypotheses.
    """
    result = []
    for buffer in (beam.finished for beam in state.strategy.beams if beam.finished is not None):
        columns = (buffer.scores, buffer.normalized_scores, buffer.lengths)
        for score, normalized, tokens in zip(*(column[slot].tolist() for column in columns)):
            if score > -torch.inf and tokens == length:
                result.append((score, normalized))
    return result
