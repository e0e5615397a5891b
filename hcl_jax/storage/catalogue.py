# SPDX-License-Identifier: Apache-2.0
"""Prepares data sets of the tfds catalogue without TensorFlow.

tfds reads array_record files without TensorFlow, but some of what writes them
calls it: the PNG encoder of images that are arrays (CIFAR, STL-10, ImageNet
resized, MNIST, SVHN), the copying of files out of archives, and the file
functions in a few builders. :func:`without_tensorflow` puts Pillow and Python's
own functions in their places for the duration of a preparation. It also makes
a download without a network fail in seconds; tfds itself tries for minutes.
"""

from collections.abc import Iterator
import contextlib
import glob
import importlib.util
import io
import os
import pathlib
import shutil
import socket
import sys
import types
import urllib.parse
import urllib.request

from PIL import Image

_TIMEOUT_SECONDS = 5


class DownloadError(Exception):
  """A download broke off, or what came is not what was expected."""


class OfflineError(DownloadError):
  """The host of a download cannot be reached."""


def builder_class(name: str):
  """The catalogue's builder of this name; None if it has none."""
  import tensorflow_datasets as tfds

  try:
    return tfds.builder_cls(name)
  except tfds.core.registered.DatasetNotFoundError:
    return None


def version(name: str, config: str | None) -> str | None:
  """The version at which the catalogue would prepare a set, or None."""
  builder = builder_class(name)
  if builder is None:
    return None
  configs = {c.name: c for c in builder.BUILDER_CONFIGS}
  found = configs.get(config or next(iter(configs), None))
  return str(getattr(found, 'version', None) or builder.VERSION)


def download_and_prepare(builder) -> None:
  """Prepares a builder's data set in array_record files.

  Raises:
    OfflineError: there is something to download, and no network.
    DownloadError: a download failed.
  """
  from tensorflow_datasets.core.download import download_manager
  from tensorflow_datasets.core.download import extractor
  from tensorflow_datasets.core.download import util

  try:
    with _nothing_left_behind(builder), without_tensorflow(builder):
      builder.download_and_prepare(file_format='array_record')
  except (
      download_manager.NonMatchingChecksumError,
      extractor.ExtractError,
      util.DownloadError,
  ) as error:
    raise DownloadError(str(error)) from error


@contextlib.contextmanager
def _nothing_left_behind(builder) -> Iterator[None]:
  """Removes what a failed preparation made beside its data, downloads apart."""
  above = list(pathlib.Path(builder.data_dir).parents)
  default = _default_config(builder)
  downloads = default.parents[2] / 'downloads'
  made = [default.parent, downloads / 'extracted', downloads, *above]
  new = [folder for folder in made if not folder.exists()]
  before = default.read_bytes() if default.exists() else None
  try:
    yield
  except BaseException:
    if before is not None:
      default.write_bytes(before)
    else:
      default.unlink(missing_ok=True)
    for folder in new:
      with contextlib.suppress(OSError):  # absent, or something is in it
        folder.rmdir()
    raise


def drop_default_config(builder) -> None:
  """Makes tfds forget that a config is what the name alone stands for.

  tfds takes the last one that was prepared. Of configs that a user named, the
  name alone would then be another data set from one day to the next.
  """
  _default_config(builder).unlink(missing_ok=True)


def _default_config(builder) -> pathlib.Path:
  """Where tfds records which config the name alone stands for."""
  above = pathlib.Path(builder.data_dir).parents
  folder = above[1] if builder.builder_config else above[0]
  return folder / '.config' / 'metadata.json'


@contextlib.contextmanager
def without_tensorflow(builder) -> Iterator[None]:
  """Replaces what a tfds builder takes from TensorFlow, where it is absent.

  Args:
    builder: the builder that will prepare its data set inside the context.
  """
  from tensorflow_datasets.core.download import downloader
  from tensorflow_datasets.core.download import extractor
  from tensorflow_datasets.core.features import image_feature

  module = sys.modules[type(builder).__module__]
  download = downloader._Downloader._sync_download
  new = [(downloader._Downloader, '_sync_download', _checked(download))]
  if importlib.util.find_spec('tensorflow') is None:
    new.append((image_feature._ImageEncoder, '_encode_image', _encode_image))
    users = [m for m in (downloader, extractor, module) if hasattr(m, 'tf')]
    new += [(user, 'tf', _FILE_FUNCTIONS) for user in users]
  old = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
  try:
    for owner, name, value in new:
      setattr(owner, name, value)
    yield
  finally:
    for owner, name, value in old:
      setattr(owner, name, value)


def _checked(download):
  """A download that first finds out whether the host answers at all."""

  def checked(self, url, *args, **kwargs):
    _check_reachable(url)
    return download(self, url, *args, **kwargs)

  return checked


def _check_reachable(url):
  proxy = urllib.request.getproxies().get(urllib.parse.urlsplit(url).scheme)
  parts = urllib.parse.urlsplit(proxy or url)
  if not parts.hostname:
    return
  port = parts.port or (443 if parts.scheme == 'https' else 80)
  try:
    socket.create_connection(
        (parts.hostname, port), timeout=_TIMEOUT_SECONDS
    ).close()
  except OSError as error:
    raise OfflineError(f'{parts.hostname} cannot be reached ({error})') from (
        error
    )


def _encode_image(encoder, array) -> bytes:
  """PNG or JPEG bytes of a uint8 array [height, width, channels]."""
  if array.shape[-1] == 1:
    array = array[..., 0]
  buffer = io.BytesIO()
  Image.fromarray(array).save(buffer, format=encoder.encoding_format)
  return buffer.getvalue()


def _as_text(value):
  return value.decode() if isinstance(value, bytes) else value


class _FileError(Exception):
  """Stands for tf.errors.UnimplementedError; never raised."""


_FILE_FUNCTIONS = types.SimpleNamespace(
    io=types.SimpleNamespace(
        gfile=types.SimpleNamespace(
            GFile=open,
            copy=shutil.copyfile,
            exists=os.path.exists,
            glob=glob.glob,
            isdir=os.path.isdir,
            listdir=os.listdir,
            makedirs=lambda path: os.makedirs(path, exist_ok=True),
            walk=os.walk,
        )
    ),
    compat=types.SimpleNamespace(as_text=_as_text, as_str=_as_text),
    errors=types.SimpleNamespace(UnimplementedError=_FileError),
)
