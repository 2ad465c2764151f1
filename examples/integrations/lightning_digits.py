"""CTLD under Lightning: the optimizer comes from `configure_optimizers`, and the trainer gets one callback.

python examples/integrations/lightning_digits.py
"""

import lightning.pytorch as pl
from digits import BATCH, EPOCHS, network, report, train_set
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ctld
from ctld.integrations.lightning import WatchLoss


class Digits(pl.LightningModule):
    def __init__(self, num_data: int) -> None:
        super().__init__()
        self.network, self.num_data = network(), num_data

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> ctld.CTLD:
        return ctld.CTLD(self.parameters(), lr=0.1, weight_decay=1e-3, num_data=self.num_data, exploration_steps=100)


if __name__ == "__main__":
    data = train_set()
    module = Digits(len(data))
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        callbacks=[WatchLoss()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, BATCH // 2, shuffle=True))
    report(module.network)
