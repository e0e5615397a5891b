# SPDX-License-Identifier: Apache-2.0
r"""Prepares a data set for training, once.

  python -m hcl_jax.prepare --dataset=cifar10
  python -m hcl_jax.prepare --dataset=imagenet_resized/64x64 --data_dir=DIR
  python -m hcl_jax.prepare --dataset=cifar10 --arrays=FOLDER
  python -m hcl_jax.prepare --dataset=tiny_imagenet --images=tiny-imagenet-200
  python -m hcl_jax.prepare --dataset=my_photos --images=FOLDER --image_size=96
  python -m hcl_jax.prepare --dataset=MUTAG
  python -m hcl_jax.prepare --dataset=MUTAG --graphs=MUTAG.zip
  python -m hcl_jax.prepare --dataset=sentences/books --text=books.txt.xz

The first two download what the tfds catalogue names. ``--arrays`` takes a
folder with train_images.npy, train_labels.npy, test_images.npy and so on (see
hcl_jax/images/arrays.py), ``--images`` one with image files in folders
of classes, or in none (see hcl_jax/images/layout.py).
``--graphs`` takes a collection of graphs in the text format of TU Dortmund, a
zip archive or a folder (see hcl_jax/graphs/tu_text.py); the
eight of the paper are known by name, any other is --dataset=tu_graphs/NAME.
``--text`` takes sentences in their order, a file or a folder of files with a
sentence a line (see hcl_jax/sentences/corpus.py).
TensorFlow is not needed. A data set is written whole or not at all. One that is
there already is left alone, and refused if it was made from another source.
"""

import os
import pathlib

from absl import flags

from hcl_jax import command
from hcl_jax.graphs import published
from hcl_jax.images import scenes
from hcl_jax.sentences import corpus
from hcl_jax.storage import catalogue
from hcl_jax.storage import locations
from hcl_jax.storage import records
from hcl_jax.storage import sources

_TINY_IMAGENET_SIZE = 64

_DATASET = flags.DEFINE_string(
    'dataset', None, 'Name of the data set, name[/config].'
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None,
    'Folder of prepared data sets; by default $TFDS_DATA_DIR or '
    '~/tensorflow_datasets.',
)  # fmt: skip
_IMAGES = flags.DEFINE_string('images', None, 'Folder with image files.')
_IMAGE_SIZE = flags.DEFINE_integer(
    'image_size', None, 'Height and width of the images of --images.'
)
_TEST_FRACTION = flags.DEFINE_float(
    'test_fraction', 0.1,
    'Share of the test split, where --images has no split folders.',
)  # fmt: skip
_SKIP_UNREADABLE = flags.DEFINE_bool(
    'skip_unreadable', False, 'Leave out image files that cannot be read.'
)
_ARRAYS = flags.DEFINE_string('arrays', None, 'Folder with .npy files.')
_GRAPHS = flags.DEFINE_string(
    'graphs', None, 'Zip archive or folder with graphs.'
)
_TEXT = flags.DEFINE_string(
    'text', None, 'Text file or folder with a sentence a line.'
)
_SPLIT_SENTENCES = flags.DEFINE_bool(
    'split_sentences', False, '--text is prose, to be split into sentences.'
)
_CASED = flags.DEFINE_bool('cased', False, 'Keep capital letters of --text.')
_VOCABULARY_SIZE = flags.DEFINE_integer(
    'vocabulary_size', 20_000, 'Commonest words of --text to keep.'
)
_MIN_COUNT = flags.DEFINE_integer(
    'min_count', 1, 'Words of --text that are less common are left out.'
)
_VALIDATION_DOCUMENTS = flags.DEFINE_integer(
    'validation_documents', 0,
    'Last documents of --text, files of a folder or segments of a file, that '
    'are the validation split.',
)  # fmt: skip
command.local('data_dir', 'images', 'arrays', 'graphs', 'text')


