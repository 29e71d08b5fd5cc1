"""What a job will do before it runs: exact counts of its messages and rows, what these cost, and what limits it."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.forecast.batches import BatchTrace, GraphTracer
    from glt.forecast.calibration import calibrate
    from glt.forecast.costs import Costs
    from glt.forecast.counts import Counts, Placement, count_batches
    from glt.forecast.model import Cluster, JobForecast, Shape, forecast_job

__all__ = [
    "BatchTrace",
    "Cluster",
    "Costs",
    "Counts",
    "GraphTracer",
    "JobForecast",
    "Placement",
    "Shape",
    "calibrate",
    "count_batches",
    "forecast_job",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ["BatchTrace", "GraphTracer"],
        "calibration": ["calibrate"],
        "costs": ["Costs"],
        "counts": ["Counts", "Placement", "count_batches"],
        "model": ["Cluster", "JobForecast", "Shape", "forecast_job"],
    },
)
