"""Live thermometers: how hot each group of parameters is while it explores, and what to do where it is wrong."""

from ctld.thermometers.advice import advice
from ctld.thermometers.group import GroupTemperatures, GroupThermometer
from ctld.thermometers.thermometers import Thermometers

__all__ = ["GroupTemperatures", "GroupThermometer", "Thermometers", "advice"]
