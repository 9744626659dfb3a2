"""A step of training: loss and gradients of its batches, then the update; compiled and replayed where that is faster.

On a GPU nothing in it waits for the device: what is counted is counted there, and what varies from step to step
(learning rate, number of answers) is filled into tensors beforehand. Packed batches have one shape, so that the step is
compiled once. Batches of a shape that has come before are replayed as one CUDA graph, without a launch from Python for
each kernel.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.data import Batch
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.objectives import Objective
from dragoman.training.ema import WeightAverage
from dragoman.training.oom import BatchSplitter, InsufficientMemoryError, is_out_of_memory
from dragoman.training.optimizer import clip_grad_norm, set_found_inf, set_learning_rate
from dragoman.training.parallel import ParallelStrategy
from dragoman.training.process_group import ProcessGroup

GRAPHS = 256  # shapes of batches that are kept as graphs
NO_PAIRS: Any = None


class LossModule(nn.Module):
    """Model and objective as one module, from tensors to loss, which is what is compiled and what is distributed."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, tensors: dict[str, Tensor], longest: tuple[int, int] | None, step: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, how unlikely the answers were, and how many there are; sums all."""
        batch = Batch(**tensors, indices=NO_PAIRS, source_tokens=0, target_tokens=0, max_lengths=longest, doubled=False)
        loss = self.objective(self.model, batch, step)
        return loss.total, loss.metrics["likelihood"], loss.count


class TrainStep:
    """Does steps of training on one device.

    `sums` gathers, on the device, what was lost over all answers, how unlikely they were, and how many answers stood in
    batches whose loss was no number; `norm` is the gradient's norm at the last step, `skipped` the number of steps in
    which it was no number, and which changed nothing.
    """

    def __init__(
        self,
        loss_module: nn.Module,
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
        self.loss_module, self.optimizer, self.average = loss_module, optimizer, average
        self.device, self.seed, self.limit, self.precision = device, seed, clip_norm, precision
        self.weights = [weight for weight in loss_module.parameters() if weight.requires_grad]
        self.loss_sums = torch.zeros(3, device=device, dtype=torch.float64)  # sums that do not depend on their order
        self.gradient_norm = torch.zeros((), device=device)
        self.skipped_steps = torch.zeros((), device=device)
        self.share = torch.ones((), device=device)  # 1 / divisor
        self.loss: Callable[..., Any] = loss_module
        if use_compile:
            torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
            self.loss = torch.compile(loss_module, fullgraph=True, dynamic=False)
        self.graphs = Graphs(device) if use_cuda_graphs and device.type == "cuda" else None
        self.splitter = splitter or BatchSplitter()
        self.strategy = strategy or ParallelStrategy(ProcessGroup(), device)

    def __call__(
        self,
        group: Sequence[tuple[int, Batch]],
        step: int,
        rate: float,
        divisor: int,
        idle: tuple[int, Batch] | None = None,
    ) -> None:
        """One step, counted from 1, over batches that are numbered within it.

        The summed loss is divided by `divisor`: the target tokens, or the sentences, of all batches of all processes.
        On many processes `group` are the batches of this one, and `idle` is one that counts for nothing here.
        """
        set_learning_rate(self.optimizer, rate)
        if self.average is not None:
            self.average.set_step(step)
        self.share.fill_(1 / divisor)
        sums = self.loss_sums.clone()
        while not self._learn_all(group, step):
            self._start_over(sums)
        if idle is not None:
            sums = self.loss_sums.clone()
            self.share.zero_()
            self._learn_all([idle], step)
            self.loss_sums.copy_(sums)
        self.strategy.reduce_gradients(self.weights)
        try:
            self._do("update", self._update)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InsufficientMemoryError(
                "weights, gradients and the optimiser's state do not fit the memory: choose a smaller system"
            ) from None

    def _learn_all(self, group: Sequence[tuple[int, Batch]], step: int) -> bool:
        """Add the gradients of all batches; False where memory ran out over one, which will be in more parts then."""
        for number, batch in group:
            # the random numbers of a batch follow from seed, step and its number alone; mixed, because a processor's
            # generator looks at 32 bits of its seed
            mixed = np.random.SeedSequence((self.seed, step, number)).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))
            for part in self.splitter.split(batch):
                try:
                    self._learn(part, step)
                    continue
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    if self.strategy.lockstep:
                        raise UserError(
                            f"memory ran out at step {step:,}, and where weights are sharded all processes must do the "
                            "same: start anew with a lower training.batch_tokens"
                        ) from None
                self.splitter.split_further(part, batch)  # only here, where the error no longer holds what was computed
                return False
        return True

    def _start_over(self, sums: Tensor) -> None:
        """Forget all gradients of the step, some of which may be half added, and whatever else takes up memory."""
        self.loss_sums.copy_(sums)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphs is not None:
            self.graphs = Graphs(self.device)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _learn(self, batch: Batch, step: int) -> None:
        tensors = batch.tensors()
        if self.graphs is None:
            moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}
            self._gradients(moved, batch.max_lengths, step)
        else:
            self.graphs.run(
                tensors, lambda static: self._gradients(static, batch.max_lengths, step), f"{batch.max_lengths}"
            )

    def _gradients(self, tensors: dict[str, Tensor], longest: tuple[int, int] | None, step: int) -> None:
        """Add a batch's gradients, and what it lost."""
        with self._autocast():
            total, likelihood, count = self.loss(tensors, longest, step)
        (total * self.share).backward()
        good = total.detach().isfinite()
        lost = torch.stack((total.detach(), likelihood.float(), torch.zeros_like(self.share)))
        nothing = torch.stack((torch.zeros_like(self.share), torch.zeros_like(self.share), count.float()))
        self.loss_sums += torch.where(good, lost, nothing)

    @torch.no_grad()
    def _update(self) -> None:
        """Change the weights, unless the gradient is no number."""
        norm = clip_grad_norm(self.weights, self.limit)
        bad = ~norm.isfinite()
        set_found_inf(self.optimizer, bad)
        self.optimizer.step()
        self.gradient_norm.copy_(norm)
        self.skipped_steps += bad
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=self.graphs is None)  # a graph finds the gradients where they were

    def _do(self, name: str, function: Callable[[], None]) -> None:
        if self.graphs is None:
            function()
        else:
            self.graphs.run({}, lambda _: function(), name)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


