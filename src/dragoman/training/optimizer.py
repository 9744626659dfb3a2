"""Optimizers: AdamW, Adam, SGD, Adadelta, Adafactor and Muon, whose steps can be captured in a CUDA graph.

A step never synchronizes, and changes neither weights nor state where `found_inf` is 1. Learning rates are tensors,
filled before a step, and all state exists from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import adamw as torch_adamw

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.parts.initialization import hidden_matrices
from dragoman.training.parallel import full_tensor, is_sharded, shard_like

Group = dict[str, Any]
State = dict[str, Tensor]

ADADELTA_RHO, ADADELTA_EPSILON = 0.95, 1e-6  # of Cho et al. (2014) and Bahdanau et al. (2015, §A.2.3)
ADAFACTOR_DECAY = 0.8  # β₂ at step t is 1 − t^−0.8
ADAFACTOR_GRADIENT_EPSILON, ADAFACTOR_WEIGHT_EPSILON = 1e-30, 1e-3  # ε₁ and ε₂
ADAFACTOR_UPDATE_CLIP = 1.0  # d: the largest root mean square of an update
NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315  # a, b, c of Jordan et al. 2024: small singular values grow fastest


class Adadelta(torch.optim.Optimizer):
    """Adadelta (Zeiler 2012, algorithm 1).

        E[∇²] ← ρ E[∇²] + (1 − ρ) ∇²,   Δ = √(E[Δ²] + ε) / √(E[∇²] + ε) ∇,   E[Δ²] ← ρ E[Δ²] + (1 − ρ) Δ²

    and W ← W − η Δ, with η = 1 in the papers.
    """

    found_inf: Tensor

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        """Create the state of all weights: moving averages of squared gradients and squared updates, starting at 0."""
        super().__init__(weights, {"lr": 1.0})
        _create_state(self, lambda weight: _zeros("square_avg", "acc_delta", weight=weight))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; nothing changes if the tensor `found_inf` is 1 (a skipped step)."""
        rho = torch.where(self.found_inf > 0, 1.0, ADADELTA_RHO)  # with 1 and gradients of 0 nothing changes
        for group, weight in _weights_with_gradient(self):
            gradient_squares, update_squares = self.state[weight].values()  # moving averages E[∇²] and E[Δ²]
            gradient = torch.where(self.found_inf > 0, 0.0, weight.grad)  # type: ignore[arg-type]
            gradient_squares.mul_(rho).addcmul_(gradient, gradient, value=1 - ADADELTA_RHO)
            scale = (update_squares + ADADELTA_EPSILON).sqrt() / (gradient_squares + ADADELTA_EPSILON).sqrt()
            update = scale * gradient
            update_squares.mul_(rho).addcmul_(update, update, value=1 - ADADELTA_RHO)
            weight.sub_(group["lr"] * update)


