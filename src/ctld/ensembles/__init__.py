"""Models and samples kept along a run, and what they predict together.

    collector = SampleCollector(model, optimizer)       # end-of-cycle models; with cold_every=..., cold samples too
    collector.update(loss=loss)                         # after every optimizer.step
    prediction = predict(model, collector, inputs)      # averaged probabilities, uncertainty in two parts
    prediction.metrics(labels)                          # nll, error, Brier score, ECE

docs/ensembles.md has the whole of it.
"""

from ctld.ensembles.collector import SampleCollector
from ctld.ensembles.metrics import Metrics
from ctld.ensembles.prediction import Prediction, RegressionPrediction, predict
from ctld.ensembles.samples import Reading, Sample, SampleRecord
from ctld.ensembles.traces import traces

__all__ = [
    "Metrics",
    "Prediction",
    "Reading",
    "RegressionPrediction",
    "Sample",
    "SampleCollector",
    "SampleRecord",
    "predict",
    "traces",
]