def prepare(
    dataset: str,
    *,
    data_dir: str | os.PathLike | None = None,
    images: str | None = None,
    image_size: int | None = None,
    test_fraction: float = 0.1,
    skip_unreadable: bool = False,
    arrays: str | None = None,
    graphs: str | None = None,
    text: str | None = None,
    split_sentences: bool = False,
    cased: bool = False,
    vocabulary_size: int = 20_000,
    min_count: int = 1,
    validation_documents: int = 0,
) -> pathlib.Path:
  """Prepares a data set unless it is prepared; the flags are the arguments.

  Returns:
    The folder of the prepared data set.

  Raises:
    ValueError: an argument or the data is unsuitable.
    OSError: something cannot be found, read, downloaded or written.
  """
  if sum(map(bool, (images, arrays, graphs, text))) > 1:
    raise ValueError('give one of --images, --arrays, --graphs and --text.')
  if graphs and not _is_of_graphs(dataset):
    raise ValueError(
        f'--graphs needs --dataset={published.NAME}/NAME, or one of '
        f'{", ".join(published.STATISTICS)}; got {dataset}.'
    )
  if text and not _is_of_sentences(dataset):
    raise ValueError(f'--text needs --dataset=sentences/NAME; got {dataset}.')
  root = locations.data_dir(data_dir)
  found = locations.find(_with_defaults(dataset), root)
  options = corpus.Options(
      split_sentences, cased, vocabulary_size, min_count, validation_documents
  )
  name, config, _ = locations.parse(_with_defaults(dataset))
  if image_size is None and name == 'tiny_imagenet':
    image_size = _TINY_IMAGENET_SIZE
  source = None
  if images:
    source = sources.measure(
        images,
        image_size=image_size,
        test_fraction=test_fraction,
        skip_unreadable=skip_unreadable,
    )
  elif text:
    source = sources.measure(text, **options._asdict())
  elif arrays or graphs:
    source = sources.measure(arrays or graphs)
  if found:
    records.check_format(found)
    if source:
      sources.check(dataset, found, source)
    print(
        f'{dataset} is prepared already{sources.describe(found)}; it is left '
        'as it is.'
    )
    return found
  where = {'data_dir': root, 'file_format': 'array_record'}
  mine = {'source': source, **where}
  if name == published.NAME:
    builder = _tu_graphs(config, images or arrays, graphs, mine)
  elif name == corpus.NAME:
    builder = _sentences(config, text, options, mine)
  elif images:
    builder = _image_folder(
        name, config, pathlib.Path(images), image_size, test_fraction,
        skip_unreadable, mine,
    )  # fmt: skip
  elif arrays:
    builder = _arrays(name, config, pathlib.Path(arrays), mine)
  elif name == 'digit_scenes':
    builder = _digit_scenes(config, where)
  else:
    builder = _from_catalogue(name, config, where)
  catalogue.download_and_prepare(builder)
  if source:
    catalogue.drop_default_config(builder)
  _report_unreadable(builder)
  return pathlib.Path(builder.data_dir)


def describe(dataset: str, directory: pathlib.Path) -> str:
  """Where a prepared data set is, what it holds and how to use it."""
  import tensorflow_datasets as tfds

  info = tfds.builder_from_directory(directory).info
  splits = info.splits
  counts = ', '.join(f'{k} {v.num_examples}' for k, v in splits.items())
  name, _, _ = locations.parse(published.full_name(dataset))
  root = directory.parents[2 if directory.parents[1].name == name else 1]
  where = '' if locations.is_default(root) else f', data_dir={str(root)!r}'
  if name == published.NAME:
    return (
        f'{dataset} is ready in {directory} ({splits["train"].num_examples} '
        f'graphs): hcl_jax.graphs.load_graphs({dataset!r}{where})'
    )
  if name == corpus.NAME:
    return (
        f'{dataset} is ready in {directory} ({_describe_sentences(info)}): '
        f'hcl_jax.sentences.load_sentences({dataset!r}{where})'
    )
  split = 'train' if 'train' in splits else next(iter(splits))
  return (
      f'{dataset} is ready in {directory} ({counts} images): '
      f'hcl_jax.images.load({dataset!r}, {split!r}{where})'
  )


def _describe_sentences(info):
  return ', '.join(
      f'{name} {split["sentences"]} sentences of {split["tokens"]} words, '
      f'{split["unknown"]:.1%} of them unknown'
      for name, split in info.metadata['splits'].items()
  )


def _with_defaults(dataset):
  dataset = published.full_name(dataset)
  name, config, version = locations.parse(dataset)
  if name == 'digit_scenes':
    return f'{name}/{config or "full"}:{version or scenes.VERSION}'
  return dataset


def _image_folder(
    name, config, folder, image_size, test_fraction, skip_unreadable, where
):
  from hcl_jax.images import image_folder as builder
  from hcl_jax.images import layout as layout_lib

  if catalogue.builder_class(name) or name == 'digit_scenes':
    raise ValueError(
        f'--dataset={name} names a known data set; give the images of '
        f'{folder} a name of their own.'
    )
  if image_size is None or image_size < 1:
    raise ValueError(
        f'--images needs --image_size, 1 or more pixels; got {image_size}.'
    )
  layout = layout_lib.scan(folder, test_fraction=test_fraction)
  _report_layout(layout)
  return builder.ImageFolder(
      name=name, config=config, layout=layout, image_size=image_size,
      skip_unreadable=skip_unreadable, **where,
  )  # fmt: skip


