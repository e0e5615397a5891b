# SPDX-License-Identifier: Apache-2.0
"""Reads the tasks on which representations of sentences are scored.

A folder has for each task a folder of its name, itself or below ``downstream``
as SentEval lays it out, with these files, plain or ``.gz``::

  MR      rt-polarity.pos, rt-polarity.neg         a sentence a line
  CR      custrev.pos, custrev.neg
  SUBJ    subj.objective, subj.subjective
  MPQA    mpqa.pos, mpqa.neg
  TREC    train_5500.label, TREC_10.label          CLASS:subclass question
  MRPC    msr_paraphrase_train.txt, ..._test.txt   0 or 1, two ids and two
                                                   sentences, between tabs
"""

import dataclasses
import itertools
import os
import pathlib
import re
from typing import NamedTuple
import warnings

import numpy as np

from hcl_jax.storage import text_files


@dataclasses.dataclass(frozen=True)
class SentenceTask:
  """Sentences, or pairs of them, with a class.

  Attributes:
    name: of the task.
    sentences: what to embed. In a task of pairs, the first sentences of all
      pairs and then the second ones.
    labels: classes from 0, int32 ``[n]``, one for each sentence or pair.
    num_train: so many of the first rows are to be fitted and the others to be
      scored; None where scores are cross-validated.
    is_pairs: whether it is a task of pairs.
  """

  name: str
  sentences: list[str]
  labels: np.ndarray
  num_train: int | None = None
  is_pairs: bool = False


class _Format(NamedTuple):
  """Files of a task, and how many sentences were published."""

  files: tuple[str, str]
  counts: tuple[int, ...]
  # Groups are the class, where there are names of classes, and sentences.
  line: re.Pattern = re.compile('(.*)')
  looks: str = 'a sentence'
  class_names: tuple[str, ...] = ()
  has_header: bool = False


_FORMATS = {
    'MR': _Format(('rt-polarity.pos', 'rt-polarity.neg'), (10662,)),
    'CR': _Format(('custrev.pos', 'custrev.neg'), (3775,)),
    'SUBJ': _Format(('subj.objective', 'subj.subjective'), (10000,)),
    'MPQA': _Format(('mpqa.pos', 'mpqa.neg'), (10606,)),
    'TREC': _Format(
        ('train_5500.label', 'TREC_10.label'),
        (5452, 500),
        re.compile(r'(ABBR|DESC|ENTY|HUM|LOC|NUM):\S+ (.*)'),
        "'CLASS:subclass question' with one of six classes",
        ('ABBR', 'DESC', 'ENTY', 'HUM', 'LOC', 'NUM'),
    ),
    'MRPC': _Format(
        ('msr_paraphrase_train.txt', 'msr_paraphrase_test.txt'),
        (4076, 1725),
        re.compile('([01])\t[^\t]*\t[^\t]*\t([^\t]*)\t([^\t]*)'),
        '0 or 1, two ids and two sentences, with tabs between',
        ('0', '1'),
        has_header=True,
    ),
}
TASKS = tuple(_FORMATS)


def load_sentence_task(name: str, folder: str | os.PathLike) -> SentenceTask:
  """Reads one of the six tasks.

  Warns if there are not as many sentences as published.

  Args:
    name: ``'MR'``, ``'CR'``, ``'SUBJ'``, ``'MPQA'``, ``'TREC'`` or ``'MRPC'``,
      also known as ``'MSRP'``.
    folder: has the files, as said at the top of this module; those of
      SentEval do.

  Returns:
    The task. Of tasks with a file for each class, the first has label 1.

  Raises:
    FileNotFoundError: a file is missing; the message says which and where.
    ValueError: there is no such task, or a file is not what it should be.
  """
  name = 'MRPC' if name == 'MSRP' else name
  if name not in _FORMATS:
    raise ValueError(f'name must be one of {", ".join(TASKS)}; got {name!r}.')
  layout = _FORMATS[name]
  parts = [
      _read(_find(pathlib.Path(folder), name, file), layout)
      for file in layout.files
  ]
  sizes = [len(part) for part in parts]
  found = tuple(sizes) if layout.class_names else (sum(sizes),)
  if found != layout.counts:
    warnings.warn(
        f'{name} in {folder} has {_sum(found)} sentences or pairs, but '
        f'{_sum(layout.counts)} were published: its scores are those of other '
        'data.',
        stacklevel=2,
    )
  rows = list(itertools.chain(*parts))
  if not layout.class_names:
    labels = np.repeat(np.int32([1, 0]), sizes)
    return SentenceTask(name, [sentence for (sentence,) in rows], labels)
  classes, *columns = zip(*rows, strict=True)
  return SentenceTask(
      name,
      sentences=list(itertools.chain(*columns)),
      labels=np.int32([layout.class_names.index(c) for c in classes]),
      num_train=sizes[0],
      is_pairs=len(columns) == 2,
  )


def _find(folder, name, file):
  for parent in (folder / name, folder / 'downstream' / name):
    for path in (parent / file, parent / f'{file}.gz'):
      if path.is_file():
        return path
  raise FileNotFoundError(
      f'{folder} must hold {name}/{file} or downstream/{name}/{file}, plain or '
      '.gz, for this task; it does not.'
  )


def _read(path, layout):
  """Returns the groups of each line."""
  lines = text_files.read_old_text(path).removesuffix('\n').split('\n')
  rows = []
  for number, line in enumerate(lines, 1):
    if number == 1 and layout.has_header:
      continue
    line = line.rstrip('\r')
    match = layout.line.fullmatch(line)
    if not match:
      raise ValueError(
          f'line {number} of {path} must be {layout.looks}; got {line[:60]!r}.'
      )
    rows.append(match.groups())
  if not any(map(any, rows)):
    raise ValueError(f'{path} holds no sentence.')
  return rows


def _sum(counts):
  return ' + '.join(map(str, counts))
