"""Which series of training losses are divergence, and which are not."""

from __future__ import annotations

import random
from collections.abc import Iterable

from dragoman import legacy
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.metrics import HIGH_READINGS, WINDOW_READINGS, LossHistory


def first_divergence(losses: Iterable[float]) -> int | None:
    """The number of the reading at which it is noticed, from 0."""
    history = LossHistory()
    return next((number for number, loss in enumerate(losses) if history.diverged(loss)), None)


def test_noisy_falling_loss_is_no_divergence() -> None:
    chance = random.Random(0)
    assert first_divergence(2 + 7 / (1 + n / 5) + chance.gauss(0, 0.15) for n in range(3000)) is None


def test_large_loss_may_vary_by_nats() -> None:
    """Replaced tokens: the discriminator's loss counts fifty times, and rises as the generator improves."""
    chance = random.Random(1)
    assert first_divergence(18 + 25 / (1 + n / 5) + 0.01 * n + chance.gauss(0, 1.0) for n in range(400)) is None


def test_corpora_of_different_difficulty_are_no_divergence() -> None:
    """Each reading is the mean of ten batches, of which any may be hard."""
    chance = random.Random(2)
    for share in (0.05, 0.27, 0.5):
        batches = ((4.5 if chance.random() < share else 0.5) for _ in range(20_000))
        assert first_divergence(sum(next(batches) for _ in range(10)) / 10 for _ in range(2000)) is None


def test_sustained_rise_is_detected_soon() -> None:
    chance = random.Random(3)
    healthy = [2 + 7 / (1 + n / 5) + chance.gauss(0, 0.05) for n in range(100)]
    assert first_divergence([*healthy, *[6.5] * 10]) == 100 + HIGH_READINGS - 1


def test_slow_rise_is_divergence() -> None:
    assert first_divergence([*[2.0] * 100, *(2.0 * 1.1**n for n in range(1, 20))]) is not None


def test_single_spike_is_no_divergence() -> None:
    assert first_divergence(([2.0] * 15 + [6.0] * (HIGH_READINGS - 1)) * 10) is None


def test_progress_is_the_scale_of_a_loss_near_zero() -> None:
    """From 0.02 to 0.3 nats little of eight is lost; to 4 nats half of it."""
    assert first_divergence([8.0, 4.0, 1.0, *[0.02] * 50, *[0.3] * 10]) is None
    assert first_divergence([8.0, 4.0, 1.0, *[0.02] * 50, *[4.0] * 10]) is not None


def test_history_is_saved() -> None:
    progress = TrainState(step=7)
    for loss in (5.0, 4.0, 3.5, 3.4, 9.0):
        assert not progress.loss_history.diverged(loss)
    again = TrainState.from_dict(progress.to_dict())
    assert again == progress
    assert again.loss_history.high_losses == [9.0]
    for loss in range(2 * WINDOW_READINGS):
        again.loss_history.diverged(3.0 + loss / 1000)
    assert len(again.loss_history.recent) == WINDOW_READINGS


def test_state_of_an_earlier_version() -> None:
    former = TrainState(step=7).to_dict() | {"rewinds": 2, "usual": 3.5}
    for name in ("loss_history", "rollbacks", "diverged_at", "best_loss", "extended_at", "time_used"):
        del former[name]
    assert TrainState.from_dict(legacy.translate_train_state(former)) == TrainState(step=7)
