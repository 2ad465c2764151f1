"""A parameter or a buffer of all chains as one tensor, chains first, in whose memory each chain's own tensor lies."""

import torch
from torch import Tensor, nn


class Stack:
    """Tensors of one shape, merged; `members` are the chains' own, whose memory moves into slices of `whole`."""

    def __init__(self, name: str, members: list[Tensor], registries: list[dict[str, Tensor]]) -> None:
        self.name = name
        self.members = members
        self.whole = torch.stack([member.detach() for member in members])
        for member, part in zip(members, self.whole, strict=True):
            member.data = part
        self._registries = registries  # where each model has its own
        self._addresses = [member.data_ptr() for member in members]
        self._gradients: list[Tensor] = []

    @property
    def trained(self) -> bool:
        """True if at least one chain wants its gradient."""
        return any(member.requires_grad for member in self.members)

    def check_memory(self) -> None:
        """Raise an error unless the models' tensors are still the members, in the memory where they were put."""
        key = self.name.rpartition(".")[2]
        places = zip(self.members, self._registries, self._addresses, strict=True)
        for chain, (member, registry, address) in enumerate(places):
            if registry.get(key) is not member or member.data_ptr() != address:
                raise ValueError(
                    f"{self.name} of chain {chain} has left the chains' common memory (by model.to(...), a new .data, another "
                    "tensor in its place): move and convert models before Chains is built, and load values by load_state_dict"
                )

    def hand_out(self, gradient: Tensor | None) -> None:
        """Give each member its slice as gradient. A frozen or unused member gets none, as in a run of its own."""
        if gradient is not None:
            if not self._gradients:
                self._whole_gradient = torch.empty_like(self.whole)
                self._gradients = list(self._whole_gradient)
            # A place of their own: optimizers find the gradients where they were, and in row-major order.
            self._whole_gradient.copy_(gradient)
        for chain, member in enumerate(self.members):
            own = self._gradients[chain] if gradient is not None and member.requires_grad else None
            if member.grad is not own:
                member.grad = own


def stacks_of(models: list[nn.Module]) -> tuple[dict[str, Stack], dict[str, Stack]]:
    """Return the stacks of the parameters and those of the buffers, by name. Nothing has moved if the models are refused."""
    kinds = "parameters", "buffers"
    everything = [_alike(models, kind) for kind in kinds]
    parameters, buffers = (
        {
            name: Stack(
                name, members, [getattr(model.get_submodule(name.rpartition(".")[0]), f"_{kind}") for model in models]
            )
            for name, members in tensors.items()
        }
        for kind, tensors in zip(kinds, everything, strict=True)
    )
    return parameters, buffers


def _alike(models: list[nn.Module], kind: str) -> dict[str, list[Tensor]]:
    """The tensors of all models by name; models that differ in more than values are refused."""
    everything: list[dict[str, Tensor]] = [dict(getattr(model, f"named_{kind}")()) for model in models]
    first = everything[0]
    for chain, own in enumerate(everything):
        if own.keys() != first.keys():
            odd = sorted(own.keys() ^ first.keys())
            raise ValueError(f"chain {chain} and chain 0 have not the same {kind}: {odd}; build all models alike")
        for name, tensor in own.items():
            here, there = ((tuple(each.shape), each.dtype, each.device) for each in (tensor, first[name]))
            if here != there:
                raise ValueError(
                    f"{name} of chain {chain} has shape, dtype and device {here}, that of chain 0 {there}; build all "
                    "models alike"
                )
    for name in first:
        if len({id(own[name]) for own in everything}) < len(models):
            raise ValueError(f"{name} is one tensor in several chains; give each a model of its own (copy.deepcopy)")
    return {name: [own[name] for own in everything] for name in first}
