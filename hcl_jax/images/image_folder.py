# SPDX-License-Identifier: Apache-2.0
"""Finds the images of a folder, and builds a tfds data set of them.

Three layouts::

  folder/[class/...]/file            split by a hash of the file's name
  folder/split/[class/...]/file      split is train, test, val or validation;
                                     a lone train is split by the hash too
  tiny-imagenet-200                  val/val_annotations.txt has the classes

Without class folders the images are unlabeled. Folders inside a class folder
belong to the class. Hidden files are passed over.
"""

import collections
from collections.abc import Mapping
import contextlib
import hashlib
import itertools
import math
import os
import pathlib
import sys
from typing import Any
from typing import NamedTuple
import unicodedata

from PIL import Image
import tensorflow_datasets as tfds
import tqdm

from hcl_jax.images import fitting
from hcl_jax.storage import records
from hcl_jax.storage import text_files

_SPLITS = {
    'train': 'train',
    'test': 'test',
    'val': 'validation',
    'validation': 'validation',
}
_ANNOTATIONS = 'val_annotations.txt'
_NUM_NAMED = 20


class File(NamedTuple):
  """Image file; key is its name below the folder."""

  path: pathlib.Path
  key: str
  class_name: str | None


class Layout(NamedTuple):
  """Contents of a folder.

  Attributes:
    splits: the image files of every split, in the order of their names.
    class_names: in order; empty for unlabeled images.
    ignored: files that are no images.
  """

  splits: dict[str, list[File]]
  class_names: list[str]
  ignored: list[pathlib.Path]


def scan(folder: pathlib.Path, *, test_fraction: float = 0.1) -> Layout:
  """Finds the images of a folder.

  Without a folder of test or validation images, the test split has about the
  share ``test_fraction`` of all, at least one of two or more; 0: none.

  Raises:
    FileNotFoundError: there is no such folder, or no image in it.
    ValueError: the layout is none of those above.
  """
  if not folder.is_dir():
    is_file = ': it is a file; unpack an archive and give its folder'
    hint = is_file if folder.exists() else ''
    raise FileNotFoundError(f'there is no folder {folder}{hint}.')
  if not 0 <= test_fraction < 1:
    raise ValueError(f'test_fraction must be in [0, 1), got {test_fraction}.')
  ignored = []
  roots = _split_folders(folder)
  splits = {
      split: _scan_split(root, folder, ignored)
      for split, root in roots.items()
  }
  if not roots:
    splits = {'train': _scan_split(folder, folder, ignored)}
  if [*splits] == ['train']:
    splits = _divide(splits['train'], test_fraction)
  splits = {split: files for split, files in splits.items() if files}
  if not splits:
    raise FileNotFoundError(f'{folder} holds no images.')
  names = {file.class_name for files in splits.values() for file in files}
  return Layout(splits, sorted(names - {None}), ignored)


def common_size(layout: Layout) -> int:
  """Returns pixels of a side that suit all images, by their headers."""
  sizes = []
  for file in itertools.chain(*layout.splits.values()):
    with contextlib.suppress(*fitting.UNREADABLE):
      with Image.open(file.path) as image:
        sizes.append(image.size)
  return fitting.common_size(sizes)


class UnreadableImagesError(ValueError):
  """Raised for files that look like images and cannot be read."""


class ImageFolder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Images of a folder, made square and of one size.

  Attributes:
    unreadable: files that were left out, with the reason.
  """

  def __init__(
      self,
      *,
      name: str,
      layout: Layout,
      image_size: int,
      source: Mapping[str, Any],
      skip_unreadable: bool = False,
      config: str | None = None,
      **kwargs,
  ):
    """Reads the files of a layout into the data set ``name[/config]``."""
    self.name = name
    self.VERSION = tfds.core.Version('1.0.0')
    if config:
      config = tfds.core.BuilderConfig(name=config, version='1.0.0')
      self.BUILDER_CONFIGS = [config]
    self._layout = layout
    self._image_size = image_size
    self._source = source
    self._skip_unreadable = skip_unreadable
    self.unreadable: list[str] = []
    super().__init__(config=config, **kwargs)

  def download_and_prepare(self, **kwargs):
    """Writes the data set, and prints which files were left out."""
    super().download_and_prepare(**kwargs)
    if self.unreadable:
      print(f'Left out {_name_files(self.unreadable)}.', file=sys.stderr)

  def _info(self):
    shape = self._image_size, self._image_size, 3
    features = {
        'id': tfds.features.Text(),
        'image': tfds.features.Image(shape=shape, encoding_format='png'),
    }
    names = self._layout.class_names
    if names:
      features['label'] = tfds.features.ClassLabel(names=names)
    return tfds.core.DatasetInfo(
        builder=self,
        description='The images of a folder, scaled and cropped to squares.',
        features=tfds.features.FeaturesDict(features),
        supervised_keys=('image', 'label') if names else None,
        metadata=tfds.core.MetadataDict(source=self._source),
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {
        split: self._generate_examples(split, files)
        for split, files in self._layout.splits.items()
    }

  def _generate_examples(self, split, files):
    classes = {name: i for i, name in enumerate(self._layout.class_names)}
    num_threads = os.cpu_count() or 1
    images = records.map_ahead(
        self._read, files, num_threads=num_threads, num_ahead=4 * num_threads
    )
    readable = False
    images = tqdm.tqdm(
        images, f'{split} images', len(files), leave=False, disable=None
    )
    for file, image in zip(files, images, strict=True):
      if image is None:
        continue
      readable = True
      example = {'id': file.key, 'image': image}
      if classes:
        example['label'] = classes.get(file.class_name, -1)
      yield file.key, example
    if self.unreadable and not (self._skip_unreadable and readable):
      remedy = '' if self._skip_unreadable else '; --skip_unreadable omits such'
      raise UnreadableImagesError(_name_files(self.unreadable) + remedy)

  def _read(self, file):
    try:
      return fitting.read(file.path, (self._image_size, self._image_size))
    except fitting.UNREADABLE as error:
      self.unreadable.append(f'{file.path} ({error})')
      return None


def find_images(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the image files below a folder, sorted; hidden ones excepted."""
  return sorted(path for path in _visible_files(folder) if _is_image(path))


