# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML page: text, tables, figures and an interactive panel.

All input is escaped, and the page loads nothing from elsewhere.
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

_MAX_BETA = 20.0
_LOGIT_DIGITS = 4
_SPRITE_COLUMNS = 16


class Section(NamedTuple):
  """Heading and parts, HTML as the functions of this module return it."""

  title: str
  parts: Sequence[str]


class PanelRun(NamedTuple):
  """Data of a run for the panel.

  Attributes:
    name: name of the run.
    beta: beta that it was trained with; the median, if anchors have their own.
    tau_plus: tau_plus that it was trained with.
    pos_logits: logits of the positives, ``[a]``; None hides the loss.
    neg_logits: logits that beta multiplies, ``[a, n]``.
    where: mask of the negatives of each anchor, ``[a, n]``.
    anchors: item of each anchor, ``[a]``.
    items: item of each column, ``[n]``.
    log_floor: see :func:`hcl_jax.hard_nce_loss`.
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
  """Returns an HTML document; sections without parts are left out."""
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
      # Loads nothing from elsewhere even if escaping ever fails.
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
  """Embeds a page into another, such as a notebook, isolated from it.

  The height is in pixels; longer pages scroll.
  """
  return (
      f'<div><iframe srcdoc="{html.escape(document, quote=True)}" '
      f'style="width:100%;height:{height}px;border:0"></iframe></div>'
  )


def paragraph(text: str) -> str:
  """Returns a paragraph of text."""
  return f'<p>{html.escape(text)}</p>'


def preformatted(text: str, summary: str | None = None) -> str:
  """Returns preformatted text, collapsed under a summary if there is one."""
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
  """Returns a table, the first column aligned left, the others right.

  ``**text**`` in a cell is bold, and the caption is above the table.
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
  """Returns the configurations of runs side by side.

  Values are keyed by field, keyed by run. A table of the differences is
  followed by a collapsed one of all fields.
  """
  names = dict.fromkeys(x for of_run in fields.values() for x in of_run)
  lines = [
      [name, *(repr(of_run.get(name, '-')) for of_run in fields.values())]
      for name in names
  ]
  differing = [line for line in lines if len(set(line[1:])) > 1]
  parts = [table(['differs in', *fields], differing)] if differing else []
  parts.append(
      f'<details><summary>all {len(lines)} fields</summary>'
      f'{table(["field", *fields], lines)}</details>'
  )
  return '\n'.join(parts)


def chart(svg: str, label: str, caption: str | None = None) -> str:
  """Returns a vector figure of matplotlib, which dark mode inverts.

  The label is for screen readers, the caption is below the figure.
  """
  svg = svg[svg.index('<svg') :]
  for size in ('width', 'height'):  # without them it fills the column
    svg = re.sub(rf'^(<svg[^>]*?) {size}="[^"]*"', r'\1', svg, count=1)
  label = html.escape(label, quote=True)
  svg = f'<svg role="img" aria-label="{label}"' + svg[len('<svg') :]
  return f'<figure class="chart">{svg}{_caption(caption)}</figure>'


def picture(png: bytes, label: str, caption: str | None = None) -> str:
  """Returns a pixel image, which dark mode leaves as it is."""
  label = html.escape(label, quote=True)
  return (
      '<figure><img style="max-width:100%;height:auto" '
      f'src="{_data_address(png)}" alt="{label}">{_caption(caption)}</figure>'
  )


def beta_panel(
    runs: Sequence[PanelRun],
    *,
    items: np.ndarray | Sequence[str],
    names: Sequence[str] | None = None,
    labels: np.ndarray | None = None,
    marked: str = 'false negatives',
) -> str:
  """Returns a panel that shows the weights of negatives as beta is dragged.

  Args:
    runs: runs on the same items.
    items: images, uint8 ``[m, height, width, 3]``, or texts.
    names: captions of the images.
    labels: integers ``[m]``; negatives with the anchor's label are marked.
    marked: what these are.

  Returns:
    HTML with its data; the script is in :func:`page`.
  """
  data = {
      'max_beta': _MAX_BETA,
      'runs': [_panel_run(run, labels) for run in runs],
      'names': None if names is None else list(names),
      'sprite': None,
      'count': len(items),
  }
  if isinstance(items, np.ndarray):
    columns = min(_SPRITE_COLUMNS, len(items))
    data['columns'] = columns
    data['sprite'] = _data_address(to_png(tile_images(items, columns)))
  else:
    data['texts'] = list(items)
  # A "</script>" in the data must not end the script.
  encoded = json.dumps(data, allow_nan=False).replace('<', '\\u003c')
  same = '' if labels is None else _fact('same', f'weight of {marked}')
  return (
      '<div class="panel">\n'
      f'<script type="application/json">{encoded}</script>\n'
      '<div class="controls">\n'
      '<label>run <select data-role="run"></select></label>\n'
      '<label>beta <output data-role="beta-value"></output>'
      '<input type="range" min="0" max="1000" step="1" data-role="beta">'
      '</label>\n'
      '<label data-only="nce">tau_plus <output data-role="tau-value"></output>'
      '<input type="range" min="0" max="0.5" step="0.01" data-role="tau">'
      '</label>\n'
      '</div>\n'
      '<p><button type="button" data-role="own-beta">reset to the beta of the '
      'run</button></p>\n'
      '<h3>Anchor</h3><div class="tiles" data-role="anchors"></div>\n'
      '<div class="facts">'
      + _fact('number', 'effective number of negatives')
      + _fact('largest', 'largest weight')
      + same
      + _fact('loss', 'loss of the anchor', 'data-only="nce"')
      + '</div>\n'
      '<h3>Weights of the negatives, largest first</h3>\n'
      '<div class="bars" data-role="bars"></div>\n'
      '<h3>Negatives with the largest weights</h3>\n'
      '<div class="tiles" data-role="negatives"></div>\n'
      '</div>'
  )


def tile_images(images: np.ndarray, columns: int) -> np.ndarray:
  """Arranges images, uint8 ``[m, height, width, 3]``, in a grid.

  Places without an image are black.
  """
  rows = -(-len(images) // columns)
  _, height, width, channels = images.shape
  filled = np.zeros((rows * columns, height, width, channels), np.uint8)
  filled[: len(images)] = images
  grid = filled.reshape(rows, columns, height, width, channels)
  return grid.swapaxes(1, 2).reshape(rows * height, columns * width, channels)


def to_png(image: np.ndarray) -> bytes:
  """Encodes an image, uint8 ``[height, width, 3]``, as PNG."""
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
    same = positive = None
    if labels is not None:
      same = (labels[items] == labels[item]).astype(int).tolist()
    if run.pos_logits is not None:
      positive = _short(run.pos_logits[i])
    anchors.append({
        'item': int(item),
        'positive': positive,
        'logits': [_short(x) for x in run.neg_logits[i, columns]],
        'items': items.tolist(),
        'same': same,
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
  return round(float(number), _LOGIT_DIGITS)


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
