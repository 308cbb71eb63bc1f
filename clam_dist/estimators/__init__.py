"""Estimators in scikit-learn's manner over the same training as a run's."""

from clam_dist.estimators.clam import ClAM

__all__ = ["ClAM"]