def _split_folders(folder):
  """Returns the folders of splits by name, empty if there are none."""
  folders = _visible(folder, pathlib.Path.is_dir)
  splits = [path for path in folders if path.name.lower() in _SPLITS]
  others = [path for path in folders if path not in splits]
  if splits and others:
    raise ValueError(
        f'{folder} has {others[0].name!r} beside {splits[0].name!r}: give it '
        'either folders of splits (train, test, val, validation) or folders '
        'of classes.'
    )
  roots = {_SPLITS[path.name.lower()]: path for path in splits}
  if len(roots) < len(splits):
    names = [path.name for path in splits]
    raise ValueError(f'{folder} has one split twice, among {names}.')
  return roots


def _scan_split(root, folder, ignored):
  """Returns the image files below root, labeled by its folders."""
  annotations = root / _ANNOTATIONS
  if annotations.is_file():
    classes = _read_annotations(annotations)
    return _files(root, folder, ignored, lambda path: classes.get(path.name))
  classes = _visible(root, pathlib.Path.is_dir)
  # The unlabeled test images of tiny-imagenet-200 lie in test/images.
  if [path.name for path in classes] == ['images'] and not _visible(
      classes[0], pathlib.Path.is_dir
  ):
    return _files(root, folder, ignored, lambda path: None)
  loose = [
      path for path in _visible(root, pathlib.Path.is_file) if _is_image(path)
  ]
  if loose and classes:
    raise ValueError(
        f'{root} has images, such as {loose[0].name!r}, beside folders of '
        f'classes, such as {classes[0].name!r}; move them into a folder.'
    )
  return _files(root, folder, ignored, lambda path: _class_below(root, path))


def _class_below(root, path):
  """Returns the folder below root that holds path; None for root itself."""
  parts = path.relative_to(root).parts
  return _normal(parts[0]) if len(parts) > 1 else None


def _files(root, folder, ignored, class_of):
  files = []
  for path in _visible_files(root):
    if _is_image(path):
      key = _normal(path.relative_to(folder).as_posix())
      files.append(File(path, key, class_of(path)))
    else:
      ignored.append(path)
  return _unique(sorted(files, key=lambda file: file.key))


def _unique(files):
  """Numbers keys that differ only in their Unicode form."""
  seen = collections.Counter()
  unique = []
  for file in files:
    number = seen[file.key]
    seen[file.key] += 1
    key = f'{file.key}#{number}' if number else file.key
    unique.append(file._replace(key=key))
  return unique


def _visible_files(root):
  """Yields visible files below root."""
  yield from _visible(root, pathlib.Path.is_file)
  for path in _visible(root, pathlib.Path.is_dir):
    yield from _visible_files(path)


def _visible(folder, is_kind):
  return sorted(
      path
      for path in folder.iterdir()
      if is_kind(path) and not path.name.startswith(('.', '__MACOSX'))
  )


def _is_image(path):
  """Returns whether the ending, or else the first bytes, are an image's."""
  if path.suffix.lower() in Image.registered_extensions():
    return True
  try:
    with Image.open(path):
      return True
  except (OSError, Image.DecompressionBombError):
    return False


def _read_annotations(path):
  """Returns the class of every file, from lines of file, tab, class."""
  classes = {}
  for number, line in enumerate(text_files.read_lines(path), 1):
    if not line:
      continue
    name, tab, rest = line.partition('\t')
    if not tab:
      raise ValueError(
          f'line {number} of {path} must be a file and its class, with a tab '
          f'between; got {line[:60]!r}.'
      )
    classes[name] = rest.partition('\t')[0]
  return classes


def _divide(files, test_fraction):
  """Splits files by a hash of the name, whatever else the folder holds."""
  places = [_place(file.key) for file in files]
  bound = test_fraction
  if test_fraction and len(files) > 1:  # one of each split at least
    least, *_, most = sorted(places)
    bound = min(max(test_fraction, math.nextafter(least, 1)), most)
  splits = {'train': [], 'test': []}
  for file, place in zip(files, places, strict=True):
    splits['test' if place < bound else 'train'].append(file)
  return splits


def _place(key):
  """Returns a number in [0, 1) that a name always has."""
  digest = hashlib.sha256(key.encode()).digest()
  return int.from_bytes(digest[:8]) / 2**64


def _normal(name):
  # macOS and Linux write the same accented name in different bytes.
  return unicodedata.normalize('NFC', name)


def _name_files(files: list[str]) -> str:
  """Returns one line that counts files and names the first of them."""
  named = '; '.join(sorted(files)[:_NUM_NAMED])
  more = ' and others' if len(files) > _NUM_NAMED else ''
  plural = 's' if len(files) > 1 else ''
  return f'{len(files)} unreadable image file{plural}: {named}{more}'
