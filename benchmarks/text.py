# SPDX-License-Identifier: Apache-2.0
"""Times the encoders of sentences, forwards and backwards, beside torch's.

  python -m benchmarks text [--bench_dataset=sentences/books]

Without a data set, lengths of sentences are log-normal with a mean of 13 and
words follow Zipf's law.
"""

from collections.abc import Callable
import importlib.util
import statistics
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import joblib
import numpy as np

from benchmarks import data_flags
from hcl_jax import command as command_lib
from hcl_jax.bench import harness
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.models import gru
from hcl_jax.models import packed_text as sentences
from hcl_jax.runs import reporting
from hcl_jax.sentences import data as sentence_data

_BATCH = flags.DEFINE_integer('text_batch', 400, 'Sentences per batch.')
_DIM = flags.DEFINE_integer('text_dim', 1200, 'Width of an embedding, even.')
_WORD_DIM = flags.DEFINE_integer('word_dim', 620, 'Width of a word vector.')
_WORDS = 20_000
_MAX_LENGTH = 50
_NOTES = """\
All embed a batch by two encoders, each with a table of words and a GRU in both
directions, and differentiate by all parameters. Tokens are words of sentences,
without padding. hcl_jax lays sentences into lanes, which is timed too; torch
packs them (pack_padded_sequence), or reads the padding. Its GRU has its reset
gate behind the product, which takes as many operations. '/ packed' and
'/ padded' are medians over repetitions of the time over torch's.\
"""