class Adafactor(torch.optim.Optimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 and 5) with a given learning rate η.

        R ← β R + (1 − β) mean_columns(∇² + ε₁),   C ← β C + (1 − β) mean_rows(∇² + ε₁),   β = 1 − t^−0.8
        U = ∇ / √(R Cᵀ / mean(R)),   U ← U / max(1, RMS(U) / d),   W ← W − η max(ε₂, RMS(W)) U

    Vectors keep all squares. With `momentum` μ the update is a moving average of such updates.
    """

    found_inf: Tensor

    def __init__(self, weights: Iterable[nn.Parameter], momentum: float = 0.0) -> None:
        """Create the state of all weights, which starts at 0; there is no first moment if `momentum` (μ) is 0."""
        super().__init__(weights, {"lr": 0.0, "momentum": momentum})  # the learning rate is set before every step
        _create_state(self, partial(self._initial_state, momentum=momentum))

    @staticmethod
    def _initial_state(weight: Tensor, momentum: float) -> State:
        """Return the state of a weight before the first step: zeros, by name.

        A matrix has row and column means of the squared gradients, a vector all of them ("square"); "exp_avg" is the
        first moment, if there is `momentum`.
        """
        weight = weight.detach()
        state = {"step": torch.zeros((), device=weight.device)}
        if weight.dim() >= 2:
            state["row"] = weight.new_zeros(weight.shape[:-1])
            state["column"] = weight.new_zeros((*weight.shape[:-2], weight.shape[-1]))
        else:
            state |= _zeros("square", weight=weight)
        return state | (_zeros("exp_avg", weight=weight) if momentum else {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; nothing changes if the tensor `found_inf` is 1 (a skipped step)."""
        skip = self.found_inf > 0
        for group, weight in _weights_with_gradient(self):
            self._update_weight(weight, group["lr"], group["momentum"], skip)

    def _update_weight(self, weight: nn.Parameter, learning_rate: Tensor, momentum: float, skip: Tensor) -> None:
        """Update one weight and its state; nothing changes if `skip`, a boolean scalar on the device, is true.

        The gradient of a matrix is divided by the root of its second moment, which is the product of row and column
        means of the squared gradients; for a vector, all squares are averaged. Then the update is clipped, and scaled
        by the learning rate and the root mean square of the weight. With a `momentum` above 0, the weight changes by
        the moving average of these updates.
        """
        state = self.state[weight]
        state["step"] += ~skip
        # 1 − t^−0.8; t, the number of steps, is 0 only as long as the first ones are skipped
        beta = 1 - state["step"].clamp(min=1).pow(-ADAFACTOR_DECAY).to(weight.dtype)
        gradient = torch.where(skip, 0.0, weight.grad)  # type: ignore[arg-type]
        squares = gradient.square() + ADAFACTOR_GRADIENT_EPSILON

        def average(name: str, value: Tensor, decay: Tensor | float) -> Tensor:
            """Update the moving average `name` of the state by `value`, unless the step is skipped, and return it."""
            state[name].copy_(torch.where(skip, state[name], decay * state[name] + (1 - decay) * value))
            return state[name]

        if weight.dim() >= 2:
            rows, columns = average("row", squares.mean(-1), beta), average("column", squares.mean(-2), beta)
            rows = rows / rows.mean(-1, keepdim=True).clamp(min=ADAFACTOR_GRADIENT_EPSILON)
            update = gradient * rows.rsqrt().unsqueeze(-1) * columns.rsqrt().unsqueeze(-2)
        else:
            update = gradient * average("square", squares, beta).rsqrt()
        update = update / (_root_mean_square(update) / ADAFACTOR_UPDATE_CLIP).clamp(min=1)
        update = learning_rate * _root_mean_square(weight).clamp(min=ADAFACTOR_WEIGHT_EPSILON) * update
        if momentum:
            update = average("exp_avg", update, momentum)
        weight.sub_(torch.where(skip, 0.0, update))


def _root_mean_square(tensor: Tensor) -> Tensor:
    """Return √(mean of the squares) over all elements, a scalar tensor."""
    return tensor.square().mean().sqrt()


