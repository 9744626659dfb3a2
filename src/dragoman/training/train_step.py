"""One training step: forward and backward passes over its batches, then the optimizer step.

On a GPU no step waits for the device: sums are accumulated there, and values that change from step to step (learning
rate, loss scale) are written into tensors beforehand. Packed batches have one shape, so the step is compiled once.
Shapes that come again are replayed as CUDA graphs, without launching each kernel from Python.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.config import TrainingConfig
from dragoman.cuda_graphs import CudaGraphCache
from dragoman.data import Batch, Batches, DataPosition
from dragoman.data.batch_arrays import halve_batch
from dragoman.errors import UserError
from dragoman.objectives import Loss, Objective
from dragoman.parts.cpu_products import use_fastest_products
from dragoman.parts.precision import accumulator_dtype
from dragoman.seeding import seed_generators
from dragoman.training.ema import WeightAverage
from dragoman.training.optimizer import clip_grad_norm, set_found_inf, set_learning_rate
from dragoman.training.parallel import ParallelStrategy, ProcessGroup


@dataclass(frozen=True)
class StepBatches:
    """The batches of a step that one process computes, each with its number within the step.

    `target_tokens` and `num_sentences` are counted over `batches` of this process; the training loop replaces them by
    the sums over all processes.
    """

    batches: list[tuple[int, Batch]]
    next_position: DataPosition  # place in the data at which the next step starts, on all processes
    target_tokens: int
    num_sentences: int
    dummy_batch: tuple[int, Batch] | None = None  # computed without effect, because another process has one batch more


def iterate_steps(
    batches: Batches,
    position: DataPosition,
    accumulation_steps: int,
    processes: ProcessGroup | None = None,
    pinned: bool = False,
    lockstep: bool = False,
) -> Iterator[StepBatches]:
    """Yield the batches that this process computes in each training step, from a position in the data on, without end.

    Batch n of a step belongs to rank n mod world_size.

    Args:
        batches: builds the batches of all epochs.
        position: epoch and place within it at which the first step starts.
        accumulation_steps: number of batches of a step, over all processes.
        processes: the processes of a distributed training; None: a single one.
        pinned: put batches into pinned memory, from which a GPU copies asynchronously.
        lockstep: all ranks must compute the same number of batches: those with one less also get the step's first
            batch as `dummy_batch`, which is to have no effect.
    """
    rank, world_size = (processes.rank, processes.world_size) if processes else (0, 1)
    indices = batches.iterate_indices(position)
    while True:
        planned = list(islice(indices, accumulation_steps))  # pairs, epoch and next position of each batch of the step
        numbers = list(range(rank, accumulation_steps, world_size))  # of the batches of this process
        max_batches = math.ceil(accumulation_steps / world_size)  # of any process
        dummies = [0] if lockstep and len(numbers) < max_batches else []
        built = []
        for number in numbers + dummies:
            pair_indices, epoch, _ = planned[number]
            batch = batches.build_batch(pair_indices, epoch)
            built.append((number, batch.pin_memory() if pinned else batch))
        dummy = built.pop() if dummies else None
        tokens = sum(batch.target_tokens for _, batch in built)
        sentences = sum(batch.num_sentences for _, batch in built)
        _, _, next_position = planned[-1]
        yield StepBatches(built, next_position, target_tokens=tokens, num_sentences=sentences, dummy_batch=dummy)


#: messages of libraries, and of the allocator of the CPU, that raise other errors than torch.OutOfMemoryError
OOM_MESSAGES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or one of the errors that it was raised from, is an out-of-memory error; not if it is None."""
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in OOM_MESSAGES):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


class InsufficientMemoryError(UserError):
    """The smallest possible computation does not fit into memory."""


