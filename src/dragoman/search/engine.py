"""The engine of all step-by-step searches: sources in slots, one token per row and step, caches instead of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.models import Model
from dragoman.models.model import first_tokens, position_limit
from dragoman.parts.mixer import Context, Memory, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.preemption import preemption_point
from dragoman.search.forced_decoding import cross_attention
from dragoman.search.graphed_function import GraphedFunction
from dragoman.search.search_state import (
    EMPTY_SLOT,
    AsyncRead,
    BatchProgress,
    ConstraintTensors,
    DecoderState,
    Hypothesis,
    SearchState,
    map_tensors,
    replace_sources,
    round_up_size,
    select_sources,
)
from dragoman.search.topk import kernel_input, log_sum_exp

INITIAL_CACHE_LENGTH = 16  # tokens for which caches are allocated at first; they are doubled when full
INITIAL_CACHE_LENGTH_GPU = 64
MIN_SHRINK_FACTOR = 4  # with CUDA graphs, shrink a batch only when it is 4× smaller: each new shape has to be captured
MAX_COMPILED_SHAPES = 64  # shapes for which torch.compile may compile the decoding step
CHECK_INTERVAL = 4  # steps between two checks on a GPU which sources are done


@dataclass(frozen=True)
class SpecialTokens:
    """The token ids that a search must know."""

    bos: int | Tensor  # decoded first; one for all sources, or one each (B)
    eos: int
    suppressed: tuple[int, ...] = ()  # never generated
    forced_bos: tuple[int, ...] = ()  # generated first, with log p = 0
    force_eos_at_limit: bool = False  # generate EOS at the length limit, with log p = 0
    suppressed_first: tuple[int, ...] = ()  # not generated right after the forced tokens
    prompt_length: int = 0  # forced tokens that do not count in the length of a hypothesis
    min_length: int = 0  # no EOS before this number of tokens, unless the length limit is lower


class Strategy:
    """Selects the tokens of K hypotheses per source."""

    rows_per_source: int  # K
    needs_attention = False  # whether `select` needs attention weights
    reorders_rows = False  # whether a row may continue the hypothesis of another row

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return `state` with the initial scores of new sources, empty `output_tokens` and the strategy's own state.

        `output_tokens` (B K T) has T = `max_length` positions.
        """
        raise NotImplementedError

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, Tensor | None]:
        """Select the next token of each of K hypotheses (rows) of B sources.

        Args:
            logits: B K V, −∞ for tokens that must not be generated. May be changed in place.
            log_normalizer: B K, log Σ exp of the logits before any was set to −∞.
            attention: B K S, attention weights over S source positions, if `needs_attention`, or else None.

        Returns:
            the state with the selected tokens (as `tokens`, and appended to `output_tokens`), the new scores, `done`
            and the strategy's own state; and the parents, B K: the row (0 … K−1) whose hypothesis each row continues,
            or None if each row continues its own.
        """
        raise NotImplementedError

    def fused_step(
        self, state: SearchState, logits: Tensor, special_tokens: SpecialTokens, suppressed: Tensor
    ) -> tuple[bool, Tensor | None]:
        """Try to select and append the next tokens, and update scores and `done`, in place with one kernel.

        `logits` (B K V) are those of the next tokens, `suppressed` (N) the ids of tokens that are never generated.
        Returns whether a kernel has updated `state` (if not, nothing has changed), and the parents, as `select` does.
        """
        return False, None

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, best first, when its search has ended."""
        raise NotImplementedError


class LogitsProcessor:
    """Restricts the tokens that may be generated next. Tensors of its state are B … (by source) or B K … (by row)."""

    def init_state(self, state: SearchState) -> Any:
        """Return this processor's own state at the beginning of a search of the sources in `state`; None: it has none.

        Subclasses override it if their restrictions depend on more than the state of the search.
        """
        return None

    def __call__(self, state: SearchState, own_state: Any, logits: Tensor) -> Tensor:
        """Return the logits with −∞ for tokens that must not be generated next; by default unchanged.

        Logits are B K V, for K hypotheses of each of B sources; `own_state` is what `init_state` or `update` returned.
        """
        return logits

    def update(self, own_state: Any, tokens: Tensor, parents: Tensor | None) -> Any:
        """Return this processor's own state after a step that has appended `tokens` (B K) to the hypotheses.

        Hypothesis k continues hypothesis `parents[:, k]` of its source (B K), or itself if `parents` is None.
        """
        return own_state


@dataclass
class SearchInputs:
    """The sources of a search."""

    source: Tensor  # N S, or N S F
    lengths: Tensor  # N
    max_lengths: Tensor  # N: of the targets, EOS included
    keys: Tensor  # N: numbers of the sources, from which samples are drawn
    constraints: ConstraintTensors
    first_tokens: Tensor  # N: decoded first
    empty: Tensor  # N: slots without a source


class SearchEngine:
    """Searches with one model, or with an ensemble that averages probabilities.

    With CUDA graphs (by default on a GPU), batches have one of a few shapes, and the step of a shape is captured and
    replayed. With `compile`, the step is compiled as well, which takes some time at first.
    """

    def __init__(
        self,
        models: Sequence[Model],
        special_tokens: SpecialTokens,
        strategy: Strategy,
        logits_processors: Sequence[LogitsProcessor] = (),
        compile: bool = False,
        use_cuda_graphs: bool | None = None,
    ) -> None:
        """Search with `models`, averaging their probabilities.

        Args:
            special_tokens: Ids of BOS and EOS, and of tokens that are forced or never generated.
            strategy: Selects the tokens of each step, such as greedy or beam search.
            logits_processors: Set the logits of tokens that must not be generated to −∞.
            compile: Whether to compile the decoding step with torch.compile.
            use_cuda_graphs: Whether to replay the encoding of a batch and the steps as CUDA graphs; None: on a GPU.
        """
        self.models, self.special_tokens, self.strategy = models, special_tokens, strategy
        self.logits_processors, self.compile, self.use_cuda_graphs = logits_processors, compile, use_cuda_graphs
        self.graphed_start: Callable[..., SearchState] = GraphedFunction(self._start, in_place=False)
        # a lambda, since `decode_step` may be replaced by its compiled version
        self.graphed_step = GraphedFunction(lambda state: self.decode_step(state), in_place=True)
        if compile:  # the limit is the number of shapes after which torch.compile gives up
            torch._dynamo.config.recompile_limit = max(MAX_COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
            self.decode_step = torch.compile(self.decode_step, fullgraph=True, dynamic=False)  # type: ignore
        #: whether `Strategy.fused_step` may be used: its kernel knows neither logits processors nor forced tokens
        forces = special_tokens.forced_bos or special_tokens.force_eos_at_limit or special_tokens.suppressed_first
        self.can_fuse = not (logits_processors or forces)
        self._suppressed: dict[torch.device, Tensor] = {}  # ids of tokens that are never generated, by device

    def search(
        self,
        source: Tensor,
        lengths: Tensor,
        max_lengths: Tensor,
        keys: Tensor,
        constraints: ConstraintTensors | None = None,
        max_sources: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Search the targets of N sources, and return the hypotheses of each source, best first.

        Args:
            source: N S token ids, or N S F feature vectors, padded.
            lengths: N, of the sources.
            max_lengths: N, of the targets, EOS included.
            keys: N, numbers of the sources, which seed the random numbers of samples.
            constraints: Prefixes and required phrases of the targets, tensors with N rows.
            max_sources: The number of sources that are searched at a time; None: all. When a quarter of them is done,
                others take their place in the batch.
        """
        steps = self.steps(source, lengths, max_lengths, keys, constraints, max_sources)
        while True:
            try:
                next(steps)
            except StopIteration as end:  # carries the return value of the generator
                return end.value

    @torch.inference_mode()
    def steps(
        self,
        source: Tensor,
        lengths: Tensor,
        max_lengths: Tensor,
        keys: Tensor,
        constraints: ConstraintTensors | None = None,
        max_sources: int | None = None,
    ) -> Generator[tuple[list[int], SearchState], None, list[list[Hypothesis]]]:
        """Search the targets of N sources step by step; each step generates one token per hypothesis.

        Each source occupies a slot (a row of the batch). When a quarter of the sources in the batch are done, these
        leave, waiting ones enter their slots, and slots that remain empty are removed. On a GPU, `done` is read only
        every CHECK_INTERVAL steps, and asynchronously.

        Args:
            source: N S token ids, or N S F feature vectors, padded; `lengths` (N) are their lengths.
            max_lengths: N, of the targets, EOS included.
            keys: N, numbers of the sources, which seed the random numbers of samples.
            constraints: Prefixes and required phrases of the targets, tensors with N rows.
            max_sources: The number of sources that are searched at a time; None: all.

        Yields after each step the index (0 … N−1) of the source in each slot, or EMPTY_SLOT, and their state. Returns
        the hypotheses of each source. Closing the generator ends the search.
        """
        count, device = len(source), source.device
        use_cuda_graphs = source.is_cuda if self.use_cuda_graphs is None else self.use_cuda_graphs
        num_slots = min(max_sources or count, count)
        progress = self._begin_batch(max_lengths.tolist(), count=num_slots, use_cuda_graphs=use_cuda_graphs)
        if use_cuda_graphs and not self.has_position_limit:
            padding = round_up_size(source.shape[1]) - source.shape[1]  # so that there are few shapes to capture
            source = pad(source, (*(0, 0) * (source.dim() - 2), 0, padding))  # N S, or N S F
        first = first_tokens(self.special_tokens.bos, count, device)
        constraints = constraints or ConstraintTensors()
        no_empty_slots = torch.zeros_like(lengths, dtype=torch.bool)  # `_enter` marks them
        inputs = SearchInputs(
            source=source,
            lengths=lengths,
            max_lengths=max_lengths,
            keys=keys.to(device),
            constraints=constraints,
            first_tokens=first,
            empty=no_empty_slots,
        )
        state = self._enter(inputs, progress.sources, progress, first=True)
        num_entered = max(progress.sources) + 1  # sources 0 … num_entered − 1 have entered the batch
        results: dict[int, list[Hypothesis]] = {}  # by source
        pending: AsyncRead | None = None  # a copy of `done` to the CPU that has been started
        while progress.sources:
            state = self._step(state, progress)
            preemption_point()  # may wait while others need the device, or end the search by an error
            yield progress.sources, state
            if pending is None:
                if source.is_cuda and max(progress.steps) % CHECK_INTERVAL and not progress.all_at_limit:
                    continue  # not a step after which `done` is read
                pending = AsyncRead(state.done)
                if source.is_cuda and not progress.all_at_limit:
                    continue  # read it after the next step, so that the device does not wait
            done = pending.read()
            pending = None
            occupied = [slot for slot, number in enumerate(progress.sources) if number != EMPTY_SLOT]
            leaving = [slot for slot in occupied if done[slot]]
            if not leaving or 4 * len(leaving) < len(occupied):  # wait until a quarter is done
                continue
            ended = state.without_decoders
            if len(leaving) < len(progress.sources):  # not all slots
                ended = select_sources(ended, torch.tensor(leaving, device=device))
            results |= zip((progress.sources[slot] for slot in leaving), self.strategy.hypotheses(ended))
            entering = range(num_entered, min(num_entered + len(leaving), count))
            if entering:
                slots = torch.tensor(leaving[: len(entering)], device=device)
                replace_sources(state, slots, self._enter(inputs, entering, progress))
                num_entered += len(entering)
            elif len(leaving) == len(occupied):  # all sources are done, and none waits
                break
            for n, slot in enumerate(leaving):
                progress.sources[slot], progress.steps[slot] = entering[n] if n < len(entering) else EMPTY_SLOT, 0
            state = self._shrink(state, progress)
        return [results[number] for number in range(count)]

    def _begin_batch(self, max_lengths: list[int], count: int, use_cuda_graphs: bool) -> BatchProgress:
        """Return the progress of a batch that begins with sources 0 … `count` − 1: its slots and its cache length.

        A slot is a row of the batch for one source. `max_lengths` are the length limits of all targets. With CUDA
        graphs, sizes are rounded up, so that there are few shapes to capture.
        """
        max_length = max(max_lengths)
        if use_cuda_graphs and not self.has_position_limit:  # a model with a largest position may not have more
            max_length = round_up_size(max_length)
        initial = INITIAL_CACHE_LENGTH_GPU if use_cuda_graphs else INITIAL_CACHE_LENGTH
        # caches grow later, unless each new length would have to be both compiled and captured
        cache_length = max_length if self.compile and use_cuda_graphs else min(max_length, initial)
        progress = BatchProgress(
            max_length=max_length,
            cache_length=cache_length,
            sources=list(range(count)),
            steps=[],  # set below
            use_cuda_graphs=use_cuda_graphs,
            max_lengths=max_lengths,
        )
        progress.sources += [EMPTY_SLOT] * (progress.num_slots(count) - count)  # up to the rounded size
        progress.steps = [0] * len(progress.sources)
        return progress

    @cached_property
    def has_position_limit(self) -> bool:
        """Whether a model has a largest position, as learned position embeddings have.

        Sources and targets then cannot be padded to any length.
        """
        limits = ((model.max_source_length, position_limit(model.decoder)) for model in self.models)
        return any(limit is not None for pair in limits for limit in pair)

    def _shrink(self, state: SearchState, progress: BatchProgress) -> SearchState:
        """Return the state without slots (rows of the batch) that have no source, and remove them from `progress`.

        `progress.sources` has the number of the source in each slot, or EMPTY_SLOT. With CUDA graphs, a batch of
        MIN_SHRINK_FACTOR or more slots stays as it is until it becomes that many times smaller, since each shape has to
        be captured.
        """
        occupied = [slot for slot, number in enumerate(progress.sources) if number != EMPTY_SLOT]
        old_size, new_size = len(progress.sources), progress.num_slots(len(occupied))
        max_new_size = old_size - 1
        if progress.use_cuda_graphs and old_size >= MIN_SHRINK_FACTOR:
            max_new_size = min(max_new_size, old_size // MIN_SHRINK_FACTOR)
        if new_size > max_new_size:
            return state
        empty = [slot for slot, number in enumerate(progress.sources) if number == EMPTY_SLOT]
        slots = [*occupied, *empty[: new_size - len(occupied)]]  # `new_size` may be rounded up
        progress.sources = [progress.sources[slot] for slot in slots]
        progress.steps = [progress.steps[slot] for slot in slots]
        return select_sources(state, torch.tensor(slots, dtype=torch.long, device=state.done.device))

    def _enter(
        self, inputs: SearchInputs, numbers: Sequence[int], progress: BatchProgress, first: bool = False
    ) -> SearchState:
        """Return the initial state of some of the sources in `inputs`, to be written into free slots of the batch.

        `numbers` are the indices of the sources. EMPTY_SLOT (−1) among them leaves a slot empty: it holds source 0,
        marked as done. `first`: these sources begin a batch, so that a CUDA graph may compute their state, into the
        same tensors as for an earlier batch.
        """
        device = inputs.source.device
        if list(numbers) != list(range(len(inputs.source))):  # not all sources, in their order
            rows = torch.tensor([max(0, number) for number in numbers], device=device)
            inputs = map_tensors(lambda leaf: leaf[rows], inputs)
        empty = torch.zeros(len(numbers), dtype=torch.bool, device=device)
        if EMPTY_SLOT in numbers:
            empty = torch.tensor([number == EMPTY_SLOT for number in numbers], device=device)
        inputs = replace(inputs, empty=empty)
        start = self.graphed_start if first and progress.use_cuda_graphs else self._start
        return start(inputs, progress.cache_length, progress.max_length)

    def _start(self, inputs: SearchInputs, cache_length: int, max_length: int) -> SearchState:
        """Encode the sources of `inputs` with each model and return the initial state of their search.

        `cache_length` is the number of positions for which caches are allocated, `max_length` the largest number of
        output tokens.
        """
        rows, batch = self.strategy.rows_per_source, len(inputs.source)
        starts = [
            model.start_decoding(
                inputs.source, inputs.lengths, beam=rows, max_length=cache_length, first=inputs.first_tokens
            )
            for model in self.models
        ]
        reorders_rows = self.strategy.reorders_rows
        decoders = [DecoderState.start(start, batch, reorders_rows=reorders_rows) for start in starts]
        source_mask = None
        if self.strategy.needs_attention:  # attention is that of the first model
            source_mask = _source_mask(inputs, decoders[0].memory)
        state = SearchState(
            tokens=starts[0].tokens.unflatten(0, (batch, rows)),
            step=torch.zeros_like(inputs.max_lengths),
            max_length=inputs.max_lengths,
            done=inputs.empty,  # slots without a source have nothing to search
            key=inputs.keys,
            decoders=decoders,
            constraints=inputs.constraints,
            source_mask=source_mask,
        )
        state = self.strategy.init_state(state, max_length)
        state.processors = [processor.init_state(state) for processor in self.logits_processors]
        # rows are changed in place later, so tensors whose elements share memory are copied
        return map_tensors(lambda leaf: leaf.contiguous() if 0 in leaf.stride() else leaf, state)

    def _step(self, state: SearchState, progress: BatchProgress) -> SearchState:
        """Return the state after one decoding step, which is replayed as a CUDA graph if `progress.use_cuda_graphs`.

        Caches that are full are grown first. `progress.steps` counts the steps of each source in the batch.
        """
        if max(progress.steps) >= progress.cache_length and progress.cache_length < progress.max_length:
            state = self._grow_caches(state, progress)
        progress.steps = [step + 1 for step in progress.steps]
        return self.graphed_step(state) if progress.use_cuda_graphs else self.decode_step(state)

    def decode_step(self, state: SearchState) -> SearchState:
        """Generate one token for every row (hypothesis), and return the state after it.

        Each model of the ensemble decodes the last token of every row (B sources · K rows), then the strategy selects
        the next tokens by the mean probabilities. `ancestors` (B K S) is the row whose cache holds each of S positions
        of a row, since caches are not reordered; None if each row continues its own.

        Shapes are static, and nothing here depends on the values of tensors: a GPU never waits, and the step can be
        compiled and captured. Caches and positions are updated in place.
        """
        batch, rows = state.tokens.shape
        all_logits: list[Tensor] = []
        decoders: list[DecoderState] = []
        attention = None
        for number, (model, decoder) in enumerate(zip(self.models, state.decoders)):
            # collects the attention weights of the first model, by the path of the layer
            records = self.strategy.needs_attention and number == 0
            recorder: dict[str, list[Tensor]] | None = {} if records else None
            positions = decoder.positions.clamp(max=decoder.max_positions - 1)  # rows that are done remain at the last
            layout = SequenceLayout.continuation(positions.flatten(), max_length=decoder.max_positions)
            ancestors = decoder.ancestors
            if ancestors is not None:  # the token that is decoded now is in the cache of its own row
                own_row = torch.arange(rows, device=positions.device)[None, :, None].expand(batch, -1, 1)
                ancestors = ancestors.scatter(2, positions[..., None], own_row)
            context = Context(layout, decoder.memory, ancestors=ancestors, recorder=recorder)
            model_logits, cache = model.decode(state.tokens.flatten()[:, None], context, decoder.cache)
            assert cache is not None
            all_logits.append(kernel_input(model_logits[:, 0]).unflatten(0, (batch, rows)))
            decoders.append(replace(decoder, cache=cache, positions=decoder.positions.add_(1), ancestors=ancestors))
            # B K S: attention treats the K rows of a source as K queries; each layer was called once (index 0)
            if recorder is not None:
                attention = cross_attention(model, {path: weights[0] for path, weights in recorder.items()})
        logits = average_probabilities(all_logits)  # B K V
        is_done, parents = False, None
        if self.can_fuse:  # there are neither logits processors nor forced tokens, which no kernel supports
            state, suppressed = replace(state, decoders=decoders), self._suppressed_tokens(logits.device)
            is_done, parents = self.strategy.fused_step(state, logits, self.special_tokens, suppressed)
        if not is_done:
            state, parents = self._select(state, logits, log_sum_exp(logits), attention)  # a new state
        state.decoders = decoders if parents is None else self._reorder(decoders, parents)
        return state

    def _select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None = None
    ) -> tuple[SearchState, Tensor | None]:
        """Select the next tokens: restrict the logits, let the strategy select, and update the processors' states.

        Logits are B K V, `log_normalizer` (B K) is their log Σ exp, `attention` (B K S) are attention weights over the
        source. Returns the new state, and the row whose hypothesis each row continues (B K; None: its own).
        """
        logits = self._restrict(state, logits, log_normalizer)
        state, parents = self.strategy.select(state, logits, log_normalizer, attention)
        processors = [
            processor.update(own_state, state.tokens, parents)
            for processor, own_state in zip(self.logits_processors, state.processors)
        ]
        return replace(state, step=state.step + 1, processors=processors), parents

    def _restrict(self, state: SearchState, logits: Tensor, log_normalizer: Tensor) -> Tensor:
        """Return the logits (B K V) with −∞ for tokens that must not be generated next; they are changed in place.

        `log_normalizer` (B K) is log Σ exp of the logits, and so the logit with which a forced token has log p = 0.
        `state.step` (B) is the number of tokens generated so far. Forbidden are the tokens `suppressed`, those of
        `suppressed_first` right after the forced first tokens `forced_bos`, EOS before `min_length` tokens (but not as
        the last token before the length limit), and what the logits processors exclude. Forced are `forced_bos`, and
        with `force_eos_at_limit` EOS as the last token.
        """
        special, eos = self.special_tokens, self.special_tokens.eos
        if special.suppressed:
            logits = logits.index_fill_(-1, self._suppressed_tokens(logits.device), -torch.inf)
        if special.suppressed_first:
            at_first = (state.step == len(special.forced_bos))[:, None, None]
            first = list(special.suppressed_first)
            logits[..., first] = logits[..., first].masked_fill(at_first, -torch.inf)
        # B K: before EOS is forbidden; only used, and so only copied, if there are processors
        eos_logits = logits[..., eos].clone() if self.logits_processors else logits
        if special.min_length:
            too_short = state.step < torch.clamp(state.max_length - 1, max=special.min_length)
            logits[..., eos] = logits[..., eos].masked_fill(too_short[:, None], -torch.inf)
        for processor, own_state in zip(self.logits_processors, state.processors):
            logits = processor(state, own_state, logits)
        if self.logits_processors:  # if they leave no token, EOS is generated
            stuck = logits.amax(-1) == -torch.inf  # B K: no token is left
            logits[..., eos] = torch.where(stuck, eos_logits, logits[..., eos])
        if special.forced_bos or special.force_eos_at_limit:
            logits = at_least_float32(logits)  # so that log p of a forced token is exactly 0
        for number, token in enumerate(special.forced_bos):
            logits = _force_token(token, logits, log_normalizer, state.step == number)
        if special.force_eos_at_limit:
            logits = _force_token(eos, logits, log_normalizer, state.step + 1 == state.max_length)
        return logits

    def _suppressed_tokens(self, device: torch.device) -> Tensor:
        """Return the ids (N) of the tokens that are never generated, on a device.

        They are copied to it only once, because the device waits for each copy.
        """
        if device not in self._suppressed:
            self._suppressed[device] = torch.tensor(self.special_tokens.suppressed, dtype=torch.long, device=device)
        return self._suppressed[device]

    def _reorder(self, decoders: list[DecoderState], parents: Tensor) -> list[DecoderState]:
        """Let row k of each source continue the hypothesis of its row `parents[:, k]` (B K).

        Updates the state of each model, and returns these states. Recurrent states are reordered; key–value caches stay
        in place, and `ancestors` (B K S) records the row whose cache holds each position of a row.
        """
        batch, num_rows = parents.shape
        rows = (torch.arange(batch, device=parents.device)[:, None] * num_rows + parents).flatten()  # in B·K rows
        for model, decoder in zip(self.models, decoders):
            decoder.cache = model.reorder_state(decoder.cache, rows)
            decoder.positions = decoder.positions.gather(1, parents)
            if decoder.ancestors is not None:
                decoder.ancestors = gather_rows(decoder.ancestors, parents)
        return decoders

    def _grow_caches(self, state: SearchState, progress: BatchProgress) -> SearchState:
        """Return the state with key–value caches of twice the length, at most `progress.max_length` positions.

        Caches begin short, because attention to positions that are not used yet costs time. `progress.cache_length` is
        updated. `ancestors` (B K S: the row whose cache holds each of S positions of a row) grows as well.
        """
        new_positions = min(progress.max_length, 2 * progress.cache_length) - progress.cache_length
        progress.cache_length += new_positions
        decoders = []
        for model, decoder in zip(self.models, state.decoders):
            num_rows, num_positions = state.tokens.numel(), decoder.max_positions + new_positions
            # a model with fewer positions returns a smaller number than requested
            cache, max_positions = model.grow_state(decoder.cache, num_rows, num_positions)
            ancestors = decoder.ancestors
            if ancestors is not None:
                ancestors = pad(ancestors, (0, max_positions - decoder.max_positions))
            decoders.append(replace(decoder, cache=cache, max_positions=max_positions, ancestors=ancestors))
        return replace(state, decoders=decoders)


