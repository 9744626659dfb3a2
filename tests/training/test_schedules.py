"""Learning rates against values worked by hand."""

from __future__ import annotations

import math

import pytest

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.training.schedule import SCHEDULES, ScheduleInputs, learning_rate


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_is_linear(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, learning_rate=0.8, warmup_steps=4)  # type: ignore[arg-type]
    rates = [learning_rate(config, step, ScheduleInputs(100, 10)) for step in range(1, 5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_inverse_square_root_equals_the_paper() -> None:
    """d^−0.5 · min(step^−0.5, step · warmup^−1.5) of Vaswani et al. (2017, eq. 3), d = 512, warmup = 4,000."""
    peak = 512**-0.5 * 4000**-0.5
    config = TrainingConfig(learning_rate=peak, warmup_steps=4000)
    for step in (1, 3999, 4000, 4001, 16_000, 100_000):
        assert learning_rate(config, step) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_cosine_at_middle_and_end() -> None:
    config = TrainingConfig(schedule="cosine", learning_rate=1.0, warmup_steps=10, steps=110)
    assert learning_rate(config, 35) == pytest.approx(0.5 * (1 + math.sqrt(0.5)))
    assert learning_rate(config, 60) == pytest.approx(0.5)
    assert learning_rate(config, 110) == pytest.approx(0.0)
    assert learning_rate(config, 111) == pytest.approx(0.0)


def test_linear_decay_reaches_zero_at_the_last_step() -> None:
    config = TrainingConfig(schedule="linear", learning_rate=1.0, warmup_steps=10, steps=110)
    assert [learning_rate(config, step) for step in (10, 35, 60, 110, 111)] == pytest.approx([1, 0.75, 0.5, 0, 0])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "stable"])
def test_decay_ends_at_the_final_rate(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, learning_rate=2.0, warmup_steps=10, steps=110, final_rate_factor=0.1)  # type: ignore[arg-type]
    assert learning_rate(config, 10) == 2.0
    assert learning_rate(config, 110) == learning_rate(config, 500) == pytest.approx(0.2)
    if schedule != "stable":
        assert learning_rate(config, 60) == pytest.approx(1.1)  # halfway from 2 to 0.2


def test_warmup_of_t5_is_constant() -> None:
    """1/√max(step, 10⁴) (Raffel et al. 2020, §3.1.2)."""
    config = TrainingConfig(learning_rate=0.01, warmup_steps=10_000, warmup_start_factor=1.0)
    for step in (1, 5000, 10_000, 40_000, 1_000_000):
        assert learning_rate(config, step) == pytest.approx(1 / math.sqrt(max(step, 10_000)))


def test_peak_is_held_before_the_decay() -> None:
    """Shazeer et al. (2017, §E): linear for 2,000 steps, constant for 8,000, then as 1/√step."""
    config = TrainingConfig(learning_rate=0.4, warmup_steps=2000, hold_steps=8000)
    rates = {1000: 0.2, 2000: 0.4, 6000: 0.4, 10_000: 0.4, 40_000: 0.2, 160_000: 0.1}
    assert {step: pytest.approx(learning_rate(config, step)) for step in rates} == rates


def test_plateau_reduces_the_rate_after_each_worse_validation() -> None:
    config = TrainingConfig(schedule="plateau", learning_rate=0.25, warmup_steps=0)
    rates = [learning_rate(config, 500, ScheduleInputs(reductions=reductions)) for reductions in (0, 1, 2)]
    assert rates == pytest.approx([0.25, 0.025, 0.0025])


def test_stable_is_constant_before_its_decay() -> None:
    config = TrainingConfig(schedule="stable", learning_rate=2.0, warmup_steps=10, steps=1000, decay_fraction=0.2)
    assert [learning_rate(config, step) for step in (11, 400, 800)] == [2.0, 2.0, 2.0]
    assert learning_rate(config, 850) == pytest.approx(2 * (1 - 0.5))  # √(50 / 200)
    assert learning_rate(config, 928) == pytest.approx(2 * (1 - 0.8))  # √(128 / 200)
    assert learning_rate(config, 1000) == learning_rate(config, 1001) == 0.0


