"""Retrieval data sets whose queries are grouped by where in the passage the answer stands."""

from jaxcal.evaluation.datasets.base import Benchmark, PositionDataset, Task, Topics
from jaxcal.evaluation.datasets.pydoc import load_pydoc_posq, read_pydoc_posq

__all__ = ["Benchmark", "PositionDataset", "Task", "Topics", "load_pydoc_posq", "read_pydoc_posq"]
