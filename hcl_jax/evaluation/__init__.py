# SPDX-License-Identifier: Apache-2.0
"""How good frozen features are: kNN, linear readout, cross-validated SVM."""

from hcl_jax.evaluation.knn import knn_accuracy
from hcl_jax.evaluation.knn import knn_scores
from hcl_jax.evaluation.knn import nearest_neighbors
from hcl_jax.evaluation.linear import linear_accuracy
from hcl_jax.evaluation.linear import linear_accuracy_from_batches
from hcl_jax.evaluation.svm import logistic_accuracy
from hcl_jax.evaluation.svm import svm_accuracy