class Graphs:
    """Work on a GPU that is recorded when a shape comes up for the third time, and replayed from then on.

    What comes up for the first time is done as it is, on the stream where it will be recorded, so that everything that
    is made only once (compiled kernels, gradients, workspaces) is made; the second time shows whether it can be
    recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.seen: dict[Any, int] = {}
        self.waits: set[Any] = set()  # work that waits for the device somewhere, and so cannot be recorded
        self.kept: dict[Any, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]] = {}
        self.pool: Any = torch.cuda.graph_pool_handle()

    def run(self, tensors: dict[str, Tensor], work: Callable[[dict[str, Tensor]], None], name: str = "") -> None:
        key = (name, *((key, tensor.shape, tensor.dtype) for key, tensor in tensors.items()))
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            if key in self.kept:
                graph, static = self.kept[key]
                for one, tensor in tensors.items():
                    static[one].copy_(tensor, non_blocking=True)
                graph.replay()
            else:
                static = {one: tensor.to(self.device, non_blocking=True) for one, tensor in tensors.items()}
                times = self.seen[key] = self.seen.get(key, 0) + 1
                if times > 2 and key not in self.waits and len(self.kept) < GRAPHS:
                    self._record(key, static, work)
                elif times == 2:
                    self._watch(key, static, work)
                else:
                    work(static)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _watch(self, key: Any, static: dict[str, Tensor], work: Callable[[dict[str, Tensor]], None]) -> None:
        """Do it, and find out whether it waits for the device."""
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                work(static)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if any("synchroniz" in str(one.message) for one in caught):
            self.waits.add(key)

    def _record(self, key: Any, static: dict[str, Tensor], work: Callable[[dict[str, Tensor]], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        # other threads may go on preparing batches meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            work(static)
        self.kept[key] = (graph, static)
        graph.replay()
