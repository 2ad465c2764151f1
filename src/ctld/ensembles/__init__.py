"""Models and samples kept along a run, and what they predict together.

    ensemble = Ensemble(model, lr=0.1, num_data=N, total_steps=6000)    # then ensemble.step(loss), ensemble.predict(inputs)

Or its parts, around an optimizer and a loop of one's own:

    collector = SampleCollector(model, optimizer)       # end-of-cycle models; with cold_every=..., cold samples too
    collector.update(loss=loss)                         # after every optimizer.step
    prediction = predict(model, collector, inputs)      # averaged probabilities, uncertainty in two parts
    prediction.metrics(labels)                          # nll, error, Brier score, calibration error

docs/ensembles.md has the whole of it.
"""

from ctld.ensembles.averages import Calibration
from ctld.ensembles.collector import SampleCollector
from ctld.ensembles.conformal import ConformalIntervals, ConformalSets, conformal
from ctld.ensembles.ensemble import Ensemble, ensemble_of
from ctld.ensembles.fit import fit_ensemble
from ctld.ensembles.metrics import Metrics, auroc, risk_coverage, smooth_ece
from ctld.ensembles.prediction import MultilabelPrediction, Prediction, RegressionPrediction, predict
from ctld.ensembles.samples import Reading, Sample, SampleRecord
from ctld.ensembles.task import Task
from ctld.ensembles.traces import traces

__all__ = [
    "Calibration",
    "ConformalIntervals",
    "ConformalSets",
    "Ensemble",
    "Metrics",
    "MultilabelPrediction",
    "Prediction",
    "Reading",
    "RegressionPrediction",
    "Sample",
    "SampleCollector",
    "SampleRecord",
    "Task",
    "auroc",
    "conformal",
    "ensemble_of",
    "fit_ensemble",
    "predict",
    "risk_coverage",
    "smooth_ece",
    "traces",
]
