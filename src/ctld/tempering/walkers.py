"""Several walkers, one bias: replicas that explore on their own fill V_b(α) together (Raiteri et al. 2006; PLUMED's WALKERS).

Each walker has its own parameters, noise and order of the data. At every step all of them exchange their α, one number each,
and every one adds everybody's hills to its copy of the bias, in the same order: the copies stay equal to the last bit, and p
walkers fill the bias p times as fast.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ctld.checks import DisagreementError
from ctld.tempering.bias import Metadynamics


class SharedMetadynamics(Metadynamics):
    """Metadynamics whose hills come from all walkers of a process group.

    All walkers take their exploration steps together: each step waits for the slowest. They need seeds of their own, and the
    same `lr` (a group at lr = 0 deposits nothing, and the others would wait for it).

    Parameters
    ----------
    height, width, num_bins, edge
        As in `Metadynamics`; the height is that of each walker's hills.
    walkers : ProcessGroup, optional
        One process of each walker; the world, if left out. α is a number on the host, so where training uses NCCL a group
        with the backend gloo is the quicker one.
    """

    def __init__(
        self,
        height: float,
        width: float = 0.04,
        num_bins: int = 300,
        edge: float = 1.5,
        *,
        walkers: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(height, width, num_bins, edge)
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError("walkers need a process group; call torch.distributed.init_process_group() first")
        self._walkers = walkers
        self._deposits = 0

    @property
    def num_walkers(self) -> int:
        return dist.get_world_size(self._walkers)

    def meet(self, normal: float) -> None:
        """See that no two walkers draw the same noise; called once, with the first number that this one draws."""
        self._refuse_twins([drawn for (drawn,) in self._gather(normal)])

    def deposit(self, alpha: float) -> None:
        """Add a hill at every walker's α, if they all have the same bias and are at the same step."""
        alphas, deposits, sums = zip(*self._gather(alpha, self._deposits, float(self.values.sum())), strict=True)
        if len(set(deposits)) > 1 or len(set(sums)) > 1:
            raise DisagreementError(
                f"the walkers do not have one bias: they have made {', '.join(f'{count:.0f}' for count in deposits)} deposits; "
                "resume all of them from checkpoints of one step"
            )
        self._refuse_twins(alphas)
        for place in alphas:
            super().deposit(place)
        self._deposits += 1

    @staticmethod
    def _refuse_twins(numbers: Sequence[float]) -> None:
        """Raise an error if two walkers have equal numbers, which independent noise does not make."""
        common, count = Counter(numbers).most_common(1)[0]
        if count > 1:
            who = ", ".join(str(walker) for walker, number in enumerate(numbers) if number == common)
            raise ValueError(
                f"walkers {who} have the same seed, and so the same noise; give each a seed and a checkpoint of its own"
            )

    def _gather(self, *numbers: float) -> list[list[float]]:
        """Return a row for each walker."""
        device = "cuda" if dist.get_backend(self._walkers) == "nccl" else "cpu"
        mine = torch.tensor(numbers, dtype=torch.float64, device=device)
        everyone = [torch.empty_like(mine) for _ in range(self.num_walkers)]
        dist.all_gather(everyone, mine, group=self._walkers)
        made: list[list[float]] = torch.stack(everyone).tolist()
        return made

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"deposits": self._deposits}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._deposits = int(state_dict["deposits"])

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedMetadynamics":
        twin = SharedMetadynamics(self.height, self.width, self.num_bins, self.edge, walkers=self._walkers)
        twin.load_state_dict(self.state_dict())
        return twin
