"""The tempering variable α: its temperature scaling g, its confining well φ, its bias V_b, and what assembles them."""

from ctld.tempering.bias import Metadynamics
from ctld.tempering.calibrated import CalibratedTempering
from ctld.tempering.control import Exploration, Leg, TemperatureControl, checked_control, diverged
from ctld.tempering.falling import FallingTemperature
from ctld.tempering.paper import Tempering
from ctld.tempering.pieces import Bias, Scaling, Well
from ctld.tempering.scaling import TemperatureScaling
from ctld.tempering.walkers import SharedMetadynamics
from ctld.tempering.well import ConfiningWell

__all__ = [
    "Bias",
    "CalibratedTempering",
    "ConfiningWell",
    "Exploration",
    "FallingTemperature",
    "Leg",
    "Metadynamics",
    "Scaling",
    "SharedMetadynamics",
    "TemperatureControl",
    "TemperatureScaling",
    "Tempering",
    "Well",
    "checked_control",
    "diverged",
]
