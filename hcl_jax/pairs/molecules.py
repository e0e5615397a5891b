# SPDX-License-Identifier: Apache-2.0
"""Reads names and structures of molecules out of the package ``chemicals``.

Its table of 71,347 molecules comes from PubChem. A query is the IUPAC name of a
molecule, the document its structure as SMILES, and a group the molecules of one
formula, which are isomers of each other.
"""

import collections
import hashlib
import importlib.util
import pathlib
import re

from hcl_jax.storage import text_files

NAMES = {
    'molecules': 'IUPAC names to structures',
    'molecules_names': 'up to four names of a molecule to its structure',
    'molecules_tiny': 'the first molecules, for tests',
}
# Of molecules; about 2,000 and 6,900.
VALIDATION_SHARE, TEST_SHARE = 0.03, 0.1

_PACKAGE = 'chemicals'
_FILE = 'Identifiers/chemical identifiers pubchem large.tsv'
_SHA256 = (
    '3b9aac5ae8d270bafc9e72a6af5441ce580f0ce444d1dee48dc37e47474b91fc'
)
_NUM_ROWS = 71_347
_NUM_MOLECULES = 68_790
_TINY = 3000  # rows
_FURTHER = 3  # names of a molecule beside its IUPAC name
# What is a name, and no number of a register.
_IS_NAME = re.compile(r'(?=(.*[a-z]){4})(?!.*\d{4})')
_FORMULA, _SMILES, _IUPAC, _SYNONYMS = 2, 4, 7, 8


def owns(dataset: str) -> bool:
  """Returns whether a name, without a version, is one of these data sets."""
  return dataset.removeprefix('pairs/') in NAMES


def columns(dataset: str) -> dict[str, list[str]]:
  """Returns the columns of a table of pairs.

  Args:
    dataset: a name of ``NAMES``, perhaps after ``pairs/``.

  Raises:
    ValueError: the package is not installed, or its table is another.
  """
  name = dataset.removeprefix('pairs/')
  path = find()
  rows = [line.split('\t') for line in text_files.read_lines(path)]
  if len(rows) != _NUM_ROWS:
    raise ValueError(_other(path, f'{len(rows)} rows, not {_NUM_ROWS}'))
  table = collections.defaultdict(list)
  names, structures = set(), set()
  for row in rows[: _TINY if name == 'molecules_tiny' else None]:
    query, document = row[_IUPAC].strip(), row[_SMILES].strip()
    if not query or not document or query in names or document in structures:
      continue
    names.add(query)
    structures.add(document)
    queries = [query]
    if name == 'molecules_names':
      queries += _further_names(row[_SYNONYMS:], query)
    for one in queries:
      table['query'].append(one)
      table['document'].append(document)
      table['id'].append(row[0])
      table['group'].append(row[_FORMULA])
  if name == 'molecules' and len(table['query']) != _NUM_MOLECULES:
    count = len(table['query'])
    raise ValueError(_other(path, f'{count} molecules, not {_NUM_MOLECULES}'))
  return dict(table)


def find() -> pathlib.Path:
  """Returns the path of the table, which is that of the known version.

  Raises:
    ValueError: the package is not installed, or its table is another.
  """
  spec = importlib.util.find_spec(_PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    raise ValueError(
        'the molecules are made of the package chemicals, which is not '
        "installed; pip install 'chemicals>=1.5,<1.6'."
    )
  path = pathlib.Path(spec.submodule_search_locations[0], _FILE)
  if not path.is_file():
    raise ValueError(_other(path, 'no such file'))
  found = hashlib.sha256(path.read_bytes()).hexdigest()
  if found != _SHA256:
    raise ValueError(_other(path, f'SHA-256 {found}, not {_SHA256}'))
  return path


def _other(path, what):
  return (
      f'{path} is not the table that the molecules are made of ({what}); pip '
      "install --force-reinstall 'chemicals==1.5.2'."
  )


def _further_names(synonyms, query):
  """Returns the first further names of a molecule."""
  names = dict.fromkeys(x.strip() for x in synonyms)
  found = [x for x in names if x != query and _IS_NAME.match(x.lower())]
  return found[:_FURTHER]
