"""Estimators in scikit-learn's manner over the same training as a run's."""

from clam_dist.estimators.clam import ClAM
from clam_dist.estimators.deep import DClAM
from clam_dist.estimators.tdcm import TDCM

__all__ = ["TDCM", "ClAM", "DClAM"]
