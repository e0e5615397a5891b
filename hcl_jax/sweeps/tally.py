# SPDX-License-Identifier: Apache-2.0
"""Results of a sweep: a file for each finished member, a CSV, and a table."""

from collections.abc import Sequence
import csv
import io
import json
import pathlib
from typing import Any

from hcl_jax.runs import reporting
from hcl_jax.runs import workdir as workdir_lib
from hcl_jax.sweeps import grid
from hcl_jax.training import experiment as experiment_lib

CSV = 'results.csv'
_FOLDER = 'members'
# Of folds and not of members, and no shares; they are in the CSV.
_NOT_IN_TABLE = '/deviation', '/loss'


def run_folder(workdir: pathlib.Path, name: str) -> pathlib.Path:
  """Where a member that is a run of its own has its files."""
  return workdir / _FOLDER / name


class Tally:
  """What is known of the members so far, in the directory of the sweep.

  A member is in a file of its own, written whole when it is finished, so a
  sweep that is stopped has lost no finished one.

  Args:
    workdir: directory of the sweep.
    members: all of them.
  """

  def __init__(self, workdir: pathlib.Path, members: Sequence[grid.Member]):
    self._workdir = workdir
    self._members = list(members)
    self._results = {}
    for member in members:
      result = _read(self._path(member))
      if result is not None:
        self._results[member.number] = result

  def __len__(self) -> int:
    return len(self._results)

  def __contains__(self, member: grid.Member) -> bool:
    return member.number in self._results

  def run_folder(self, member: grid.Member) -> pathlib.Path:
    """Where a member that is a run of its own has its files."""
    return run_folder(self._workdir, member.name)

  def add(self, member: grid.Member, **result: Any) -> None:
    """Writes down a finished member.

    Args:
      member: the member.
      **result: ``scores``, and whatever else is known.
    """
    result = {'values': member.values, **result}
    path = self._path(member)
    path.parent.mkdir(exist_ok=True)
    reporting.write_json(path, result)
    self._results[member.number] = result

  def scores(self, member: grid.Member) -> dict[str, float]:
    """The scores of a finished member that are numbers; none if it failed."""
    result = self._results[member.number]
    return experiment_lib.numbers(result.get('scores', {}))

  def failures(self) -> list[str]:
    """A line for each member that came to nothing."""
    return [
        f'{member.words()}: {self._results[member.number]["failure"]}'
        for member in self._members
        if self._results.get(member.number, {}).get('failure')
    ]

  def write(self) -> None:
    """Writes ``results.csv`` and ``results.md`` of what is finished."""
    reporting.write_text(self._workdir / CSV, self.csv())
    reporting.write_text(
        self._workdir / 'results.md', self.markdown() + '\n'
    )

  def csv(self) -> str:
    """A line for each finished member: its number, values and scores."""
    names = self._score_names()
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(['member', *self._members[0].values, *names])
    for member in self._finished():
      scores = self.scores(member)
      cells = [scores.get(name, '') for name in names]
      writer.writerow([member.number, *member.values.values(), *cells])
    return file.getvalue()

  def markdown(self) -> str:
    """Mean and standard deviation over seeds of each score, in per cent."""
    fields = [x for x in self._members[0].values if x != 'seed']
    names = [x for x in self._score_names() if not x.endswith(_NOT_IN_TABLE)]
    rows = {}
    for member in self._finished():
      key = tuple(member.values[field] for field in fields)
      rows.setdefault(key, []).append(self.scores(member))
    lines = []
    for key, scores in rows.items():
      cells = [
          reporting.spread([x[name] for x in scores if name in x])
          for name in names
      ]
      lines.append([*map(str, key), str(len(scores)), *cells])
    return reporting.markdown_table(
        [*fields, 'members', *names], lines, words=len(fields)
    )

  def _finished(self):
    return [x for x in self._members if x in self]

  def _score_names(self):
    return list(
        dict.fromkeys(
            name for member in self._finished() for name in self.scores(member)
        )
    )

  def _path(self, member):
    return self._workdir / _FOLDER / f'{member.name}.json'


def _read(path):
  try:
    result = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError:
    return None
  except (ValueError, OSError) as error:
    raise workdir_lib.WorkdirError(
        f'{path} cannot be read: {error}. Without this file its member is '
        'trained again.'
    ) from error
  return result
