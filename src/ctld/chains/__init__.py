"""M runs of one model side by side in one process: one forward and one backward pass for all of them, through `torch.func`.

    chains = Chains(models, optimizers, loss)           # M models, M optimizers, loss(model, *batch)
    losses = chains.backward(inputs, labels)            # M losses; gradients are in every model's p.grad
    chains.step()                                       # every optimizer, with its own loss

`ctld.diagnostics` has R-hat and effective sample sizes of what they draw; docs/chains.md says when it pays.
"""

from ctld.chains.chains import Chains, NonFiniteChainsError
from ctld.chains.replica_exchange import ReplicaExchange
from ctld.chains.separate import SeparateChains

__all__ = ["Chains", "NonFiniteChainsError", "ReplicaExchange", "SeparateChains"]
