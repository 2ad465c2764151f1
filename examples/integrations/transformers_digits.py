"""CTLD under the Hugging Face Trainer: another import of `Trainer`, and two of its defaults set right for a sampler.

python examples/integrations/transformers_digits.py
"""

import tempfile

from digits import BATCH, EPOCHS, network, report, train_set
from torch import Tensor, nn
from transformers import TrainingArguments

import ctld
from ctld.integrations.transformers import Trainer, sampler_arguments


class Digits(nn.Module):
    """A model as transformers has them: it returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


if __name__ == "__main__":
    data = [{"inputs": inputs, "labels": label} for inputs, label in train_set()]
    model = Digits()
    optimizer = ctld.CTLD(model.parameters(), lr=0.1, weight_decay=1e-3, num_data=len(data), exploration_steps=100)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH // 2,
            gradient_accumulation_steps=2,
            **sampler_arguments(),
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model, args, train_dataset=data, optimizers=(optimizer, None)).train()
    report(model.network)
