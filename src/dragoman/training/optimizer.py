"""Optimizers: AdamW, Adam, SGD, Adadelta, Adafactor and Muon, whose steps can be captured in a CUDA graph.

A step never synchronizes. Learning rates are tensors, filled before a step, and all state exists from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.parts.initialization import hidden_matrices
from dragoman.training.adadelta import Adadelta
from dragoman.training.adafactor import Adafactor
from dragoman.training.muon import Muon, adam_state, momentum_state
from dragoman.training.parallel import full_tensor, is_sharded

Group = dict[str, Any]


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019); biases and norms have no weight decay."""
    return _adam(torch.optim.AdamW, _by_decay(model.parameters(), config), config)


def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (Kingma & Ba 2015) without weight decay, as for the Transformer (Vaswani et al. 2017, §5.3)."""
    return _adam(torch.optim.Adam, [{"params": list(model.parameters())}], config)


def _adam(kind: type[torch.optim.Adam], groups: list[Group], config: TrainingConfig) -> torch.optim.Optimizer:
    capturable = groups[0]["params"][0].is_cuda
    betas, eps = (config.resolved("beta1"), config.resolved("beta2")), config.resolved("epsilon")
    optimizer = kind(groups, lr=0.0, betas=betas, eps=eps, weight_decay=0, capturable=capturable, fused=True)
    optimizer._warned_capturable_if_run_uncaptured = True  # the first steps run eagerly
    return _with_state(optimizer, adam_state)


def sgd(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """W ← W − η M, M ← μ M + ∇; μ = 0 in Sutskever et al. (2014, §3.4) and Luong et al. (2015, §4.1).

    With `nesterov`: W ← W − η (∇ + μ M), Nesterov's accelerated gradient (Sutskever et al. 2013, §2).
    """
    _check_not_sharded(model, "sgd")  # torch has no fused kernel for DTensors
    momentum, nesterov = config.momentum or 0.0, config.resolved("nesterov")
    if nesterov and not momentum:
        raise UserError("training.nesterov needs momentum: set training.momentum, for example to 0.99")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    return _with_state(optimizer, momentum_state) if momentum else optimizer


def adafactor(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adafactor (Shazeer & Stern 2018), as in T5; `momentum` adds a first moment."""
    _check_not_sharded(model, "adafactor")  # row and column means need the full matrix
    return Adafactor(model.parameters(), momentum=config.momentum or 0.0)


def _check_not_sharded(model: nn.Module, name: str) -> None:
    if any(is_sharded(weight) for weight in model.parameters()):
        raise UserError(
            f"training.optimizer={name} does not support sharded weights: choose adamw, or "
            "training.parallelism=replicated"
        )


def adadelta(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adadelta (Zeiler 2012), as in Cho et al. (2014) and Bahdanau et al. (2015)."""
    return Adadelta(model.parameters())


def muon(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Muon (Jordan et al. 2024; Liu et al. 2025) for hidden matrices, AdamW for all other weights."""
    matrices = hidden_matrices(model)
    others = [weight for weight in model.parameters() if weight not in matrices]
    return Muon(
        matrices,
        _by_decay(others, config),
        momentum=0.95 if config.momentum is None else config.momentum,
        weight_decay=config.resolved("weight_decay"),
        betas=(config.resolved("beta1"), config.resolved("beta2")),
        eps=config.resolved("epsilon"),
        precision=torch.bfloat16 if others[0].is_cuda else torch.float32,
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingConfig], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "adam": adam,
    "sgd": sgd,
    "adadelta": adadelta,
    "adafactor": adafactor,
    "muon": muon,
}


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer of `training.optimizer` for a model that is already on its device."""
    optimizer = OPTIMIZERS[config.resolved("optimizer")](model, config)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device=group["params"][0].device)
    optimizer.found_inf = torch.zeros_like(group["lr"])  # type: ignore[attr-defined]  # read by torch's kernels
    return optimizer


def _by_decay(weights: Iterable[nn.Parameter], config: TrainingConfig) -> list[Group]:
    """Group weights: matrices and tables have weight decay, vectors have none."""
    weights = list(weights)
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": config.resolved("weight_decay")},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _with_state(
    optimizer: torch.optim.Optimizer, initial_state: Callable[[Tensor], dict[str, Tensor]]
) -> torch.optim.Optimizer:
    """Create the state now: CUDA graphs find it in place, and a skipped first step leaves it unchanged."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = initial_state(weight)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate in place, times the `factor` of a group if it has one."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate * group.get("factor", 1.0))


def clip_grad_norm(weights: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to a norm of `limit` (Pascanu et al. 2013), and return their norm before, on the device.

    A limit of 0 does not clip.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
    norm = full_tensor(norm)  # of sharded gradients
    if limit:
        nn.utils.clip_grads_with_norm_(weights, limit, norm, foreach=True)
    return norm


def set_found_inf(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Set whether the next step changes neither weights nor state; `skip` is a boolean on the device."""
    optimizer.found_inf.copy_(skip)  # type: ignore[attr-defined]


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state by the names of the weights: `exp_avg/decoder.…`."""
    return {
        f"{kind}/{name}": value.detach()
        for name, weight in model.named_parameters()
        for kind, value in optimizer.state[weight].items()
    }


def load_state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of `state_tensors` in place."""
    state = state_tensors(model, optimizer)
    for name, value in tensors.items():
        if name not in state:
            raise UserError(
                f"the checkpoint has the optimizer state {name}, which this optimizer does not have: keep the "
                "training.optimizer of the run"
            )
        state[name].copy_(value)
