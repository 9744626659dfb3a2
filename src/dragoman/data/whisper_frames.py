"""The log-mel frames of Whisper (Radford et al. 2023, §2.2), as its checkpoints expect them.

    samples, padded with zeros to `features.seconds`, and mirrored at both ends by half a window
    frame t, windowed:   x_t[n] = s[t · shift + n − N/2] · (½ − ½ cos(2πn / N))      N = window = FFT size
    log energy:          z_t[m] = log₁₀ max(Σ_k W[m, k] |FFT(x_t)[k]|², 10⁻¹⁰)
    output:              y_t[m] = (max(z_t[m], max z − 8) + 4) / 4

W has triangular filters on the mel scale of Slaney (1998), each divided by half its width in Hz, up to 8 kHz.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dragoman.config import FeatureConfig

MIN_FILTER_ENERGY, DYNAMIC_RANGE = 1e-10, 8.0  # the range is in powers of ten
MAX_FREQUENCY = 8000.0  # Hz
# Slaney's mel scale: linear below LINEAR_HERTZ, logarithmic above
LINEAR_HERTZ, HERTZ_PER_MEL, LOG_STEP = 1000.0, 200 / 3, np.log(6.4) / 27

Numbers = NDArray[np.float64]


def whisper_log_mel(samples: Numbers, settings: FeatureConfig) -> Numbers:
    """Return Whisper's log-mel frames of a recording, T M (frames × mel filters), in parts of `features.seconds`.

    Each part is normalized by itself, and the last one (or an empty recording) is padded with silence. The model reads
    the first one.
    """
    count = round(settings.seconds * settings.sample_rate)  # samples of a part
    padded = np.pad(samples, (0, -len(samples) % count if len(samples) else count))
    return np.concatenate([_frames_of_part(part, settings) for part in padded.reshape(-1, count)])


def _frames_of_part(samples: Numbers, settings: FeatureConfig) -> Numbers:
    """Return the normalized log energies of samples, T M: T = ⌊samples / shift⌋ frames, M mel filters.

    Samples are mirrored at both ends, so that frame t is centered on sample t · shift. Energies are at least their
    maximum − DYNAMIC_RANGE.
    """
    window = round(settings.frame_length * settings.sample_rate / 1000)  # in samples; settings are in milliseconds
    shift = round(settings.frame_shift * settings.sample_rate / 1000)
    mirrored = np.pad(samples, window // 2, mode="reflect")
    # T window
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, window)[::shift][: len(samples) // shift]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    spectrum = np.fft.rfft(frames * hann)
    power = spectrum.real**2 + spectrum.imag**2  # T K, with K frequencies
    energies = power @ slaney_filters(settings.mel_bins, window, settings.sample_rate).T
    log_energies = np.log10(np.maximum(energies, MIN_FILTER_ENERGY))
    return (np.maximum(log_energies, log_energies.max() - DYNAMIC_RANGE) + 4) / 4  # about −1 to 1, as in Whisper


@lru_cache(maxsize=4)
def slaney_filters(mel_bins: int, fft_size: int, sample_rate: int) -> Numbers:
    """Return the filters W, mel_bins × (fft_size / 2 + 1): triangles of area 1 over the frequencies of the FFT in Hz.

    Their centers are equally spaced on Slaney's mel scale; each begins and ends at the centers of its neighbors.
    Shapes: M = mel_bins filters, K = fft_size / 2 + 1 frequencies.
    """
    mels = np.linspace(0, _hertz_to_mel(MAX_FREQUENCY), mel_bins + 2)
    corners = _mel_to_hertz(mels)[:, None]  # M+2 1: 0, the centers, the maximum
    frequencies = np.linspace(0, sample_rate // 2, fft_size // 2 + 1)  # K
    widths = np.diff(corners, axis=0)
    rising = (frequencies - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies) / widths[1:]
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (corners[2:] - corners[:-2])


def _hertz_to_mel(hertz: float) -> float:
    """Convert a frequency of at least LINEAR_HERTZ, where the scale is logarithmic, to Slaney's mel scale.

    Below it, a mel has HERTZ_PER_MEL; above it, each mel multiplies the frequency by exp(LOG_STEP).
    """
    return LINEAR_HERTZ / HERTZ_PER_MEL + float(np.log(hertz / LINEAR_HERTZ)) / LOG_STEP


def _mel_to_hertz(mels: Numbers) -> Numbers:
    """Convert numbers of Slaney's mel scale to Hz: linear below LINEAR_HERTZ, exponential above.

    Below it, a mel has HERTZ_PER_MEL; above it, each mel multiplies the frequency by exp(LOG_STEP).
    """
    border = LINEAR_HERTZ / HERTZ_PER_MEL  # in mel
    logarithmic = LINEAR_HERTZ * np.exp(LOG_STEP * (mels - border))
    return np.where(mels < border, HERTZ_PER_MEL * mels, logarithmic)
