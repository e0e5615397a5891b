# SPDX-License-Identifier: Apache-2.0
"""Is the room of sentences: corpora, quick-thoughts, evaluation."""

from hcl_jax.models.packed_text import SentenceBatch
from hcl_jax.models.packed_text import pack
from hcl_jax.models.vocabulary import Vocabulary
from hcl_jax.sentences.data import SentenceBatches
from hcl_jax.sentences.data import Sentences
from hcl_jax.sentences.data import load_sentences
from hcl_jax.sentences.data import pack_sentences
from hcl_jax.sentences.scored_tasks import SentenceTask
from hcl_jax.sentences.scored_tasks import load_sentence_task
from hcl_jax.sentences.word_vectors import expand_vocabulary
from hcl_jax.sentences.word_vectors import read_word_vectors
