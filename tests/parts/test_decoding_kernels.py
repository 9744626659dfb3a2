"""The kernels for steps of a search compute what the formulas say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, scaled_dot_product_attention

pytestmark = pytest.mark.gpu
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
TYPES = pytest.mark.parametrize("dtype", CLOSE)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


@TYPES
@pytest.mark.parametrize("width", [8, 24, 64])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_attention_step_kernel(beams: int, groups: int, width: int, dtype: torch.dtype) -> None:
    from dragoman.parts.kernels import cached_attention_step

    sources, heads, longest = 2, 4, 70
    rows = sources * beams
    query, key, value = (drawn(rows, n, width, dtype=dtype) for n in (heads, groups, groups))
    keys, values = drawn(rows, longest, groups, width, dtype=dtype), drawn(rows, longest, groups, width, dtype=dtype)
    positions = torch.tensor([33, 0], device="cuda").repeat_interleave(beams)
    ancestors = torch.randint(beams, (sources, beams, longest), device="cuda")
    expected = []
    for row in range(rows):
        end = int(positions[row])
        home = row // beams * beams + ancestors[row // beams, row % beams, :end]
        place = torch.arange(end, device="cuda")
        k, v = (torch.cat((some[home, place], own[row][None])) for some, own in ((keys, key), (values, value)))
        k, v = (some.float().repeat_interleave(heads // groups, 1) for some in (k, v))  # S H E
        weights = (torch.einsum("he,she->hs", query[row].float(), k) / math.sqrt(width)).softmax(-1)
        expected.append(torch.einsum("hs,she->he", weights, v))
    others = torch.arange(longest, device="cuda") != positions[:, None]
    before = keys[others].clone()
    found = cached_attention_step(
        query, key, value, keys, values, positions, ancestors if beams > 1 else None, 1 / math.sqrt(width)
    )
    torch.testing.assert_close(found.float(), torch.stack(expected), atol=CLOSE[dtype], rtol=0)
    where = torch.arange(rows, device="cuda"), positions
    assert torch.equal(keys[where], key)
    assert torch.equal(values[where], value)
    assert torch.equal(keys[others], before)


@TYPES
@pytest.mark.parametrize("count", [1, 4, 20])
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 64), (4, 1, 8), (2, 2, 24)])
def test_short_query_attention_kernel(count: int, heads: int, groups: int, width: int, dtype: torch.dtype) -> None:
    from dragoman.parts.kernels import short_query_attention

    query = drawn(3, count, heads, width, dtype=dtype).transpose(1, 2)
    key, value = drawn(3, groups, 40, width, dtype=dtype), drawn(3, groups, 41, width, dtype=dtype)[:, :, 1:]
    lengths = torch.tensor([1, 33, 40], device="cuda")
    mask = (torch.arange(40, device="cuda") < lengths[:, None])[:, None, None]
    expected = scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask, enable_gqa=True)
    found = short_query_attention(query, key, value, lengths, 1 / math.sqrt(width))
    torch.testing.assert_close(found.float(), expected, atol=CLOSE[dtype], rtol=0)


@TYPES
@pytest.mark.parametrize("width", [24, 512, 1024])
def test_add_and_norm_kernel(width: int, dtype: torch.dtype) -> None:
    from dragoman.parts.kernels import add_and_norm

    x, y = drawn(5, 1, width, dtype=dtype), drawn(1, 5, width, dtype=dtype).transpose(0, 1)
    weight, bias = drawn(width, dtype=dtype), drawn(width + 1, dtype=dtype)[1:]
    expected = layer_norm((x + y).float(), (width,), weight.float(), bias.float(), 1e-5)
    found = add_and_norm(x, y, weight, bias, 1e-5)
    torch.testing.assert_close(found.float(), expected, atol=4 * CLOSE[dtype], rtol=0)
