# SPDX-License-Identifier: Apache-2.0
"""Points, on a circle or of a file.

  python -m hcl_jax.prepare --domain=tests.support.toy --dataset=circle
"""

import pathlib

import numpy as np
import tensorflow_datasets as tfds

from hcl_jax.storage import sources
from hcl_jax.storage.preparing import Flag

FLAGS = {
    'text': Flag(str, None, 'File with an angle a line.', is_source=True),
    'num_points': Flag(int, 4, 'Points of a circle.'),
}


class Points(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Points as a data set."""

  VERSION = tfds.core.Version('1.0.0')

  def __init__(self, *, name, angles, source, **kwargs):
    self.name, self._angles, self._source = name, angles, source
    super().__init__(**kwargs)

  def _info(self):
    return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict({'angle': np.float32}),
        metadata=tfds.core.MetadataDict(source=self._source),
    )

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples()}

  def _generate_examples(self):
    for i, angle in enumerate(self._angles):
      yield i, {'angle': np.float32(angle)}


def full_name(dataset):
  return dataset


def source(dataset, options):
  return sources.measure(options['text']) if options['text'] else None


def builder(dataset, options, source, **where):
  if options['text']:
    angles = pathlib.Path(options['text']).read_text().split()
  else:
    angles = np.linspace(0, 2 * np.pi, options['num_points'], endpoint=False)
  return Points(name=dataset, angles=angles, source=source, **where)


def describe(dataset, info, where):
  return f'({info.splits["train"].num_examples} points): see{where}'
