# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page: text, tables, figures and a panel for beta.

Everything that comes from outside is escaped; nothing is loaded from anywhere.
"""

import base64
from collections.abc import Mapping
from collections.abc import Sequence
import html
import importlib.resources
import io
import json
import re
from typing import Any
from typing import NamedTuple

import numpy as np

_MOST_BETA = 20.0
_DIGITS = 4  # of a logit
_SPRITE_COLUMNS = 16


class Section(NamedTuple):
  """A part of the page.

  Attributes:
    title: its heading.
    parts: HTML, as the functions here make it.
  """

  title: str
  parts: Sequence[str]


class PanelRun(NamedTuple):
  """What the panel needs of a run.

  Attributes:
    name: of the run.
    beta: the one it was trained with.
    tau_plus: likewise.
    pos_logits: of the anchors, ``[a]``, or None where the panel shall show no
      loss.
    neg_logits: what beta multiplies, ``[a, n]``.
    where: what is a negative of its anchor, ``[a, n]``.
    anchors: the item of each anchor, ``[a]``.
    items: the item of each column, ``[n]``.
    log_floor: as of :func:`hcl_jax.hard_nce_loss`.
  """

  name: str
  beta: float
  tau_plus: float
  pos_logits: np.ndarray | None
  neg_logits: np.ndarray
  where: np.ndarray
  anchors: np.ndarray
  items: np.ndarray
  log_floor: float | None = None


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
  """The whole page.

  Args:
    title: its heading.
    subtitle: a line under it.
    sections: what follows; those without parts are left out.

  Returns:
    An HTML document.
  """
  sections = [section for section in sections if section.parts]
  links = ''.join(
      f'<a href="#s{i}">{html.escape(section.title)}</a>'
      for i, section in enumerate(sections)
  )
  bodies = '\n'.join(
      f'<section id="s{i}"><h2>{html.escape(section.title)}</h2>\n'
      + '\n'.join(section.parts)
      + '\n</section>'
      for i, section in enumerate(sections)
  )
  return (
      '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
      '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
      # Nothing from elsewhere, should an escape ever fail.
      '<meta http-equiv="Content-Security-Policy" content="default-src '
      "'none'; img-src data:; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      f'<title>{html.escape(title)}</title>\n'
      f'<style>\n{_asset("report.css")}</style></head>\n<body>\n'
      f'<header><h1>{html.escape(title)}</h1>\n'
      f'<p class="faint">{html.escape(subtitle)}</p>\n<nav>{links}</nav>'
      f'</header>\n<main>\n{bodies}\n</main>\n'
      f'<script>\n{_asset("report.js")}</script>\n</body></html>\n'
  )


def frame(document: str, *, height: int) -> str:
  """A page inside another, such as a notebook, which it cannot disturb.

  Args:
    document: of :func:`page`.
    height: in pixels; what is longer scrolls.

  Returns:
    HTML.
  """
  return (
      f'<div><iframe srcdoc="{html.escape(document, quote=True)}" '
      f'style="width:100%;height:{height}px;border:0"></iframe></div>'
  )


def paragraph(text: str) -> str:
  """A paragraph of text."""
  return f'<p>{html.escape(text)}</p>'


def preformatted(text: str, summary: str | None = None) -> str:
  """Text as it is, folded away under a summary if there is one."""
  body = f'<pre>{html.escape(text)}</pre>'
  if summary is None:
    return body
  return f'<details><summary>{html.escape(summary)}</summary>{body}</details>'


def table(
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    caption: str | None = None,
) -> str:
  """A table whose first column is words and the others are numbers.

  Args:
    header: names of the columns.
    lines: cells; what is between ``**`` is bold.
    caption: text above it.

  Returns:
    HTML.
  """
  head = ''.join(f'<th scope="col">{html.escape(x)}</th>' for x in header)
  body = ''.join(
      '<tr>' + ''.join(f'<td>{_cell(x)}</td>' for x in line) + '</tr>'
      for line in lines
  )
  title = f'<caption>{html.escape(caption)}</caption>' if caption else ''
  return (
      f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead>'
      f'<tbody>{body}</tbody></table></div>'
  )


def configurations(fields: Mapping[str, Mapping[str, Any]]) -> str:
  """The configurations of runs side by side, what they differ in first.

  Args:
    fields: values by the name of the field, of each run by its name.

  Returns:
    A table of the differences, and all fields folded away.
  """
  names = list(dict.fromkeys(x for of_run in fields.values() for x in of_run))
  rows = {
      name: [repr(of_run.get(name, '-')) for of_run in fields.values()]
      for name in names
  }
  differing = {k: x for k, x in rows.items() if len(set(x)) > 1}
  parts = []
  if differing:
    lines = [[name, *values] for name, values in differing.items()]
    parts.append(table(['differs in', *fields], lines))
  everything = table(
      ['field', *fields], [[name, *values] for name, values in rows.items()]
  )
  parts.append(
      f'<details><summary>all {len(rows)} fields</summary>{everything}'
      '</details>'
  )
  return '\n'.join(parts)


def chart(svg: str, label: str, caption: str | None = None) -> str:
  """A figure drawn in lines, which is inverted in dark mode.

  Args:
    svg: the figure, as matplotlib writes it.
    label: what it shows, for those who do not see it.
    caption: text under it.

  Returns:
    HTML.
  """
  svg = svg[svg.index('<svg') :]
  # Its size is that of the column.
  svg = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r'\1', svg, count=1)
  svg = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r'\1', svg, count=1)
  label = html.escape(label, quote=True)
  svg = f'<svg role="img" aria-label="{label}"' + svg[len('<svg') :]
  return f'<figure class="chart">{svg}{_caption(caption)}</figure>'


def picture(png: bytes, label: str, caption: str | None = None) -> str:
  """A figure of pixels, which stays as it is in dark mode."""
  source = _data_address(png)
  label = html.escape(label, quote=True)
  return (
      f'<figure><img style="max-width:100%;height:auto" src="{source}" '
      f'alt="{label}">{_caption(caption)}</figure>'
  )


def beta_panel(
    runs: Sequence[PanelRun],
    *,
    items: np.ndarray | Sequence[str],
    names: Sequence[str] | None = None,
    labels: np.ndarray | None = None,
) -> str:
  """A panel in which dragging beta weighs the negatives of an anchor anew.

  Args:
    runs: on the same items.
    items: images, uint8 ``[m, height, width, 3]``, or words.
    names: what to write under images.
    labels: integers ``[m]``; negatives with the anchor's label are marked as
      false ones.

  Returns:
    HTML with its data; the script is that of the page.
  """
  data = {
      'most_beta': _MOST_BETA,
      'runs': [_panel_run(run, labels) for run in runs],
      'names': None if names is None else list(names),
      'sprite': None,
      'count': len(items),
  }
  if isinstance(items, np.ndarray):
    columns = min(_SPRITE_COLUMNS, len(items))
    data |= {
        'columns': columns,
        'sprite': _data_address(to_png(tile_images(items, columns))),
    }
  else:
    data['texts'] = list(items)
  # "</script>" in a text must not end the script.
  encoded = json.dumps(data, allow_nan=False).replace('<', '\\u003c')
  false = '' if labels is None else _fact('same', 'weight of false negatives')
  return (
      '<div class="panel">\n'
      f'<script type="application/json">{encoded}</script>\n'
      '<div class="knobs">\n'
      '<label>run <select data-role="run"></select></label>\n'
      '<label>beta <output data-role="beta-value"></output>'
      '<input type="range" min="0" max="1000" step="1" data-role="beta">'
      '</label>\n'
      '<label data-only="nce">tau_plus <output data-role="tau-value"></output>'
      '<input type="range" min="0" max="0.5" step="0.01" data-role="tau">'
      '</label>\n'
      '</div>\n'
      '<p><button type="button" data-role="own-beta">back to the beta of the '
      'run</button></p>\n'
      '<h3>Anchor</h3><div class="tiles" data-role="anchors"></div>\n'
      '<div class="facts">'
      + _fact('number', 'effective number of negatives')
      + _fact('largest', 'weight of the heaviest')
      + false
      + _fact('loss', 'loss of the anchor', 'data-only="nce"')
      + '</div>\n'
      '<h3>Weights of the negatives, heaviest first</h3>\n'
      '<div class="bars" data-role="bars"></div>\n'
      '<h3>The heaviest negatives</h3>\n'
      '<div class="tiles" data-role="negatives"></div>\n'
      '</div>'
  )


def tile_images(images: np.ndarray, columns: int) -> np.ndarray:
  """Images in rows of so many, the last row filled with black.

  Args:
    images: uint8 ``[m, height, width, 3]``.
    columns: images of a row.

  Returns:
    uint8 ``[rows * height, columns * width, 3]``.
  """
  rows = -(-len(images) // columns)
  _, height, width, channels = images.shape
  filled = np.zeros((rows * columns, height, width, channels), np.uint8)
  filled[: len(images)] = images
  grid = filled.reshape(rows, columns, height, width, channels)
  return grid.swapaxes(1, 2).reshape(rows * height, columns * width, channels)


def to_png(image: np.ndarray) -> bytes:
  """An image, uint8 ``[height, width, 3]``, as PNG."""
  from PIL import Image

  buffer = io.BytesIO()
  Image.fromarray(image).save(buffer, 'PNG', optimize=True)
  return buffer.getvalue()


def _cell(text):
  return re.sub(r'\*\*(.+?)\*\*', r'<b>\1</b>', html.escape(text))


def _panel_run(run, labels):
  anchors = []
  for i, item in enumerate(run.anchors):
    columns = np.flatnonzero(run.where[i])
    items = np.asarray(run.items)[columns]
    same = None if labels is None else labels[items] == labels[item]
    positive = None if run.pos_logits is None else _short(run.pos_logits[i])
    anchors.append({
        'item': int(item),
        'positive': positive,
        'logits': [_short(x) for x in run.neg_logits[i, columns]],
        'items': items.tolist(),
        'same': None if same is None else same.astype(int).tolist(),
    })
  return {
      'name': run.name,
      'beta': float(run.beta),
      'tau_plus': float(run.tau_plus),
      'nce': run.pos_logits is not None,
      'log_floor': run.log_floor,
      'anchors': anchors,
  }


def _short(number):
  return round(float(number), _DIGITS)


def _fact(role, words, attributes=''):
  return (
      f'<div {attributes}><b data-role="{role}"></b>'
      f'<span>{html.escape(words)}</span></div>'
  )


def _caption(text):
  return f'<figcaption>{html.escape(text)}</figcaption>' if text else ''


def _data_address(png):
  return 'data:image/png;base64,' + base64.b64encode(png).decode('ascii')


def _asset(name):
  files = importlib.resources.files('hcl_jax.report')
  return (files / 'assets' / name).read_text('utf-8')
