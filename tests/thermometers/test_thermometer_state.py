"""What a thermometer says is a function of what it saves: a run that goes on leaves the trace of one that did not stop."""

import random

from ctld.thermometers import GroupThermometer


def test_a_thermometer_that_is_saved_at_any_step_says_the_same():
    generator, thermometer = random.Random(1), GroupThermometer()
    for step in range(600):
        thermometer.read(generator.random(), 1.0)
        if step % 7 == 0:
            thermometer.read_probe(generator.random(), generator.random(), 1.0)
        loaded = GroupThermometer()
        loaded.numbers = thermometer.numbers
        assert loaded.temperatures == thermometer.temperatures, step
    assert thermometer.temperatures.minibatch_heat is not None
