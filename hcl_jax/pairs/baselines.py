# SPDX-License-Identifier: Apache-2.0
"""Ranks documents by what needs no training, to see what it brings."""

from collections.abc import Iterator

import numpy as np
from sklearn.feature_extraction import text as sklearn_text

from hcl_jax import evaluation
from hcl_jax.pairs import data as pair_data
from hcl_jax.pairs import items as items_lib
from hcl_jax.training import experiment as experiment_lib

_NGRAMS = (2, 4)  # characters
_QUERIES = 256


def rank(
    pairs: pair_data.Pairs,
    queries: np.ndarray,
    query_ids: np.ndarray,
    poll: experiment_lib.Poll = lambda *_: None,
) -> tuple[str, evaluation.Ranks] | None:
  """Finds the ranks of the right documents of some queries.

  Texts are ranked by tf-idf of their n-grams, vectors and images by the cosine
  of queries and documents as they are.

  Args:
    pairs: the data set.
    queries: rows of queries.
    query_ids: their ids.
    poll: called often; raises to leave.

  Returns:
    The name of the ranking, and ranks; None if queries and documents cannot be
    compared.
  """
  kinds = {items_lib.kind(x) for x in (pairs.queries, pairs.documents)}
  wanted = items_lib.take(pairs.queries, queries)
  if kinds == {'text'}:
    ranks = evaluation.ranks_of_scores(
        _tfidf(pairs.documents, wanted, poll),
        query_ids,
        pairs.ids,
        document_groups=pairs.groups,
    )
    return 'tf-idf', ranks
  if 'text' in kinds or wanted.shape[1:] != pairs.documents.shape[1:]:
    return None
  flat = (
      np.asarray(x, np.float32).reshape(len(x), -1)
      for x in (wanted, pairs.documents)
  )
  ranks = evaluation.retrieval_ranks(
      *flat, query_ids, pairs.ids, document_groups=pairs.groups
  )
  return 'as they are', ranks


def _tfidf(documents, queries, poll) -> Iterator[np.ndarray]:
  """Yields scores of blocks of queries, ``[b, documents]``."""
  weigh = sklearn_text.TfidfVectorizer(
      analyzer='char', ngram_range=_NGRAMS, dtype=np.float32
  )
  bank = weigh.fit_transform(documents).T
  rows = weigh.transform(queries)
  for start in range(0, len(queries), _QUERIES):
    poll(start, len(queries), 'queries')
    yield (rows[start : start + _QUERIES] @ bank).toarray()
