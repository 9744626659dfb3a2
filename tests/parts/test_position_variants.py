"""Sines and cosines in halves, and rotary positions that were stretched."""

from __future__ import annotations

import math

import pytest
import torch

from dragoman.parts.positions import InterpolatedRotary, Llama3Rotary, Rotary, RotaryPosition, Sinusoidal


def test_sines_first_is_a_permutation() -> None:
    places = torch.arange(9)
    turns, halves = Sinusoidal().build(6).encoding(places), Sinusoidal(sines_first=True).build(6).encoding(places)
    torch.testing.assert_close(halves, torch.cat((turns[:, 0::2], turns[:, 1::2]), 1))


def test_sines_first_by_hand() -> None:
    """d = 4: sin 2, sin 2/100, cos 2, cos 2/100; an odd width has one sine more."""
    found = Sinusoidal(sines_first=True).build(4).encoding(torch.tensor([2]))[0]
    assert found.tolist() == pytest.approx([math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)])
    odd = Sinusoidal(sines_first=True).build(3).encoding(torch.tensor([1]))[0]
    assert odd.tolist() == pytest.approx([math.sin(1), math.sin(10000 ** (-2 / 3)), math.cos(1)])


def test_interpolated_positions_are_those_of_a_shorter_text() -> None:
    x, places = torch.randn(1, 2, 3, 8), torch.tensor([[0, 5, 9]])
    stretched = InterpolatedRotary(50.0, 2.5).build(8).rotate(x, places)
    torch.testing.assert_close(stretched, Rotary(50.0).build(8).rotate(x, places / 2.5))


def test_llama3_rotary_scales_low_frequencies_only() -> None:
    """In 2π·8 tokens a pair of frequency ω turns 8ω times: 8 times with ω = 1, 2.5 times with ω = 10^-½."""
    rotary = Llama3Rotary(
        base=10.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_length=round(2 * math.pi * 8)
    ).build(4)
    assert isinstance(rotary, RotaryPosition)
    plain = [1.0, 10**-0.5]
    turns = [round(2 * math.pi * 8) * w / (2 * math.pi) for w in plain]
    share = (turns[1] - 1) / 3  # how far between slow and fast the second pair is
    assert turns[0] > 4
    assert rotary.frequency.tolist() == pytest.approx([1.0, plain[1] * (share + (1 - share) / 4)])
    slow = Llama3Rotary(base=10.0, factor=4.0, original_max_length=6).build(4)
    assert isinstance(slow, RotaryPosition)
    assert slow.frequency.tolist() == pytest.approx([0.25, plain[1] / 4])  # less than one turn each