def _report_layout(layout):
  counts = ', '.join(f'{k} {len(v)}' for k, v in layout.splits.items())
  classes = f'{len(layout.class_names)} classes' * bool(layout.class_names)
  print(f'Found images: {counts}; {classes or "no classes"}.')
  if layout.ignored:
    print(
        f'Passed over {len(layout.ignored)} files that are no images, such '
        f'as {layout.ignored[0]}.'
    )


def _report_unreadable(builder):
  from hcl_jax.images import image_folder

  if getattr(builder, 'unreadable', None):
    print('Left out ' + image_folder.name_files(builder.unreadable) + '.')


def _arrays(name, config, folder, where):
  from hcl_jax.images import arrays

  version = catalogue.version(name, config) or '1.0.0'
  return arrays.Arrays(
      name=name, config=config, folder=folder, version=version, **where
  )


def _digit_scenes(config, where):
  from hcl_jax.images import digit_scenes as builder

  return builder.DigitScenes(config=config, **where)


def _is_of_graphs(dataset):
  return published.full_name(dataset).partition('/')[0] == published.NAME


def _tu_graphs(collection, others, path, where):
  from hcl_jax.graphs import tu_graphs as builder

  if others or not collection:
    raise ValueError(
        f'--dataset={published.NAME}/NAME needs the name of a collection and '
        'takes its files by --graphs.'
    )
  path = pathlib.Path(path) if path else None
  return builder.TuGraphs(collection=collection, path=path, **where)


def _is_of_sentences(dataset):
  return dataset.partition('/')[0] == corpus.NAME


def _sentences(config, path, options, where):
  from hcl_jax.sentences import corpora as builder

  if not config or not path:
    raise ValueError(
        f'--dataset={corpus.NAME}/NAME needs a name of your choice and takes '
        'its text by --text.'
    )
  print(f'Reading {path}')
  return builder.Sentences(
      config=config, path=pathlib.Path(path), options=options, **where
  )


def _from_catalogue(name, config, where):
  builder_class = catalogue.builder_class(name)
  if name == 'tiny_imagenet':
    raise ValueError(
        'tiny_imagenet is not in the catalogue of tfds; unpack '
        'tiny-imagenet-200.zip and give its folder with --images.'
    )
  if builder_class is None:
    raise ValueError(
        f'--dataset={name} is not in the catalogue of tfds; for images of '
        'your own give --images=FOLDER or --arrays=FOLDER.'
    )
  configs = [c.name for c in builder_class.BUILDER_CONFIGS]
  if config not in configs and (config or len(configs) > 1):
    raise ValueError(
        f'--dataset={name} needs one of its configs: '
        + (', '.join(f'{name}/{c}' for c in configs) or 'it has none')
        + '.'
    )
  builder = builder_class(config=config, **where)
  records.check_features(builder.info)
  return builder


def main(argv):
  if argv:
    raise command.UsageError(
        f'unexpected argument {argv[0]!r}; flags are --name=value.'
    )
  if not _DATASET.value:
    raise command.UsageError('--dataset=NAME is needed, such as cifar10.')
  try:
    directory = prepare(
        _DATASET.value,
        data_dir=_DATA_DIR.value,
        images=_IMAGES.value,
        image_size=_IMAGE_SIZE.value,
        test_fraction=_TEST_FRACTION.value,
        skip_unreadable=_SKIP_UNREADABLE.value,
        arrays=_ARRAYS.value,
        graphs=_GRAPHS.value,
        text=_TEXT.value,
        split_sentences=_SPLIT_SENTENCES.value,
        cased=_CASED.value,
        vocabulary_size=_VOCABULARY_SIZE.value,
        min_count=_MIN_COUNT.value,
        validation_documents=_VALIDATION_DOCUMENTS.value,
    )
  except catalogue.OfflineError as error:
    raise command.UsageError(
        f'{error}: {_DATASET.value} must be downloaded; try again with a '
        'network, or give the data by --arrays, --images or --graphs.'
    ) from error
  except ModuleNotFoundError as error:
    raise command.UsageError(
        f'tfds needs {error.name} to prepare {_DATASET.value}; install it.'
    ) from error
  except (ValueError, OSError, catalogue.DownloadError) as error:
    raise command.UsageError(str(error)) from error
  print(describe(_DATASET.value, directory))


if __name__ == '__main__':
  command.run('hcl_jax.prepare', main)
