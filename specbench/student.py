"""Student's t, for whoever puts an interval around a mean of few values."""

import math
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=64)
def t_quantile(p: float, df: float) -> float:
    """Student's t by its angle: t = sqrt(df) tan(a), a has density ~ cos(a)^(df-1). df >= 1, fractional too."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos(angle).clip(0) ** (df - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(df) * math.tan(float(np.interp(p, mass / mass[-1], angle)))