def test_stable_may_decay_from_the_warmup_on() -> None:
    config = TrainingConfig(schedule="stable", learning_rate=1.0, warmup_steps=20, decay_fraction=1.0)
    assert learning_rate(config, 40, ScheduleInputs(100)) == pytest.approx(0.5)  # √(20 / 80)


def test_luong_halves_every_epoch_after_five() -> None:
    config = TrainingConfig(schedule="halving", learning_rate=1.0, warmup_steps=0)
    rates = [
        learning_rate(config, step, ScheduleInputs(steps_per_epoch=10)) for step in (1, 50, 51, 60, 61, 70, 91, 100)
    ]
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25, 1 / 32, 1 / 32]  # ten epochs: 1.0 in five of them, then 2⁻¹ to 2⁻⁵


def test_sutskever_halves_every_half_epoch_after_five() -> None:
    config = TrainingConfig(schedule="halving", learning_rate=0.7, warmup_steps=0, halving_interval=0.5)
    rates = [
        learning_rate(config, step, ScheduleInputs(steps_per_epoch=10)) for step in (50, 51, 55, 56, 60, 61, 71, 75)
    ]
    assert rates == pytest.approx([0.7 / 2**times for times in (0, 1, 1, 2, 2, 3, 5, 5)])


@pytest.mark.parametrize("schedule", ["cosine", "stable"])
def test_schedule_with_decay_needs_an_end(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, learning_rate=1.0, warmup_steps=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"training\.steps"):
        learning_rate(config, 5)


def test_halving_needs_epochs() -> None:
    with pytest.raises(UserError, match="epoch"):
        learning_rate(TrainingConfig(schedule="halving", learning_rate=1.0), 5, ScheduleInputs(100))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decay_fraction", 1.5),
        ("halving_start_epoch", -1.0),
        ("halving_interval", 0.0),
        ("ema_decay", 1.0),
        ("momentum", 1.0),
    ],
)
def test_settings_out_of_range_are_errors(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"training\.{name}"):
        TrainingConfig(**{name: value})  # type: ignore[arg-type]


# ---- a budget of time


def test_warmup_takes_at_most_a_tenth_of_the_time() -> None:
    config = TrainingConfig(schedule="cosine", learning_rate=1.0, warmup_steps=448)
    rates = [
        learning_rate(config, step, ScheduleInputs(time_used=step / 73, limits_warmup=True)) for step in range(1, 74)
    ]
    assert rates[2] == pytest.approx(10 * 3 / 73)
    assert max(rates) > 0.99
    assert rates.index(max(rates)) == 7  # step 8 of 73
    assert rates[-1] == pytest.approx(0.0)


def test_warmup_of_the_user_is_not_shortened() -> None:
    config = TrainingConfig(schedule="constant", learning_rate=1.0, warmup_steps=100)
    assert learning_rate(config, 50, ScheduleInputs(time_used=0.9)) == pytest.approx(0.5)


def test_first_limit_of_steps_and_time_decides() -> None:
    config = TrainingConfig(schedule="cosine", learning_rate=1.0, warmup_steps=1)
    assert learning_rate(config, 50, ScheduleInputs(100, time_used=1.0)) == pytest.approx(0.0)
    assert learning_rate(config, 100, ScheduleInputs(100, time_used=0.2)) == pytest.approx(0.0)


def test_inverse_square_root_after_a_shortened_warmup() -> None:
    config = TrainingConfig(schedule="inverse-sqrt", learning_rate=1.0, warmup_steps=10_000)
    assert learning_rate(config, 5, ScheduleInputs(time_used=0.1, limits_warmup=True)) == pytest.approx(1.0)
    assert learning_rate(config, 20, ScheduleInputs(time_used=0.4, limits_warmup=True)) == pytest.approx(0.5)


def test_extended_schedule_warms_up_and_decays_again() -> None:
    config = TrainingConfig(schedule="cosine", learning_rate=1.0, warmup_steps=50, steps=300, extended_at=100)
    assert learning_rate(config, 101) == pytest.approx(1 / 20)
    assert learning_rate(config, 120) == pytest.approx(1.0)
    assert learning_rate(config, 210) == pytest.approx(0.5)
    assert learning_rate(config, 300) == pytest.approx(0.0)
