"""LoRA by peft, as an ensemble around AdamW: members are adapters, and the frozen model is held once.

python examples/integrations/peft_digits.py
"""

import torch
from digits import BATCH, EPOCHS, network, split
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ctld


def pretrained(inputs: Tensor, labels: Tensor) -> nn.Module:
    """A network that reads digits upside down: what is to be fine-tuned."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.flip(1)), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def adapted(model: nn.Module) -> nn.Module:
    """The network with adapters of rank 8 in its first layer; its last one is trained whole."""
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["0"], modules_to_save=["2"]))


if __name__ == "__main__":
    inputs, test_inputs, labels, test_labels = split()
    few = 600
    model = adapted(pretrained(inputs[few:], labels[few:]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loader = DataLoader(TensorDataset(inputs[:few], labels[:few]), BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    ensemble = ctld.Ensemble.around(optimizer, model, 2 * EPOCHS * len(loader), cycles=4)
    while not ensemble.done:
        for batch, batch_labels in loader:
            loss = nn.functional.cross_entropy(model(batch), batch_labels)
            loss.backward()
            ensemble.step(loss)
    found = ensemble.predict(test_inputs).metrics(test_labels)
    last = ctld.predict(model, list(ensemble.collector)[-1:], test_inputs).metrics(test_labels)
    whole = sum(parameter.numel() for parameter in model.parameters())
    print(f"{sum(parameter.numel() for parameter in trained)} of {whole} numbers are trained: {ensemble}")
    print(f"nll {found['nll']:.3f} of four members together, {last['nll']:.3f} of the last one alone")
    print(f"accuracy {1 - found['error']:.3f}")
