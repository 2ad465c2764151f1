"""Accelerate and Fabric take the plain loop's path; what they make of the optimizer says what it says itself."""

import accelerate
import pytest
import torch
from lightning.fabric import Fabric
from plain import BATCH, EXPLORATION, STEPS, build, data, dataset, flat, network, plain_loop
from torch import nn
from torch.utils.data import DataLoader

from ctld.integrations import unwrap, watch


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def accelerator_of():
    def build_one(**options):
        accelerate.state.AcceleratorState._reset_state()
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=True, **options)

    yield build_one
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()


class TestAccelerate:
    @pytest.mark.parametrize("accumulation", [1, 4])
    def test_same_path(self, accelerator_of, accumulation):
        accelerator = accelerator_of(gradient_accumulation_steps=accumulation)
        model = network()
        loader = DataLoader(dataset(STEPS * accumulation), BATCH)
        model, optimizer, loader = accelerator.prepare(model, build(model), loader)
        potentials = []
        for batch in loader:
            with accelerator.accumulate(model):
                loss = watch(optimizer, loss_of(model, batch))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    potentials.append(unwrap(optimizer).last.potential)
        expected, _, plain_potentials = plain_loop(accumulation=accumulation)
        torch.testing.assert_close(flat(model), expected, rtol=1e-6, atol=1e-7)
        assert potentials[:EXPLORATION] == pytest.approx(plain_potentials[:EXPLORATION], rel=1e-6)

    @pytest.mark.parametrize("by", ["closure", "position"])
    def test_the_portable_step(self, accelerator_of, by):
        """`step(loss=loss)` is a TypeError of Accelerate's; these are not."""
        accelerator = accelerator_of()
        model = network()
        model, optimizer, loader = accelerator.prepare(model, build(model), DataLoader(dataset(), BATCH))
        for batch in loader:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step((lambda loss=loss: loss) if by == "closure" else loss)
            optimizer.zero_grad()
        assert torch.equal(flat(model), plain_loop()[0])

    def test_scaler(self, accelerator_of):
        """A scaler that Accelerate keeps is found by `watch`, and its scale divided out."""
        accelerator = accelerator_of()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model = network()
        optimizer = accelerate.optimizer.AcceleratedOptimizer(build(model), scaler=accelerator.scaler)
        for batch in zip(*(part.split(BATCH) for part in data()), strict=True):
            loss = watch(optimizer, loss_of(model, batch))
            accelerator.scaler.scale(loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(flat(model), plain_loop()[0], rtol=1e-6, atol=1e-7)

    def test_resume_goes_on_bit_by_bit(self, accelerator_of, tmp_path):
        ends = []
        for stop in (None, 10):
            accelerator = accelerator_of()
            model = network()
            model, optimizer = accelerator.prepare(model, build(model))
            for step, batch in enumerate(zip(*(part.split(BATCH) for part in data()), strict=True)):
                if step == stop:
                    accelerator.save_state(tmp_path / "state")
                    model = network()
                    accelerator = accelerator_of()
                    model, optimizer = accelerator.prepare(model, build(model, seed=9))
                    accelerator.load_state(tmp_path / "state")
                accelerator.backward(watch(optimizer, loss_of(model, batch)))
                optimizer.step()
                optimizer.zero_grad()
            ends.append(flat(model))
        assert torch.equal(*ends)


class TestFabric:
    @staticmethod
    def run(hand_over, accumulation=1):
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        model = network()
        model, optimizer = fabric.setup(model, build(model))
        said = []
        for index, batch in enumerate(zip(*(part.split(BATCH) for part in data(STEPS * accumulation)), strict=True), 1):
            loss = loss_of(model, batch)
            hand_over(fabric, optimizer, loss, accumulation, index % accumulation == 0)
            if index % accumulation == 0:
                optimizer.zero_grad()
                said.append((optimizer.exploring, optimizer.state_dict()["param_groups"][0]["ctld_step"]))
        assert said == [(step < EXPLORATION, step) for step in range(1, STEPS + 1)]
        return flat(model)

    @pytest.mark.parametrize("accumulation", [1, 4])
    def test_watched(self, accumulation):
        def hand_over(fabric, optimizer, loss, accumulation, last):
            optimizer.watch(loss)
            fabric.backward(loss / accumulation)
            if last:
                optimizer.step()

        end = self.run(hand_over, accumulation)
        torch.testing.assert_close(end, plain_loop(accumulation=accumulation)[0], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("by", ["closure", "position"])
    def test_the_portable_step(self, by):
        def hand_over(fabric, optimizer, loss, *_):
            fabric.backward(loss)
            optimizer.step((lambda: loss) if by == "closure" else loss)

        assert torch.equal(self.run(hand_over), plain_loop()[0])


def test_what_is_not_ours_is_refused():
    model = network()
    with pytest.raises(TypeError, match="SGD is not an optimizer of ctld's"):
        watch(torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(()))
