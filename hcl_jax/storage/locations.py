# SPDX-License-Identifier: Apache-2.0
"""Finds prepared data sets: ``data_dir/name[/config]/version``."""

import json
import os
import pathlib
import re

_NAME = re.compile(
    r'(?P<name>[a-z]\w*)(/(?P<config>[\w.\-+]+))?(:(?P<version>\d+\.\d+\.\d+))?'
)
_VERSION = re.compile(r'\d+\.\d+\.\d+')
_INFO = 'dataset_info.json'
# pathlib turns gs://bucket into gs:/bucket. Drives, C:/, have one letter.
_SCHEME = re.compile(r'[A-Za-z][A-Za-z0-9+.\-]+:/')

LOCAL_ONLY = (
    'it must be a local path; gs://, s3:// and the like are not supported. '
    'Use a local folder, and copy it afterwards.'
)


def is_remote(path: str | os.PathLike) -> bool:
  """Returns whether a path has a scheme, such as ``gs://``."""
  return bool(_SCHEME.match(os.fspath(path)))


def check_local(name: str, path: str | os.PathLike) -> None:
  """Raises a ValueError if an argument is a path with a scheme."""
  if is_remote(path):
    raise ValueError(f'{name} is {os.fspath(path)}: {LOCAL_ONLY}')


def data_dir(path: str | os.PathLike | None = None) -> pathlib.Path:
  """Returns the folder of data sets: ``path``, or the default of tfds."""
  if path:
    check_local('data_dir', path)
    return pathlib.Path(path).expanduser()
  check_local('TFDS_DATA_DIR', os.environ.get('TFDS_DATA_DIR', ''))
  return _default_dir()


def is_default(directory: pathlib.Path) -> bool:
  """Returns whether a folder is where data sets are by default."""
  return directory == _default_dir()


def _default_dir() -> pathlib.Path:
  path = os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  return pathlib.Path(path).expanduser()


def parse(name: str) -> tuple[str, str | None, str | None]:
  """Splits ``'name[/config][:version]'``."""
  match = _NAME.fullmatch(name)
  if not match:
    raise ValueError(
        'dataset must be name[/config][:version], a name of a-z, 0-9 and _, '
        f"such as 'cifar10' or 'imagenet_resized/64x64'; got {name!r}."
    )
  return match['name'], match['config'], match['version']


def find(name: str, directory: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder of a prepared data set, or None.

  Args:
    name: ``'name[/config][:version]'``. Without a config, the one that tfds
      recorded as the default, or the only one there is; without a version,
      the highest.
    directory: what :func:`data_dir` gives.

  Raises:
    ValueError: several configs are prepared and none is the default.
  """
  name, config, version = parse(name)
  root = directory / name
  if config is not None:
    return _newest(root / config, version)
  return _newest(root, version) or _only_config(root, version)


def require(
    name: str, directory: pathlib.Path, source: str = ''
) -> pathlib.Path:
  """Returns the folder of a prepared data set.

  ``source`` is a flag that the command to prepare it needs, as ``--text``.

  Raises:
    FileNotFoundError: it is not prepared; the message says how to.
  """
  found = find(name, directory)
  if found is None:
    flags = [f'--dataset={name}', source]
    if not is_default(directory):
      flags.append(f'--data_dir={directory}')
    raise FileNotFoundError(
        f'data set {name!r} is not prepared in {directory}; prepare it with: '
        f'python -m hcl_jax.prepare {" ".join(filter(None, flags))}'
    )
  return found


def _newest(root: pathlib.Path, version: str | None) -> pathlib.Path | None:
  """Returns the highest version under root that is complete."""
  if not root.is_dir():
    return None
  versions = [
      path
      for path in root.iterdir()
      if _VERSION.fullmatch(path.name)
      and version in (None, path.name)
      and (path / _INFO).is_file()
  ]
  return max(
      versions,
      key=lambda path: tuple(map(int, path.name.split('.'))),
      default=None,
  )


def _only_config(
    root: pathlib.Path, version: str | None
) -> pathlib.Path | None:
  if not root.is_dir():
    return None
  configs = {path.name: _newest(path, version) for path in root.iterdir()}
  configs = {name: path for name, path in configs.items() if path}
  default = _default_config(root)
  if default in configs:
    return configs[default]
  if len(configs) < 2:
    return next(iter(configs.values()), None)
  raise ValueError(
      f'{root.name} is prepared in several configs; name one of them: '
      + ', '.join(f'{root.name}/{name}' for name in sorted(configs))
      + '.'
  )


def _default_config(root: pathlib.Path) -> str | None:
  try:
    text = (root / '.config' / 'metadata.json').read_text()
  except OSError:
    return None
  return json.loads(text).get('default_config_name')