def orthogonalize(matrices: Tensor, precision: torch.dtype = torch.float32, steps: int = 5) -> Tensor:
    """Approximate U Vᵀ of N matrices M = U S Vᵀ (N × rows × columns) by Newton–Schulz iterations, which bring S near 1.

        X ← a X + (b G + c G²) X,   G = X Xᵀ,   X₀ = M / ‖M‖

    a, b, c and five iterations (`steps`) give singular values between about 0.7 and 1.2 (Jordan et al. 2024), accurate
    enough for an optimizer; values near 0 stay below. The iterations are computed in the dtype `precision`; the result
    has the dtype of `matrices`.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # so that X Xᵀ is the smaller of both products
    x = (x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)).to(precision)
    for _ in range(steps):
        gram = x @ x.mT  # G
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) as it is scaled by Liu et al. (2025, §2.2): AdamW updates all but hidden matrices.

        M ← μ M + (1 − μ) ∇,   O = orthogonal((1 − μ) ∇ + μ M),   W ← (1 − ηλ) W − 0.2 √max(rows, columns) η O

    so that updates have the magnitude of AdamW's, and both share one learning rate η and one weight decay λ. Matrices
    of one shape are orthogonalized in one batch.
    """

    def __init__(
        self,
        matrices: Mapping[nn.Parameter, tuple[int, ...]],
        others: Sequence[Group],
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        precision: torch.dtype = torch.float32,
    ) -> None:
        """Create the state, zeros: a momentum buffer for hidden matrices, AdamW's two moments for all other weights.

        Args:
            matrices: hidden matrices, each with the numbers of rows of its blocks, such as the gates of an LSTM, which
                are orthogonalized separately.
            others: parameter groups that AdamW updates, with `betas` and `eps`.
            momentum, weight_decay: μ and λ of the hidden matrices.
            precision: dtype of the Newton–Schulz iterations.
        """
        self.precision, self.block_rows = precision, dict(matrices)
        hidden: Group = {"params": list(matrices), "momentum": momentum}
        # the learning rate is set before every step
        defaults = {"lr": 0.0, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__([group for group in (hidden, *others) if group["params"]], defaults)
        self.found_inf = torch.zeros((), device=self.param_groups[0]["params"][0].device)  # 1: skip the step
        _create_state(self, lambda w: _zeros("momentum_buffer", weight=w) if w in self.block_rows else _adam_state(w))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; nothing changes if the tensor `found_inf` is 1 (a skipped step)."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if "momentum" in group:  # the hidden matrices
                self._update_matrices(weights, group)
            else:
                self._update_by_adamw(weights, group)

    def _update_matrices(self, weights: list[nn.Parameter], group: Group) -> None:
        """Update the hidden matrices of a parameter group by their orthogonalized momentum.

        A block is a range of rows of a matrix that is orthogonalized on its own, such as one of the stacked gates of an
        LSTM: `self.block_rows` has their numbers of rows. All blocks of one shape are computed in one batch. Sharded
        matrices are gathered first, and their shards are updated at the end. If `self.found_inf` is 1, nothing changes.
        """
        blocks_by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}  # weight, gradient and momentum of each block
        shards: list[tuple[Tensor, Tensor]] = []  # of weights and momenta, each with the full matrix
        for weight in weights:
            tensors: list[Any] = [weight, weight.grad, self.state[weight]["momentum_buffer"]]
            if is_sharded(weight):  # orthogonalization needs the full matrix
                weight_shard, _, momentum_shard = tensors
                tensors = [full_tensor(tensor) for tensor in tensors]
                shards += [(weight_shard, tensors[0]), (momentum_shard, tensors[2])]
            for block in zip(*(tensor.split(self.block_rows[weight]) for tensor in tensors)):
                blocks_by_shape.setdefault(block[0].shape, []).append(block)
        skip = self.found_inf > 0
        for shape, blocks in blocks_by_shape.items():
            matrices, gradients, momenta = (list(tensors) for tensors in zip(*blocks))
            gradient, momentum = torch.stack(gradients), torch.stack(momenta)  # blocks × rows × columns
            new_momentum = momentum.lerp(gradient, 1 - group["momentum"])  # M ← μ M + (1 − μ) ∇
            # orthogonal((1 − μ) ∇ + μ M), as in Nesterov's momentum
            update = orthogonalize(gradient.lerp(new_momentum, group["momentum"]), self.precision)
            update = update * (group["lr"] * (-0.2 * math.sqrt(max(shape))))  # as large as the updates of AdamW
            decay = torch.where(skip, 1.0, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_copy_(momenta, list(torch.where(skip, momentum, new_momentum).unbind()))
            torch._foreach_mul_(matrices, decay)
            # a skipped update is −0: x + −0 is exactly x, even for x = −0
            torch._foreach_add_(matrices, list(torch.where(skip, -0.0, update).unbind()))
        for shard, full in shards:
            shard.copy_(shard_like(full, shard))

    def _update_by_adamw(self, weights: list[nn.Parameter], group: Group) -> None:
        """Update the weights of a parameter group by torch's fused AdamW kernel, unless `self.found_inf` is 1."""
        averages, squares, steps = (
            [self.state[weight][name] for weight in weights]
            for name in ("exp_avg", "exp_avg_sq", "step")  # as in torch
        )
        beta1, beta2 = group["betas"]
        options = {name: group[name] for name in ("lr", "weight_decay", "eps")}
        options |= {"beta1": beta1, "beta2": beta2, "fused": True, "amsgrad": False, "maximize": False}
        gradients: list[Any] = [weight.grad for weight in weights]
        maxima: list[Tensor] = []  # of the squares, which only AMSGrad needs
        torch_adamw.adamw(weights, gradients, averages, squares, maxima, steps, found_inf=self.found_inf, **options)  # type: ignore[arg-type]


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build AdamW (Loshchilov & Hutter 2019) for the trained weights; biases and norms have no weight decay."""
    return _build_adam(torch.optim.AdamW, _group_by_decay(trained_parameters(model), config), config)


def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build Adam (Kingma & Ba 2015) without weight decay, as for the Transformer (Vaswani et al. 2017, §5.3)."""
    return _build_adam(torch.optim.Adam, [{"params": trained_parameters(model)}], config)


def _build_adam(
    optimizer_class: type[torch.optim.Adam], groups: list[Group], config: TrainingConfig
) -> torch.optim.Optimizer:
    """Build torch's fused Adam or AdamW (`optimizer_class`) for parameter groups, and create its state at once.

    The learning rate is set before every step. A group has its own "weight_decay", or else none. On a GPU the step can
    be captured in a CUDA graph.
    """
    capturable = groups[0]["params"][0].is_cuda  # in a CUDA graph
    betas, eps = (config.resolved("beta1"), config.resolved("beta2")), config.resolved("epsilon")
    optimizer = optimizer_class(groups, lr=0.0, betas=betas, eps=eps, weight_decay=0, capturable=capturable, fused=True)
    optimizer._warned_capturable_if_run_uncaptured = True  # no warning that the first steps run without a CUDA graph
    return _create_state(optimizer, _adam_state)


def sgd(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build SGD with momentum μ: M ← μ M + ∇, W ← W − η M; raise a UserError for sharded weights.

    μ = 0 in Sutskever et al. (2014, §3.4) and Luong et al. (2015, §4.1). With `training.nesterov`: W ← W − η (∇ + μ M),
    Nesterov's accelerated gradient (Sutskever et al. 2013, §2).
    """
    _check_not_sharded(model, "sgd")  # torch has no fused kernel for DTensors
    momentum, nesterov = config.momentum or 0.0, config.resolved("nesterov")
    if nesterov and not momentum:
        raise UserError("training.nesterov needs a momentum above 0: set training.momentum, for example to 0.99")
    optimizer = torch.optim.SGD(trained_parameters(model), lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    return _create_state(optimizer, lambda weight: _zeros("momentum_buffer", weight=weight)) if momentum else optimizer


def adafactor(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build Adafactor (Shazeer & Stern 2018), as in T5; `training.momentum` adds a first moment."""
    _check_not_sharded(model, "adafactor")  # row and column means need the full matrix
    return Adafactor(trained_parameters(model), momentum=config.momentum or 0.0)


def _check_not_sharded(model: nn.Module, name: str) -> None:
    """Raise a UserError if the weights of the model are sharded, which the optimizer `name` does not support."""
    if any(is_sharded(weight) for weight in model.parameters()):
        raise UserError(
            f"training.optimizer={name} does not work with training.parallelism=sharded: choose "
            "training.optimizer=adamw, or training.parallelism=replicated"
        )


def adadelta(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build Adadelta (Zeiler 2012) with ρ and ε of Cho et al. (2014) and Bahdanau et al. (2015), not of `config`."""
    return Adadelta(trained_parameters(model))


def muon(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build Muon (Jordan et al. 2024; Liu et al. 2025) for hidden matrices, with AdamW for all other weights."""
    # the hidden matrices, each with the numbers of rows of its blocks, such as the gates of an LSTM
    matrices = {weight: rows for weight, rows in hidden_matrices(model).items() if weight.requires_grad}  # not frozen
    others = [weight for weight in trained_parameters(model) if weight not in matrices]
    return Muon(
        matrices,
        _group_by_decay(others, config),
        momentum=0.95 if config.momentum is None else config.momentum,
        weight_decay=config.resolved("weight_decay"),
        betas=(config.resolved("beta1"), config.resolved("beta2")),
        eps=config.resolved("epsilon"),
        precision=torch.bfloat16 if trained_parameters(model)[0].is_cuda else torch.float32,
    )


#: builders of optimizers, by the values of `training.optimizer`
OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingConfig], torch.optim.Optimizer]] = {
    build.__name__: build for build in (adamw, adam, sgd, adadelta, adafactor, muon)
}


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer that `training.optimizer` names, for a model that is already on its device.

    Its learning rate and `found_inf` (1: skip the step) are tensors, so that a CUDA graph can read them.
    """
    optimizer = OPTIMIZERS[config.resolved("optimizer")](model, config)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device=group["params"][0].device)
    optimizer.found_inf = torch.zeros_like(group["lr"])  # type: ignore[attr-defined]  # read by torch's kernels
    return optimizer


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that are not frozen, in the model's order."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def _group_by_decay(weights: Iterable[nn.Parameter], config: TrainingConfig) -> list[Group]:
    """Return parameter groups: matrices and embedding tables with weight decay, vectors (biases, norms) without.

    A group without weights is left out.
    """
    weights = list(weights)
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": config.resolved("weight_decay")},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _create_state(optimizer: torch.optim.Optimizer, initial_state: Callable[[Tensor], State]) -> torch.optim.Optimizer:
    """Set the state of every weight to `initial_state(weight)`, tensors by name, and return the optimizer.

    Torch would create it in the first step. CUDA graphs need it in place before, and so does a skipped first step.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = initial_state(weight)
    return optimizer


