"""Temperatures of the groups of parameters, measured while a run goes on, and the advice that they give."""

from ctld.thermometers.group import SAME, ExploringGroup, GroupTemperatures, GroupThermometer
from ctld.thermometers.thermometers import ADVICE_PERIOD, Thermometers

__all__ = ["ADVICE_PERIOD", "SAME", "ExploringGroup", "GroupTemperatures", "GroupThermometer", "Thermometers"]