def average_probabilities(all_logits: list[Tensor]) -> Tensor:
    """Return the log of the mean probabilities of an ensemble, up to a constant, from the logits (… V) of each model.

    The logits of a single model are returned unchanged.
    """
    if len(all_logits) == 1:
        return all_logits[0]
    return torch.stack([at_least_float32(logits).log_softmax(-1) for logits in all_logits]).logsumexp(0)


def gather_rows(rows: Tensor, parents: Tensor) -> Tensor:
    """Return result[b, n] = rows[b, parents[b, n]]: rows are B K …, `parents` B N (0 … K−1), the result B N …."""
    index = parents.reshape(*parents.shape, *(1,) * (rows.dim() - 2)).expand(-1, -1, *rows.shape[2:])
    return rows.gather(1, index)


def write_tokens(output_tokens: Tensor, step: Tensor, tokens: Tensor) -> Tensor:
    """Return a copy of the output tokens (B K T) with `tokens` (B K) at position `step[b]` of each source b.

    Sources that are done may be at a step beyond T, whose token replaces the last one.
    """
    positions = step[:, None, None].expand(*tokens.shape, 1).clamp(max=output_tokens.shape[-1] - 1)
    return output_tokens.scatter(2, positions, tokens[..., None])


def _source_mask(inputs: SearchInputs, memory: Memory | None) -> Tensor:
    """Return which positions of the encoder output (`memory`) are not padding, B S truth values.

    An encoder may shorten its source, so S and the lengths are taken from the memory, if it has lengths.
    """
    num_positions, lengths = inputs.source.shape[1], inputs.lengths
    if memory is not None and memory.layout.lengths is not None:
        num_positions, lengths = memory.states.shape[1], memory.layout.lengths
    return torch.arange(num_positions, device=lengths.device) < lengths[:, None]


def _force_token(token: int, logits: Tensor, log_normalizer: Tensor, sources: Tensor) -> Tensor:
    """Return the logits (B K V) with which those sources that `sources` (B) marks as True can only generate `token`.

    Its logit becomes `log_normalizer` (B K), log Σ exp of the logits, so that its log p is 0; all others become −∞.
    """
    forced = torch.full_like(logits, -torch.inf)
    forced[..., token] = log_normalizer
    return torch.where(sources[:, None, None], forced, logits)