def _zeros(*names: str, weight: Tensor) -> State:
    """Return optimizer state of these names for a weight: zeros of its shape."""
    return {name: torch.zeros_like(weight, requires_grad=False) for name in names}


def _adam_state(weight: Tensor) -> State:
    """Return Adam's initial state of a weight under torch's names: "step", "exp_avg" and "exp_avg_sq", all zero."""
    step = torch.zeros((), dtype=torch.float32, device=weight.device)
    return {"step": step} | _zeros("exp_avg", "exp_avg_sq", weight=weight)


def _weights_with_gradient(optimizer: torch.optim.Optimizer) -> list[tuple[Group, nn.Parameter]]:
    """Return pairs of a parameter group and a weight of it, for all weights that have a gradient."""
    groups = optimizer.param_groups
    return [(group, weight) for group in groups for weight in group["params"] if weight.grad is not None]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups in place: it is a tensor, which CUDA graphs read."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def clip_grad_norm(weights: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients down to a total L2 norm of `limit` (Pascanu et al. 2013); a limit of 0 does not clip.

    Returns the norm before, a scalar on the device.
    """
    weights = list(weights)
    norm = nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
    norm = full_tensor(norm)  # of sharded gradients
    if limit:
        nn.utils.clip_grads_with_norm_(weights, limit, norm, foreach=True)
    return norm


def set_found_inf(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Set whether the optimizer skips the next step, so that neither weights nor state change.

    `skip` is a boolean scalar on the device: the CPU need not wait for it.
    """
    optimizer.found_inf.copy_(skip)  # type: ignore[attr-defined]


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state of all trained weights, named STATE/WEIGHT such as `exp_avg/decoder.…`."""
    return {
        f"{kind}/{name}": value.detach()
        for name, weight in model.named_parameters()
        if weight.requires_grad
        for kind, value in optimizer.state[weight].items()
    }


def load_state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Copy saved tensors, named STATE/WEIGHT such as `exp_avg/decoder.…`, into the optimizer state.

    A tensor that the optimizer lacks is a UserError; state that is not in `tensors` stays.
    """
    state = state_tensors(model, optimizer)
    for name, value in tensors.items():
        if name not in state:
            raise UserError(
                f"the checkpoint has the optimizer state {name}, which the configured optimizer lacks: keep the "
                "training.optimizer with which the run started"
            )
        state[name].copy_(value)
