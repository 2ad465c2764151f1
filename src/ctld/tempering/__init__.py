"""The tempering variable α: its temperature scaling g, its confining well φ, its bias V_b, and what assembles them."""

from ctld.tempering.bias import Metadynamics
from ctld.tempering.calibrated import CalibratedTempering, Move
from ctld.tempering.scaling import TemperatureScaling
from ctld.tempering.tempering import Bias, Scaling, TemperatureControl, Tempering, Well, checked_control
from ctld.tempering.walkers import SharedMetadynamics
from ctld.tempering.well import ConfiningWell

__all__ = [
    "Bias",
    "CalibratedTempering",
    "ConfiningWell",
    "Metadynamics",
    "Move",
    "Scaling",
    "SharedMetadynamics",
    "TemperatureControl",
    "TemperatureScaling",
    "Tempering",
    "Well",
    "checked_control",
]