class BatchSplitter:
    """Splits batches that are as large as one that did not fit into memory, by halving them repeatedly.

    What is computed over a whole batch (batch norm, the balance of experts) is computed over each part, as it is with
    gradient accumulation.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        """Start without a limit: batches are split only after one did not fit, which `log` prints."""
        self.log = log
        self.max_positions = math.inf  # most tokens, with padding, of a part that may still fit
        self.max_parts = 1  # largest number of parts that a batch had to be split into so far

    def split(self, batch: Batch) -> list[Batch]:
        """Halve a batch until its parts have at most `max_positions` tokens, padding included, and return the parts.

        A part with a single pair is not halved.
        """
        if batch.num_positions <= self.max_positions or len(batch) < 2:
            return [batch]
        return [part for half in halve_batch(batch) for part in self.split(half)]

    def split_further(self, part: Batch, batch: Batch) -> None:
        """Record that `part` of `batch` did not fit into memory, so that later calls of `split` make smaller parts.

        The user is told if `batch` now needs more parts than any before. Raise an InsufficientMemoryError if the part
        is a single pair, which cannot be split.
        """
        if len(part) < 2:
            raise InsufficientMemoryError(
                f"out of memory with a single pair of {max(part.source_tokens, part.target_tokens):,} tokens: lower "
                "data.max_length, set training.gradient_checkpointing=true, or choose a smaller system"
            )
        # fewer tokens of source and target, with padding, than this part has
        self.max_positions = part.num_positions - 1
        parts = len(self.split(batch))
        if parts > self.max_parts:
            self.max_parts = parts
            # of the longer side, with padding: the unit of `training.batch_tokens`
            tokens = max(batch.source.shape[0] * batch.source.shape[1], batch.target.numel())
            self.log(
                f"a batch of {tokens:,} tokens does not fit into memory: it is computed in {parts} parts from now on, "
                f"with the same result; training.batch_tokens={tokens // parts} would avoid this"
            )


MAX_STEP_GRAPHS = 256  # batch shapes that are kept as CUDA graphs


class TrainStep:
    """Runs training steps on one device.

    Attributes:
        loss_sums: sums since they were last reset, on the device: loss, negative log-likelihood, and the number of
            labels in batches with a non-finite loss.
        gradient_norm: norm of the gradient of the last step, before clipping.
        skipped_steps: number of steps with a non-finite gradient, which changed nothing.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        strategy: ParallelStrategy | None = None,
        average: WeightAverage | None = None,
        packed: bool = False,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Compile the objective if that is possible, and create an empty cache of CUDA graphs on a GPU.

        Args:
            objective: computes the loss of a batch, and contains the model.
            optimizer: of the model's trained weights.
            config: training settings: seed, precision, gradient clipping, compilation.
            strategy: how weights are distributed over processes; by default a single process on the CPU has them all.
            average: moving average of the weights, updated after every step.
            packed: all batches are packed, so that one compiled function fits them (with `training.compile`).
            log: prints a message when a batch does not fit into memory and is split.
        """
        self.optimizer, self.average = optimizer, average
        self.strategy = strategy = strategy or ParallelStrategy()
        self.device = device = strategy.device
        self.seed, self.clip_norm, self.precision = config.seed, config.resolved("clip_norm"), config.precision
        self.weights = [weight for weight in objective.parameters() if weight.requires_grad]
        # of loss, negative log-likelihood, and labels with a non-finite loss; float64, where the device has it, makes
        # the sums independent of the order
        self.loss_sums = torch.zeros(3, device=device, dtype=accumulator_dtype(device))
        self.gradient_norm, self.skipped_steps = torch.zeros((), device=device), torch.zeros((), device=device)
        self.loss_scale = torch.ones((), device=device)  # 1 / divisor of the step: a tensor, which CUDA graphs read
        self.splitter = BatchSplitter(log)
        use_fastest_products(objective)
        self.objective: Callable[[Batch, int], Loss] = objective
        if packed and config.compile and strategy.supports_compile:
            # each shape of a batch, or of a part of it, is compiled on its own
            torch._dynamo.config.recompile_limit = max(MAX_STEP_GRAPHS, torch._dynamo.config.recompile_limit)
            self.objective = torch.compile(objective, fullgraph=True, dynamic=False)
        # static shapes: each step on batches of one shape is the same computation, without sampling
        use_graphs = device.type == "cuda" and objective.static_shapes and strategy.supports_cuda_graphs
        # gradient checkpointing reads the state of the random generators, which cannot be captured
        use_graphs = use_graphs and not config.gradient_checkpointing
        self.graphs = _graph_cache(device) if use_graphs else None

    def __call__(
        self,
        batches: Sequence[tuple[int, Batch]],
        step: int,
        learning_rate: float,
        divisor: int,
        dummy_batch: tuple[int, Batch] | None = None,
    ) -> None:
        """Run one step: forward and backward passes over all batches, then the update of the weights.

        If a batch does not fit into memory, it is split into smaller parts, and the step starts again. If a single pair
        or the optimizer step does not fit, an InsufficientMemoryError is raised.

        Args:
            batches: batches of this process, each with its number within the step.
            step: number of the step, from 1.
            learning_rate: of this step.
            divisor: the summed loss is divided by it: the target tokens, or the sentences, of all processes.
            dummy_batch: a batch, with its number, to compute without any effect, because another process has one more.
        """
        set_learning_rate(self.optimizer, learning_rate)
        if self.average is not None:
            self.average.set_step(step)
        self.loss_scale.fill_(1 / divisor)
        sums = self.loss_sums.clone()  # from before the step, to undo it
        while True:  # until all parts of all batches fit into memory
            failed: tuple[Batch, Batch] | None = None  # a part that does not fit, and the batch that it belongs to
            for part, batch in self._iterate_parts(batches, step):
                try:
                    if self.graphs is None:
                        self._forward_backward(self._to_device(part), part.max_lengths, step)
                    else:
                        forward_backward = partial(self._forward_backward, max_lengths=part.max_lengths, step=step)
                        self._run_as_graph(f"{part.max_lengths}", part.tensors(), forward_backward)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    failed = part, batch
                    break
            if failed is None:
                break
            self._undo_and_split(*failed, sums, step)  # after the except block, which holds on to the activations
        if dummy_batch is not None:
            sums = self.loss_sums.clone()  # without the losses of the dummy
            self.loss_scale.zero_()  # so that its gradients are 0
            _, dummy = dummy_batch
            self._forward_backward(self._to_device(dummy), dummy.max_lengths, step)
            self.loss_sums.copy_(sums)
        self.strategy.reduce_gradients(self.weights)
        try:
            if self.graphs is None:
                self._update_weights()
            else:
                self._run_as_graph("update", tensors={}, function=lambda _: self._update_weights())
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InsufficientMemoryError(
                "weights, gradients and optimizer state do not fit into memory: choose a smaller system"
            ) from None

    def _iterate_parts(self, batches: Sequence[tuple[int, Batch]], step: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield each part of each batch together with its batch, and seed the random generators before each batch.

        A part is the whole batch, unless batches of this size did not fit into memory. `batches` have their numbers
        within the step. The random numbers of a batch depend on seed, step and number of the batch only. These three
        are hashed into one seed, because the generator of a CPU uses only 32 bits of its seed.
        """
        for number, batch in batches:
            hashed = np.random.SeedSequence((self.seed, step, number)).generate_state(1, np.uint64)
            seed_generators(int(hashed[0]))
            for part in self.splitter.split(batch):
                yield part, batch

    def _undo_and_split(self, part: Batch, batch: Batch, sums: Tensor, step: int) -> None:
        """Undo a step in which `part` of `batch` did not fit into memory, and split such batches further from now on.

        Gradients and CUDA graphs are discarded to free their memory, and the loss sums from before the step (`sums`)
        are restored. Sharded weights are a UserError, because their processes must compute equal numbers of batches.
        """
        if self.strategy.lockstep:
            raise UserError(
                f"out of memory at step {step:,}: with training.parallelism=sharded, all processes must compute the "
                "same number of batches, so that no batch can be split; train a new run with a lower "
                "training.batch_tokens"
            )
        self.splitter.split_further(part, batch)
        self.loss_sums.copy_(sums)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphs is not None:
            self.graphs = _graph_cache(self.device)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    def _to_device(self, batch: Batch) -> dict[str, Tensor]:
        """Return the tensors of a batch by name, copied to the device, asynchronously if they are in pinned memory."""
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.tensors().items()}

    def _run_as_graph(
        self, name: str, tensors: dict[str, Tensor], function: Callable[[dict[str, Tensor]], None]
    ) -> None:
        """Call `function` on copies of the tensors on the device, which always lie in the same memory.

        `function` gets the copies by name. If calls with the same `name` and shapes of tensors come again, they are
        captured as a CUDA graph, which later ones replay.
        """
        assert self.graphs is not None
        graph_key = (name, *((key, tensor.shape, tensor.dtype) for key, tensor in tensors.items()))
        entry = self.graphs.lookup(
            graph_key, lambda: {key: torch.empty_like(tensor, device=self.device) for key, tensor in tensors.items()}
        )
        for key, tensor in tensors.items():
            entry.static[key].copy_(tensor, non_blocking=True)  # `static`: the tensors that the graph reads
        self.graphs.run(entry, lambda: function(entry.static))

    def _forward_backward(self, tensors: dict[str, Tensor], max_lengths: tuple[int, int] | None, step: int) -> None:
        """Add the gradients of a batch to those of the step, and its losses to `loss_sums`.

        `loss_sums` are loss, negative log-likelihood, and the number of labels in batches whose loss is not finite. The
        loss of such a batch is not added, but its gradient is, so that the update skips the step.

        Args:
            tensors: tensors of the batch by name, on the device.
            max_lengths: lengths of the longest source and target in a packed batch; None if it is padded.
            step: number of the training step, on which some objectives depend.
        """
        batch = batch_from_tensors(tensors, max_lengths)
        bfloat16 = self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if bfloat16 else nullcontext():
            loss = self.objective(batch, step)
        (loss.total * self.loss_scale).backward()
        total, zero = loss.total.detach(), torch.zeros_like(self.loss_scale)
        finite = torch.stack((total, loss.metrics["nll_loss"].float(), zero))
        nonfinite = torch.stack((zero, zero, loss.num_labels.float()))
        self.loss_sums += torch.where(total.isfinite(), finite, nonfinite)

    @torch.no_grad()
    def _update_weights(self) -> None:
        """Clip the gradients and update weights and moving average; then clear the gradients.

        If the norm of the gradient is not finite, the step is skipped and counted, without waiting for the device.
        """
        norm = clip_grad_norm(self.weights, self.clip_norm)
        skip = ~norm.isfinite()
        set_found_inf(self.optimizer, skip)
        self.optimizer.step()
        self.gradient_norm.copy_(norm)
        self.skipped_steps += skip
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=self.graphs is None)  # graphs write gradients at fixed addresses


def batch_from_tensors(tensors: dict[str, Tensor], max_lengths: tuple[int, int] | None) -> Batch:
    """Return a batch with these tensors, by name, but without the indices of its pairs and with token counts of 0.

    The loss does not need these, and torch.compile would recompile for each value of a count. `max_lengths` are the
    lengths of the longest source and target of a packed batch; None: the batch is padded.
    """
    values: dict[str, Any] = {**tensors, "indices": None, "source_tokens": 0, "target_tokens": 0}
    return Batch(**values, max_lengths=max_lengths)


def _graph_cache(device: torch.device) -> CudaGraphCache[dict[str, Tensor]]:
    """Return an empty cache of at most `MAX_STEP_GRAPHS` CUDA graphs of training steps, one per shape of batches."""
    return CudaGraphCache(device, MAX_STEP_GRAPHS)
