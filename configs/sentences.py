# SPDX-License-Identifier: Apache-2.0
"""Quick-thoughts with hard negatives: sentences that know their neighbors.

  python -m hcl_jax.prepare --dataset=books --text=books.txt.xz
  python -m hcl_jax.train --config=configs/sentences.py:small,hard --workdir=DIR

With --config.evaluate.tasks_dir=FOLDER the run is scored on MR, CR, SUBJ, MPQA,
TREC and MRPC at its end; hcl_jax.evaluate --protocol=sentences does so later.

The argument is a size, small (default), tiny or released, and a variant, hard
(default), debiased or standard, with a comma between them. As in the paper,
hard is beta = 1 with tau_plus = 0, and debiased tau_plus = 0.01 with beta = 0.

released has the settings of quick-thoughts: two encoders of 600 units for each
direction and 620 numbers for a word, Adam at 5e-4 with the gradient of each
variable clipped to norm 5, one epoch of batches of 400 consecutive sentences.
How hard negatives entered was never released; --config.loss.clip_scale,
self_pair, floor and window are the choices. Meant for tens of millions of
sentences and a GPU or TPU; not run to the end by us.

small is for a CPU: 150 units, 200 numbers for a word, batches of 256 made of
blocks of 32 neighboring sentences in an order of the seed, and a cosine from
4e-3, the best of four rates for the standard loss. Run with
--config.train.steps=2000, half an epoch of a million sentences, seeds 0 and 1,
on two cores of an AMD EPYC: mean accuracy of the six tasks in percent standard
74.9, debiased 74.8, hard 73.9, and 73.3 with beta = 2; with
--config.loss.stop_gradient_clip=true 75.5, and 75.8 with beta = 2.
docs/sentences.md has all of it. A run takes eight to ten minutes of one core.

tiny is small for a text of your own of up to some ten thousand sentences: 20
epochs of batches of 64 made of blocks of 16.
"""

from hcl_jax.sentences import config as sentence_config

_SIZES = ('tiny', 'small', 'released')
_NUMBERS = {'standard': (0.0, 0.0), 'debiased': (0.0, 0.01), 'hard': (1.0, 0.0)}


def get_config(argument='small,hard'):
  size, _, variant = argument.partition(',')
  variant = variant or 'hard'
  if size not in _SIZES or variant not in _NUMBERS:
    raise ValueError(
        f'the argument must be SIZE,VARIANT with a size of {", ".join(_SIZES)} '
        f'and a variant of {", ".join(_NUMBERS)}; got {argument!r}.'
    )
  config = sentence_config.quick_thoughts()
  config.loss.beta, config.loss.tau_plus = _NUMBERS[variant]
  if size != 'released':
    config.data.batch_size = 256
    config.data.order = 'blocks'
    config.data.block_size = 32
    config.model.word_dim = 200
    config.model.dim = 300
    config.optimizer.learning_rate = 4e-3
    config.optimizer.schedule = 'cosine'
    config.train.checkpoint_every_epochs = 0.1
    config.evaluate.retrieval_every_epochs = 0.1
  if size == 'tiny':
    config.data.batch_size = 64
    config.data.block_size = 16
    config.train.epochs = 20
    config.train.checkpoint_every_epochs = 5.0
    config.evaluate.retrieval_every_epochs = 5.0
  return config
