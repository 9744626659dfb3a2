"""LoRA: training starts from the frozen model, and merged weights compute the same as adapters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.lora import AdaptedLayer, LoRA, LoRALinear, add_adapters, find_adapted_layers, merge_adapters
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.systems import SYSTEMS, VocabularySizes

SYSTEM_NAMES = ("transformer", "gpt3", "bert", "transformer-dmca", "moe")
TOKENS = torch.tensor([[4, 5, 6, 7], [7, 6, 5, 4]])
LENGTHS = torch.tensor([4, 4])


def build(system: str, seed: int = 1) -> Model:
    torch.manual_seed(seed)
    spec = SYSTEMS[system].spec(VocabularySizes(13, 13, True), "tiny", model_dim=8, heads=2, layers=2)
    return spec.build().double().eval()


def outputs(model: Model) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, LENGTHS, TOKENS, LENGTHS)


def randomize_updates(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if ".lora_b." in name:
            nn.init.normal_(weight)


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_adapters_start_as_identity_and_merge_exactly(system: str) -> None:
    model, lora = build(system), LoRA(rank=3, alpha=6.0, targets=("attention", "feed-forward"))
    before, plain = outputs(model), build(system)
    add_adapters(model, lora)
    assert torch.equal(outputs(model), before)  # B = 0
    randomize_updates(model)
    adapted = outputs(model)
    assert not torch.allclose(adapted, before)
    merged = merge_adapters(checkpoint.named_weights(model), plain, lora)
    checkpoint.set_weights(plain, merged, None)  # type: ignore[arg-type]
    torch.testing.assert_close(outputs(plain), adapted, atol=1e-9, rtol=1e-9)


def test_stacked_matrices_are_adapted_like_separate_layers() -> None:
    """peft's formula for each of q_proj, k_proj and v_proj: W x + b + (alpha / r) B A x."""
    torch.manual_seed(1)
    layers = [nn.Linear(6, rows).double() for rows in (4, 2, 5)]  # queries, keys and values as separate layers
    fused = nn.Linear(6, 11).double()
    with torch.no_grad():
        fused.weight.copy_(torch.cat([layer.weight for layer in layers]))
        fused.bias.copy_(torch.cat([layer.bias for layer in layers]))
    rows = {"query": 4, "key": 2, "value": 5}
    lora = LoRA(rank=3, alpha=12.0)
    adapted = LoRALinear(fused, AdaptedLayer("project", rows, ("query", "value")), lora)
    randomize_updates(adapted)
    for name in ("query", "value"):
        nn.init.normal_(adapted.lora_b[name])
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = []
    for layer, name in zip(layers, rows):
        y = F.linear(x, layer.weight, layer.bias)
        if name in adapted.lora_a:
            a, b = adapted.lora_a[name], adapted.lora_b[name]  # r × in, rows × r: lora_A.weight and lora_B.weight
            y = y + (x @ a.T @ b.T) * (12.0 / 3)
        expected.append(y)
    torch.testing.assert_close(adapted(x), torch.cat(expected, -1), atol=1e-9, rtol=1e-9)


def test_gradients_with_checkpointing_are_equal() -> None:
    """Activations that are computed again give the same gradients of the adapters."""
    gradients = []
    for recomputes in (False, True):
        torch.manual_seed(1)
        spec = SYSTEMS["transformer"].spec(VocabularySizes(13, 13, True), "tiny", model_dim=8, heads=2, layers=2)
        model = replace_everywhere(spec, Stack, gradient_checkpointing=recomputes).build().double().eval()
        model.requires_grad_(False)
        add_adapters(model, LoRA(rank=2, alpha=2.0))
        torch.manual_seed(2)
        randomize_updates(model)
        model(TOKENS, LENGTHS, TOKENS, LENGTHS).square().sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-9, rtol=1e-9)


def test_dropout_applies_to_the_updates_only() -> None:
    layer = LoRALinear(nn.Linear(4, 4), AdaptedLayer("x", {"x": 4}, ("x",)), LoRA(rank=2, alpha=2.0, dropout=0.5))
    x = torch.randn(3, 4)
    layer.train()
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))  # the update is still zero
    nn.init.normal_(layer.lora_b["x"])
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_targets_are_words_or_patterns() -> None:
    model = build("transformer")

    def adapted(*targets: str) -> dict[str, tuple[str, ...]]:
        return {layer.path: layer.adapted for layer in find_adapted_layers(model, targets)}

    assert adapted("encoder.layers.0.*.value") == {"encoder.layers.0.0.body.project": ("value",)}
    assert set(adapted("query", "value").values()) == {("query", "value"), ("query",), ("value",)}
    assert len(adapted("attention")) == 2 * 2 + 2 * (2 + 3)  # project, output; in the decoder also query
    assert len(adapted("all")) == len(adapted("attention", "feed-forward"))
    with pytest.raises(UserError, match=r"'q_proj'.*attention, feed-forward, all, query, key, value.*encoder\.layers"):
        adapted("q_proj")
    with pytest.raises(UserError, match="this system has no such layers"):
        find_adapted_layers(
            SYSTEMS["cho"].spec(VocabularySizes(13, 13, True), "tiny", model_dim=8).build(), ("attention",)
        )
