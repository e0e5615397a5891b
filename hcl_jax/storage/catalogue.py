# SPDX-License-Identifier: Apache-2.0
"""Prepares data sets of the tfds catalogue without TensorFlow.

tfds reads array_record files without TensorFlow, but some of what writes them
calls it: the PNG encoder of images that are arrays (CIFAR, STL-10, ImageNet
resized, MNIST, SVHN), the copying of files out of archives, and the file
functions in a few builders. :func:`download_and_prepare` replaces them by
Pillow and Python's own functions. It also makes a download without a network
fail in seconds; tfds itself tries for minutes.
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
from typing import Any
import urllib.parse
import urllib.request

from absl import logging
import numpy as np
from PIL import Image

_TIMEOUT_SECONDS = 5
_PORTS = {'https': 443, 'ftp': 21}


class DownloadError(Exception):
  """Raised when a download broke off, or has another checksum."""


class OfflineError(DownloadError):
  """Raised when the host of a download cannot be reached."""


def builder_class(name: str) -> Any:
  """Returns the catalogue's builder of this name; None if it has none."""
  import tensorflow_datasets as tfds

  try:
    return tfds.builder_cls(name)
  except tfds.core.DatasetNotFoundError:
    return None


def version(name: str, config: str | None) -> str | None:
  """Returns the version at which the catalogue would prepare a set, or None."""
  builder = builder_class(name)
  if builder is None:
    return None
  configs = {c.name: c for c in builder.BUILDER_CONFIGS}
  found = configs.get(config or next(iter(configs), None))
  return str(getattr(found, 'version', None) or builder.VERSION)


def download_and_prepare(builder: Any, *, is_local: bool = False) -> None:
  """Prepares a builder's data set in array_record files.

  Args:
    builder: of the data set.
    is_local: whether all of it comes from local files.

  Raises:
    OfflineError: there is something to download, and no network.
    DownloadError: a download failed.
    ModuleNotFoundError: the builder needs more of TensorFlow than its files.
  """
  import tensorflow_datasets as tfds

  # tfds.download has no names for these two.
  from tensorflow_datasets.core.download import download_manager
  from tensorflow_datasets.core.download import extractor

  shown = contextlib.nullcontext()
  if is_local:
    shown = announced(
        f'Writing {builder.info.full_name} to {builder.data_dir}'
    )
  try:
    with (
        shown,
        _nothing_left_behind(builder),
        _offline_errors(),
        _without_tensorflow(),
    ):
      builder.download_and_prepare(file_format='array_record')
  except (
      download_manager.NonMatchingChecksumError,
      extractor.ExtractError,
      tfds.download.DownloadError,
  ) as error:
    raise DownloadError(str(error)) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Keeps tfds from warning of a config that its catalogue does not have."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


@contextlib.contextmanager
def announced(text: str) -> Iterator[None]:
  """Prints a line in place of what tfds says of downloads; there are none."""
  import tensorflow_datasets as tfds

  print(text)
  tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    tfds.enable_progress_bar()


@contextlib.contextmanager
def _nothing_left_behind(builder: Any) -> Iterator[None]:
  """Removes what a failed preparation made, except downloads."""
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
    # A download that did not begin leaves the folder it would have gone to.
    begun = list(downloads.glob('*/*.tmp.*'))
    for folder in [*begun, *(x.parent for x in begun), *new]:
      with contextlib.suppress(OSError):  # absent, or something is in it
        folder.rmdir()
    raise


def drop_default_config(builder: Any) -> None:
  """Makes tfds forget which config the name alone stands for.

  tfds takes the config that was prepared last, so the name alone would mean
  another data set after each preparation.
  """
  _default_config(builder).unlink(missing_ok=True)


def _default_config(builder: Any) -> pathlib.Path:
  """Returns where tfds records which config the name alone stands for."""
  above = pathlib.Path(builder.data_dir).parents
  folder = above[1] if builder.builder_config else above[0]
  return folder / '.config' / 'metadata.json'


@contextlib.contextmanager
def _replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
  """Puts another function in the place of one."""
  function = getattr(owner, name)
  setattr(owner, name, other)
  try:
    yield
  finally:
    setattr(owner, name, function)


@contextlib.contextmanager
def _offline_errors() -> Iterator[None]:
  """Raises OfflineError where a host that is asked for does not answer."""
  from requests import adapters

  send, urlopen = adapters.HTTPAdapter.send, urllib.request.urlopen

  def checked_send(adapter, request, **kwargs):
    _check_reachable(request.url)
    return send(adapter, request, **kwargs)

  def checked_open(url, **kwargs):
    _check_reachable(url)
    return urlopen(url, **kwargs)

  with (
      _replaced(adapters.HTTPAdapter, 'send', checked_send),
      _replaced(urllib.request, 'urlopen', checked_open),  # ftp
  ):
    yield


def _check_reachable(url: str) -> None:
  """Raises OfflineError unless the host of a URL, or its proxy, answers."""
  proxy = urllib.request.getproxies().get(urllib.parse.urlsplit(url).scheme)
  parts = urllib.parse.urlsplit(proxy or url)
  if not parts.hostname:
    return
  host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 80)
  try:
    socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS).close()
  except OSError as error:
    raise OfflineError(f'{host} cannot be reached ({error})') from error


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
  """Replaces what tfds takes from TensorFlow, where that is absent."""
  import tensorflow_datasets as tfds

  if importlib.util.find_spec('tensorflow'):
    yield
    return
  # What all of tfds imports lazily is resolved once, to this module. It must
  # not stay: others take its presence for TensorFlow's.
  sys.modules['tensorflow'] = _FileFunctions('tensorflow')
  try:
    assert tfds.core.lazy_imports_utils.tensorflow.io
  finally:
    del sys.modules['tensorflow']
  encode = tfds.features.Image.encode_example

  def encode_example(feature, image):
    # tfds needs no TensorFlow to encode Pillow's images.
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
      is_gray = image.shape[-1] == 1
      image = Image.fromarray(image[..., 0] if is_gray else image)
    return encode(feature, image)

  with _replaced(tfds.features.Image, 'encode_example', encode_example):
    yield


def _as_text(value: str | bytes) -> str:
  return value.decode() if isinstance(value, bytes) else value


class _UnimplementedError(Exception):
  """Stands for tf.errors.UnimplementedError."""


def _copy(source: str, target: str | os.PathLike) -> None:
  """Copies a file; tfds opens URLs, such as ftp, where that fails."""
  if '://' in source:
    raise _UnimplementedError(source)
  shutil.copyfile(source, target)


class _FileFunctions(types.ModuleType):
  """Stands for TensorFlow, with its file functions only."""

  __version__ = '2.16.0'
  io = types.SimpleNamespace(
      gfile=types.SimpleNamespace(
          GFile=open,
          copy=_copy,
          exists=os.path.exists,
          glob=glob.glob,
          isdir=os.path.isdir,
          listdir=os.listdir,
          makedirs=lambda path: os.makedirs(path, exist_ok=True),
          walk=os.walk,
      )
  )
  compat = types.SimpleNamespace(as_text=_as_text, as_str=_as_text)
  errors = types.SimpleNamespace(UnimplementedError=_UnimplementedError)

  def __getattr__(self, name: str) -> Any:
    raise ModuleNotFoundError(f'tf.{name} needs TensorFlow.', name='tensorflow')