def random_sentences(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
  """Draws sentences about as long as those of novels.

  Args:
    batch: how many.
    seed: of the sentences.

  Returns:
    ``tokens``, padded to the longest that a sentence may be, and ``length``.
  """
  rng = np.random.default_rng(seed)
  length = np.clip(rng.lognormal(2.4, 0.65, batch), 1, _MAX_LENGTH)
  chances = 1 / np.arange(2, _WORDS + 2)
  tokens = rng.choice(
      _WORDS, (batch, _MAX_LENGTH), p=chances / chances.sum()
  )
  return {'tokens': tokens.astype(np.int32), 'length': length.astype(np.int32)}


def read_sentences(
    dataset: str, batch: int
) -> tuple[dict[str, np.ndarray], int]:
  """Loads a batch of a prepared corpus, and the size of its vocabulary."""
  try:
    corpus = sentence_data.load_sentences(
        dataset, data_dir=data_flags.DATA_DIR.value or None
    )
    batches = sentence_data.SentenceBatches(corpus, seed=0, batch_size=batch)
  except (ValueError, OSError) as error:
    raise command_lib.UsageError(error) from error
  rows = batches.batch(len(batches) // 2)
  columns = np.arange(len(rows.places))
  place = corpus.starts[rows.index][:, None] + columns
  length = np.minimum(corpus.lengths[rows.index], len(columns))
  tokens = corpus.tokens[np.minimum(place, len(corpus.tokens) - 1)]
  tokens = np.where(columns < length[:, None], tokens, 0)
  return {'tokens': tokens, 'length': length}, len(corpus.vocabulary)


def make_step(
    rows: dict[str, np.ndarray], encoders: gru.SentenceEncoders
) -> Callable[[], Any]:
  """Makes a function that packs sentences, embeds and differentiates."""
  params = encoders.init(jax.random.key(0), sentences.pack(**rows))

  def loss(params, batch):
    return sum(jnp.sum(z * z) for z in encoders.apply(params, batch))

  differentiate = jax.jit(
      jax.value_and_grad(loss), compiler_options=gru.compiler_options()
  )

  def step():
    return jax.block_until_ready(
        differentiate(params, sentences.pack(**rows))
    )

  return step


def measure(
    rows: dict[str, np.ndarray],
    encoders: gru.SentenceEncoders,
    with_torch: bool,
) -> list[dict[str, Any]]:
  """Returns one row for each candidate."""
  runs = {'hcl_jax': harness.timed('hcl_jax', make_step(rows, encoders))}
  for way in ('packed', 'padded') if with_torch else ():
    from benchmarks import torch_gru

    step = torch_gru.make_step(
        **rows,
        vocabulary_size=encoders.vocabulary_size,
        word_dim=encoders.word_dim,
        dim=encoders.dim,
        packed=way == 'packed',
        threads=joblib.cpu_count(),
    )
    runs[way] = harness.timed(f'torch {way}', step)
  _, clock = harness.choose_clock()
  harness.time_all(list(runs.values()), options.REPETITIONS.value, clock)
  count = int(rows['length'].sum())

  def ratio(run, way):
    others = runs[way].seconds if way in runs else []
    return harness.paired_ratio(run.seconds, others)

  return [
      {
          'name': run.name,
          'ms': 1e3 * statistics.median(run.seconds),
          'tokens_per_second': count / statistics.median(run.seconds),
          'to_packed': ratio(run, 'packed'),
          'to_padded': ratio(run, 'padded'),
          'first_seconds': run.first_seconds,
          'repetition_ms': [1e3 * x for x in run.seconds],
      }
      for run in runs.values()
  ]


def report(results: dict[str, Any]) -> str:
  """Returns the text: what ran where, the table, how to read it."""
  header = ['encoders', 'ms', 'tokens/s', '/ packed', '/ padded', 'first s']
  lines = [
      [
          r['name'],
          reporting.number(r['ms'], 1),
          reporting.number(r['tokens_per_second'], 0),
          reporting.number(r['to_packed'], 3),
          reporting.number(r['to_padded'], 3),
          reporting.number(r['first_seconds'], 1),
      ]
      for r in results['candidates']
  ]
  places, lanes = results['lanes']
  return '\n'.join([
      f'Two GRU encoders of {results["dim"]} numbers on {results["batch"]} '
      f'{results["kind"]} sentences with {results["tokens"]} tokens: '
      f'{lanes} lanes of {places} places, {results["words"]} different words '
      f'of {results["word_dim"]} numbers.',
      f'jax {results["jax"]}, backend {results["backend"]} '
      f'({results["device_kind"]}), {results["cores"]} host core(s); torch '
      'runs on the host.',
      f'Medians of {results["repetitions"]} repetitions, {results["clock"]}:',
      '',
      reporting.table(header, lines),
      '',
      _NOTES,
  ])


def command() -> None:
  """Times the sentence encoders, forwards and backwards, beside torch's."""
  if options.ONE_CORE.value:
    harness.pin_to_one_core()
  options.check()
  for flag in (_BATCH, _WORD_DIM):
    options.at_least(flag, 1)
  options.at_least(_DIM, 2)
  if _DIM.value % 2:
    raise command_lib.UsageError(f'--text_dim must be even, got {_DIM.value}.')
  with_torch = importlib.util.find_spec('torch') is not None
  if not with_torch:
    output.say('not installed: torch')
  dataset, vocabulary_size = data_flags.DATASET.value, _WORDS
  if dataset:
    rows, vocabulary_size = read_sentences(dataset, _BATCH.value)
  else:
    rows = random_sentences(_BATCH.value)
  encoders = gru.SentenceEncoders(
      vocabulary_size, word_dim=_WORD_DIM.value, dim=_DIM.value
  )
  batch = sentences.pack(**rows)
  results = {
      'command': 'text',
      **harness.environment(),
      'kind': dataset or 'random',
      'batch': _BATCH.value,
      'dim': _DIM.value,
      'word_dim': _WORD_DIM.value,
      'tokens': int(rows['length'].sum()),
      'lanes': batch.places.shape,
      'words': len(batch.words),
      'repetitions': options.REPETITIONS.value,
      'candidates': measure(rows, encoders, with_torch),
  }
  print(report(results))
  if options.JSON.value:
    reporting.write_json(options.JSON.value, results)
