"""Deep LSTMs with fast-forward connections (Zhou et al. 2016)."""

from __future__ import annotations
