"""Stacked denoising autoencoder on MNIST, trained greedily, layer by layer (the paper, section 5.1 and Fig. 2).

Stack i encodes and decodes, dims[i] → dims[i+1] → dims[i], and reconstructs its clean input: the image for the first,
the code of the trained stacks below for the others. Loss and metric `mse`: half the mean square over elements. Dropout on
the input of every stack but the first and on the code of every stack but the last; ReLU on every code, and on every
reconstruction but the first. Xavier initialisation, biases zero. Widths, dropout and pixels scaled by 0.02 (0 to 5.1) are
those of MXNet's example, which the paper's authors used; hence the axis of Fig. 2.

The paper compares `mse`, the error of a layer on its own input. From the second layer on, that input is made by the method
itself: codes that have died are reconstructed without error. `image_mse` cannot be had so cheaply: the same half mean square
between the image and what comes back from the present code through all decoders.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctld_lab.streams import numpy_generator, torch_generator
from ctld_lab.workloads.workload import Probe, Shuffled, Workload, evenly_spaced, floating_point

PIXEL_SCALE = 0.02
CHUNK = 2000  # rows at a time, where no gradient is needed
PROBE_IMAGES = 1000


class Dropout(nn.Module):
    """Dropout whose masks are a function of (seed, stage, step).

    Masks are 16 random bits an element, several times quicker on a CPU than torch's draw of one number each. p is rounded to a
    multiple of 2⁻¹⁶, and the scale by which what stays is multiplied fits it.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout = {p} must be at least 0 and below 1")
        self.p = p
        self.generator: np.random.Generator | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return inputs
        if self.generator is None:
            raise RuntimeError(
                "dropout has no generator for this step; call loss(step), or eval() for what is not trained"
            )
        threshold, size = round(self.p * 2**16), inputs.numel()
        words = np.asarray(self.generator.bit_generator.random_raw(-(-size // 4)), "<u8")
        bits = words.view(np.uint16)[:size].reshape(inputs.shape)
        # Through bytes: torch is slow at turning truth into numbers.
        kept = torch.from_numpy((bits >= threshold).view(np.uint8)).to(inputs.dtype)
        return inputs * kept.mul_(2**16 / (2**16 - threshold))


class Stack(nn.Module):
    """One autoencoder of the stack."""

    def __init__(
        self, wide: int, narrow: int, *, first: bool, last: bool, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = nn.Linear(wide, narrow)
        self.decoder = nn.Linear(narrow, wide)
        for layer in (self.encoder, self.decoder):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.input_dropout = Dropout(0.0 if first else dropout)
        self.code_dropout = Dropout(0.0 if last else dropout)
        self.linear_output = first

    def encode(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.encoder(self.input_dropout(inputs)))

    def decode(self, code: Tensor) -> Tensor:
        made: Tensor = self.decoder(self.code_dropout(code))
        return made if self.linear_output else torch.relu(made)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decode(self.encode(inputs))


class SdA(Workload):
    """`images` and `held_out` are pixels, one row an image; `held_out_name` is "test", or "valid" while tuning."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        held_out: NDArray[np.uint8],
        *,
        held_out_name: str,
        seed: int,
        widths: Sequence[int] = (784, 500, 500, 2000, 10),
        batch_size: int = 128,
        dropout: float = 0.2,
        curve_rows: int = 1000,
        dtype: str = "float32",
    ) -> None:
        if widths[0] != images.shape[1]:
            raise ValueError(f"widths start with {widths[0]}, an image has {images.shape[1]} pixels; let them agree")
        self.stages = len(widths) - 1
        self.num_data = len(images)
        self.batch_size = batch_size
        self.batches = Shuffled(seed, len(images), batch_size)
        self._seed, self._curve_rows = seed, curve_rows
        self._pixels = {"train": images, held_out_name: held_out}
        self._inputs: dict[str, Tensor] = {}
        self._stage = -1
        self._dtype = floating_point(dtype)
        self.stacks = [
            Stack(
                widths[stage],
                widths[stage + 1],
                first=stage == 0,
                last=stage == self.stages - 1,
                dropout=dropout,
                generator=torch_generator(seed, "initialisation", stage),
            )
            for stage in range(self.stages)
        ]
        self.model = nn.ModuleList(self.stacks).to(self._dtype)

    def begin(self, stage: int) -> list[nn.Parameter]:
        """The codes of the stacks below are computed once, here: they no longer change."""
        self._stage = stage
        self._inputs = {split: self._codes(pixels, stage) for split, pixels in self._pixels.items()}
        stack = self.stacks[stage]
        stack.train()
        return list(stack.parameters())

    def loss(self, step: int) -> Tensor:
        """Half the mean square error on a batch, dropout and all."""
        stack = self.stacks[self._stage]
        generator = numpy_generator(self._seed, "dropout", self._stage, step)
        stack.input_dropout.generator = stack.code_dropout.generator = generator
        clean = self._inputs["train"].index_select(0, self.batches.rows(self._stage, step))
        made = stack(clean)
        return 0.5 * nn.functional.mse_loss(made, clean)

    @torch.no_grad()
    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Errors without dropout; thorough is on all that is held out, and on as many images of the training set."""
        trained = [self.stacks[stage].eval() for stage in range(self._stage + 1)]
        count = min(map(len, self._pixels.values())) if thorough else self._curve_rows
        metrics = {}
        for split, inputs in self._inputs.items():
            error = image_error = 0.0  # summed in float64: they are means over millions of elements
            rows, pixels = inputs[:count], torch.from_numpy(self._pixels[split][:count])
            for part, image in zip(torch.split(rows, CHUNK), torch.split(pixels, CHUNK), strict=True):
                made = trained[-1](part)
                error += float((made - part).double().square().sum())
                for stack in reversed(trained[:-1]):
                    made = stack.decode(made)
                image_error += float((made - image.to(self._dtype) * PIXEL_SCALE).double().square().sum())
            metrics[split] = {"mse": 0.5 * error / rows.numel(), "image_mse": 0.5 * image_error / pixels.numel()}
        trained[-1].train()
        return metrics

    def probe(self, size: int | None = None) -> Probe:
        """The error of the image that comes back through the whole stack, by all parameters.

        That is the model whose test error counts, but no stage has minimised it: the gradient need not be small. A stage's own
        loss would not do, since a layer whose codes have died is flat.
        """
        rows = evenly_spaced(size or PROBE_IMAGES, self.num_data)
        images = torch.from_numpy(self._pixels["train"][rows]).to(self._dtype) * PIXEL_SCALE
        for stack in self.stacks:
            stack.eval()

        def loss() -> Tensor:
            made = images
            for stack in self.stacks:
                made = stack.encode(made)
            for stack in reversed(self.stacks):
                made = stack.decode(made)
            return 0.5 * nn.functional.mse_loss(made, images)

        what = f"half the mean square error of {len(rows):,} training images that come back through the whole stack"
        return Probe(loss, list(self.model.parameters()), len(rows), what, "image_mse")

    @torch.no_grad()
    def _codes(self, pixels: NDArray[np.uint8], stage: int) -> Tensor:
        below = [self.stacks[index].eval() for index in range(stage)]
        parts = []
        for part in torch.split(torch.from_numpy(pixels), CHUNK):
            codes = part.to(self._dtype) * PIXEL_SCALE
            for stack in below:
                codes = stack.encode(codes)
            parts.append(codes)
        return torch.cat(parts)
