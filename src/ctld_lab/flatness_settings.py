"""What `ctld flatness` measures. No torch: the help has the defaults from here, and comes at once."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What decides the numbers, besides the run; vectors and data are the same for all runs."""

    examples: int | None = None
    """Training data; by default what the workload says."""
    eigenvalues: int = 3
    iterations: int = 25
    """Of Lanczos; the residuals say whether they were enough."""
    probes: int = 20
    radius: float = 1e-3
    ascent: int = 10
    """Steps to the sharpest point, from each of two places."""
    sizes: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Of perturbations, relative to each tensor's root mean square."""
    draws: int = 10
    seed: int = 0

    def stored(self) -> dict[str, Any]:
        """As JSON gives it back."""
        return asdict(self) | {"sizes": list(self.sizes)}

    @property
    def parts(self) -> int:
        """How often `measure` tells."""
        return 4 + len(self.sizes)
