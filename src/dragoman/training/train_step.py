"""One training step: forward and backward passes over its batches, then the optimizer step.

On a GPU no step waits for the device: sums are accumulated there, and values that change from step to step (learning
rate, loss scale) are written into tensors beforehand. Packed batches have one shape, so the step is compiled once.
Shapes that come again are replayed as CUDA graphs, without launching each kernel from Python.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.cuda_graphs import CudaGraphCache
from dragoman.data import Batch
from dragoman.errors import UserError
from dragoman.objectives import Loss, Objective
from dragoman.training.ema import WeightAverage
from dragoman.training.oom import BatchSplitter, InsufficientMemoryError, is_out_of_memory
from dragoman.training.optimizer import clip_grad_norm, set_found_inf, set_learning_rate
from dragoman.training.parallel import ParallelStrategy
from dragoman.training.process_group import ProcessGroup

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
        average: WeightAverage | None,
        *,
        device: torch.device,
        seed: int,
        clip_norm: float,
        precision: str,
        use_compile: bool,
        use_cuda_graphs: bool,
        splitter: BatchSplitter | None = None,
        strategy: ParallelStrategy | None = None,
    ) -> None:
        self.optimizer, self.average = optimizer, average
        self.device, self.seed, self.clip_norm, self.precision = device, seed, clip_norm, precision
        self.weights = [weight for weight in objective.parameters() if weight.requires_grad]
        self.loss_sums = torch.zeros(3, device=device, dtype=torch.float64)  # float64: independent of the order
        self.gradient_norm = torch.zeros((), device=device)
        self.skipped_steps = torch.zeros((), device=device)
        self.loss_scale = torch.ones((), device=device)
        self.objective: Callable[[Batch, int], Loss] = objective
        if use_compile:
            torch._dynamo.config.recompile_limit = max(MAX_STEP_GRAPHS, torch._dynamo.config.recompile_limit)
            self.objective = torch.compile(objective, fullgraph=True, dynamic=False)
        self.graphs = _graph_cache(device) if use_cuda_graphs and device.type == "cuda" else None
        self.splitter = splitter or BatchSplitter()
        self.strategy = strategy or ParallelStrategy(ProcessGroup(), device)

    def __call__(
        self,
        batches: Sequence[tuple[int, Batch]],
        step: int,
        learning_rate: float,
        divisor: int,
        dummy_batch: tuple[int, Batch] | None = None,
    ) -> None:
        """Run one step.

        Args:
            batches: batches of this process, each with its number within the step.
            step: number of the step, from 1.
            divisor: the summed loss is divided by it: the target tokens, or the sentences, of all processes.
            dummy_batch: a batch to compute without any effect, because another process has one more.
        """
        set_learning_rate(self.optimizer, learning_rate)
        if self.average is not None:
            self.average.set_step(step)
        self.loss_scale.fill_(1 / divisor)
        sums = self.loss_sums.clone()
        while True:
            failed: tuple[Batch, Batch] | None = None
            for part, batch in self._parts(batches, step):
                try:
                    if self.graphs is None:
                        self._forward_backward(self._to_device(part), part.max_lengths, step)
                    else:
                        run = partial(self._forward_backward, max_lengths=part.max_lengths, step=step)
                        self._replay(f"{part.max_lengths}", part.tensors(), run)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    failed = part, batch
                    break
            if failed is None:
                break
            self._split_further(*failed, sums, step)  # after the except block, which holds on to the activations
        if dummy_batch is not None:
            sums = self.loss_sums.clone()
            self.loss_scale.zero_()
            self._forward_backward(self._to_device(dummy_batch[1]), dummy_batch[1].max_lengths, step)
            self.loss_sums.copy_(sums)
        self.strategy.reduce_gradients(self.weights)
        try:
            if self.graphs is None:
                self._update()
            else:
                self._replay("update", {}, lambda _: self._update())
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InsufficientMemoryError(
                "weights, gradients and optimizer state do not fit into memory: choose a smaller system"
            ) from None

    def _parts(self, batches: Sequence[tuple[int, Batch]], step: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield each part of each batch with its batch, and seed the random generators per batch.

        The random numbers of a batch depend on seed, step and its number only. They are mixed, since the generator of
        a CPU uses 32 bits of its seed.
        """
        for number, batch in batches:
            mixed = np.random.SeedSequence((self.seed, step, number)).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))
            for part in self.splitter.split(batch):
                yield part, batch

    def _split_further(self, part: Batch, batch: Batch, sums: Tensor, step: int) -> None:
        """Split batches like this one further, and discard all gradients of the step, which may be incomplete."""
        if self.strategy.lockstep:
            raise UserError(
                f"out of memory at step {step:,}: with sharded weights all processes compute the same number of "
                "batches, so none can be split; train a new run with a lower training.batch_tokens"
            )
        self.splitter.split_further(part, batch)
        self.loss_sums.copy_(sums)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphs is not None:
            self.graphs = _graph_cache(self.device)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _to_device(self, batch: Batch) -> dict[str, Tensor]:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.tensors().items()}

    def _replay(self, name: str, tensors: dict[str, Tensor], work: Callable[[dict[str, Tensor]], None]) -> None:
        """Run work on copies of the tensors, as a CUDA graph if it has been captured for their shapes."""
        assert self.graphs is not None
        key = (name, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))
        entry = self.graphs.lookup(
            key, lambda: {name: torch.empty_like(tensor, device=self.device) for name, tensor in tensors.items()}
        )
        for name, tensor in tensors.items():
            entry.static[name].copy_(tensor, non_blocking=True)
        self.graphs.run(entry, lambda: work(entry.static))

    def _forward_backward(self, tensors: dict[str, Tensor], max_lengths: tuple[int, int] | None, step: int) -> None:
        """Add the gradients of a batch, and its losses to the sums."""
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
    def _update(self) -> None:
        """Update the weights, unless the gradient is not finite."""
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
    """Make a batch of tensors alone; the compiler would take its counts for constants, and compile it each time."""
    values: dict[str, Any] = {**tensors, "indices": None, "source_tokens": 0, "target_tokens": 0}
    return Batch(**values, max_lengths=max_lengths)


def _graph_cache(device: torch.device) -> CudaGraphCache[dict[str, Tensor]]:
    return CudaGraphCache(device, MAX_STEP_GRAPHS)
