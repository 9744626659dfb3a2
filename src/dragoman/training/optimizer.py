"""Optimizers: AdamW, Adam, Adadelta, Adafactor, SGD, Muon; none waits for the device, and a graph can hold a step.

Learning rates are tensors, filled in place before a step, and everything that a step changes is a tensor that is there
from the start.
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
    """AdamW (Loshchilov & Hutter 2019); biases and norms are not decayed."""
    return _adam(torch.optim.AdamW, _by_decay(model.parameters(), config), config)


def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (Kingma & Ba 2015) without decay, as the Transformer's (Vaswani et al. 2017, §5.3)."""
    return _adam(torch.optim.Adam, [{"params": list(model.parameters())}], config)


def _adam(kind: type[torch.optim.Adam], groups: list[Group], config: TrainingConfig) -> torch.optim.Optimizer:
    capturable = groups[0]["params"][0].is_cuda
    betas, eps = (config.resolved("beta1"), config.resolved("beta2")), config.resolved("epsilon")
    optimizer = kind(groups, lr=0.0, betas=betas, eps=eps, weight_decay=0, capturable=capturable, fused=True)
    optimizer._warned_capturable_if_run_uncaptured = True  # the first steps always are
    return _with_state(optimizer, adam_state)


def sgd(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """W ← W − η M, M ← μ M + ∇; plain, with μ = 0 (Sutskever et al. 2014, §3.4; Luong et al. 2015, §4.1).

    With `nesterov`: W ← W − η (∇ + μ M), Nesterov's accelerated gradient (Sutskever et al. 2013, §2).
    """
    _refuse_sharded(model, "sgd")  # torch has no kernel for it
    momentum, nesterov = config.momentum or 0.0, config.resolved("nesterov")
    if nesterov and not momentum:
        raise UserError("training.nesterov needs momentum: set training.momentum, for example to 0.99")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    return _with_state(optimizer, momentum_state) if momentum else optimizer


def adafactor(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adafactor (Shazeer & Stern 2018), as T5 was trained; `momentum` adds a first moment."""
    _refuse_sharded(model, "adafactor")  # row and column sums of a matrix need all of it
    return Adafactor(model.parameters(), momentum=config.momentum or 0.0)


def _refuse_sharded(model: nn.Module, name: str) -> None:
    if any(is_sharded(weight) for weight in model.parameters()):
        raise UserError(
            f"training.optimizer {name} cannot train sharded weights: choose adamw, or training.parallelism=replicated"
        )


def adadelta(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adadelta (Zeiler 2012), as Cho et al. (2014) and Bahdanau et al. (2015) had it."""
    return Adadelta(model.parameters())


def muon(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Muon (Jordan et al. 2024; Liu et al. 2025) for hidden matrices, AdamW for everything else."""
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
    """The optimiser of `training.optimizer`, for a model that is on the device where it will be trained."""
    optimizer = OPTIMIZERS[config.resolved("optimizer")](model, config)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device=group["params"][0].device)
    optimizer.found_inf = torch.zeros_like(group["lr"])  # type: ignore[attr-defined]  # where torch's kernels look
    return optimizer


def _by_decay(weights: Iterable[nn.Parameter], config: TrainingConfig) -> list[Group]:
    """Matrices and tables are decayed, vectors are not."""
    weights = list(weights)
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": config.resolved("weight_decay")},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _with_state(
    optimizer: torch.optim.Optimizer, first: Callable[[Tensor], dict[str, Tensor]]
) -> torch.optim.Optimizer:
    """States from the start: a graph finds them in place, and a first step that is skipped leaves them as any other."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = first(weight)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate in place, times the `factor` of a group that has one."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate * group.get("factor", 1.0))


def clip_grad_norm(weights: Iterable[nn.Parameter], limit: float) -> Tensor:
    """The norm of all gradients, which are scaled down to `limit` where it is larger (Pascanu et al. 2013); 0: never.

    The norm stays on the device.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
    norm = full_tensor(norm)  # each process may have a part of each gradient
    if limit:
        nn.utils.clip_grads_with_norm_(weights, limit, norm, foreach=True)
    return norm


def set_found_inf(optimizer: torch.optim.Optimizer, bad: Tensor) -> None:
    """Tell whether the next steps are to change nothing, neither weights nor state: `bad` such as `~norm.isfinite()`.

    `bad` is one truth value on the device; the device looks at it, and nobody waits.
    """
    optimizer.found_inf.copy_(bad)  # type: ignore[attr-defined]


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the names of the weights: `exp_avg/decoder.…`."""
    return {
        f"{kind}/{name}": value.detach()
        for name, weight in model.named_parameters()
        for kind, value in optimizer.state[weight].items()
    }


def load_state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Set the optimiser's state in place to what `state_tensors` gave."""
    known = state_tensors(model, optimizer)
    for name, value in tensors.items():
        if name not in known:
            raise UserError(f"the checkpoint holds {name}, which training.optimizer does not know: leave it as it was")
        known[name].copy_(value)
