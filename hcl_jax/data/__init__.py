# SPDX-License-Identifier: Apache-2.0
"""Data sets: prepared once with tfds, read without TensorFlow."""

from hcl_jax.data.batches import batches
from hcl_jax.data.batches import steps_per_epoch
from hcl_jax.data.graphs import GraphBatches
from hcl_jax.data.graphs import Graphs
from hcl_jax.data.graphs import common_paddings
from hcl_jax.data.graphs import load_graphs
from hcl_jax.data.images import Images
from hcl_jax.data.images import load
from hcl_jax.data.sentence_batches import SentenceBatches
from hcl_jax.data.sentence_batches import pad_sentences
from hcl_jax.data.sentence_tasks import TASKS as SENTENCE_TASKS
from hcl_jax.data.sentence_tasks import SentenceTask
from hcl_jax.data.sentence_tasks import load_sentence_task
from hcl_jax.data.sentences import Sentences
from hcl_jax.data.sentences import load_sentences
from hcl_jax.data.vocabulary import Vocabulary
from hcl_jax.data.word_vectors import expand_vocabulary
from hcl_jax.data.word_vectors import read_word_vectors
