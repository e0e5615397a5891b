# SPDX-License-Identifier: Apache-2.0
"""Scores frozen features: kNN, linear probes, retrieval, cross-validation."""

from hcl_jax.evaluation.knn import knn_accuracy
from hcl_jax.evaluation.knn import knn_scores
from hcl_jax.evaluation.knn import nearest_neighbors
from hcl_jax.evaluation.linear import linear_accuracy
from hcl_jax.evaluation.linear import linear_accuracy_from_batches
from hcl_jax.evaluation.retrieval import Ranks
from hcl_jax.evaluation.retrieval import paired_difference
from hcl_jax.evaluation.retrieval import ranks_of_scores
from hcl_jax.evaluation.retrieval import retrieval_ranks
from hcl_jax.evaluation.retrieval import retrieval_values
from hcl_jax.evaluation.sentences import paraphrase_scores
from hcl_jax.evaluation.sentences import question_accuracy
from hcl_jax.evaluation.sentences import sentence_accuracy
from hcl_jax.evaluation.sentences import sentence_scores
from hcl_jax.evaluation.svm import logistic_accuracy
from hcl_jax.evaluation.svm import svm_accuracy
