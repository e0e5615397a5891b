# SPDX-License-Identifier: Apache-2.0
"""The report page: escaped, self-contained, and its panel in a real browser."""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np

import hcl_jax
from hcl_jax.report import page as report
from hcl_jax.report import plots

_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
_NASTY = '</script><script>alert(1)</script><b>"&\''
# What ends a comment, a section of data or, in a script, a line.
_NASTIER = '--></svg>]]><!--<script>\u2028\u2029 $\\frac' + _NASTY


class _Tags(html.parser.HTMLParser):
  """Counts tags and remembers addresses and text."""

  def __init__(self, page):
    super().__init__()
    self.counts, self.addresses, self.text = {}, [], ''
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.counts[tag] = self.counts.get(tag, 0) + 1
    self.addresses += [
        value for name, value in attrs if name in ('src', 'href')
    ]

  def handle_data(self, data):
    self.text += data


def _run(name='hard', *, with_loss=True, seed=0, anchors=3, negatives=9):
  rng = np.random.default_rng(seed)
  where = np.ones((anchors, negatives), bool)
  where[np.arange(anchors), np.arange(anchors)] = False
  return report.PanelRun(
      name=name,
      beta=1.0,
      tau_plus=0.1,
      pos_logits=np.round(rng.normal(size=anchors), 4) if with_loss else None,
      neg_logits=np.round(2 * rng.normal(size=(anchors, negatives)), 4),
      where=where,
      anchors=np.arange(anchors),
      items=np.arange(negatives),
      log_floor=-2.0 if with_loss else None,
  )


def _images(number=9):
  rng = np.random.default_rng(1)
  return rng.integers(0, 256, (number, 4, 4, 3), dtype=np.uint8)


def _panel_page(**options):
  labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0])
  options = {'items': _images(), 'labels': labels} | options
  panel = report.beta_panel([_run(), _run('standard', seed=2)], **options)
  return report.page('T', 'S', [report.Section('Drag', [panel])])


class PageTest(parameterized.TestCase):

  def test_what_comes_from_outside_is_escaped(self):
    panel = report.beta_panel(
        [_run(_NASTY)], items=[_NASTY] * 9, names=[_NASTY] * 9
    )
    page = report.page(_NASTY, _NASTY, [
        report.Section(_NASTY, [
            report.paragraph(_NASTY),
            report.preformatted(_NASTY, _NASTY),
            report.table([_NASTY], [[_NASTY]], caption=_NASTY),
            report.configurations({_NASTY: {_NASTY: _NASTY}, 'b': {}}),
            report.chart('<svg width="1pt"></svg>', _NASTY, _NASTY),
            report.picture(b'png', _NASTY, _NASTY),
            panel,
        ]),
    ])  # fmt: skip
    tags = _Tags(page)
    self.assertEqual(tags.counts['script'], 2)  # the panel's data and the code
    # Three facts of the panel have a number in bold, and nothing else has.
    self.assertEqual(tags.counts['b'], 3)
    self.assertNotIn('<script>alert', page)

  @parameterized.parameters(
      lambda x: report.page(x, '', []),
      lambda x: report.page('', x, []),
      lambda x: report.page('', '', [report.Section(x, ['-'])]),
      report.paragraph,
      report.preformatted,
      lambda x: report.preformatted('', x),
      lambda x: report.table([x], []),
      lambda x: report.table(['a'], [[x]]),
      lambda x: report.table(['a'], [['b']], caption=x),
      lambda x: report.configurations({x: {'a': 1}, 'b': {}}),
      lambda x: report.configurations({'a': {x: 1}}),
      lambda x: report.configurations({'a': {'b': x}}),
      lambda x: report.chart('<svg></svg>', x),
      lambda x: report.chart('<svg></svg>', '', x),
      lambda x: report.picture(b'png', x),
      lambda x: report.picture(b'png', '', x),
      lambda x: report.beta_panel([_run(x)], items=_images()),
      lambda x: report.beta_panel([_run()], items=[x] * 9),
      lambda x: report.beta_panel([_run()], items=_images(), names=[x] * 9),
      lambda x: report.frame(x, height=9),
  )
  def test_a_text_changes_no_tag(self, show):
    self.assertEqual(_Tags(show(_NASTIER)).counts, _Tags(show('fine')).counts)

  def test_data_of_the_panel_are_texts_as_they_were(self):
    panel = report.beta_panel([_run(_NASTIER)], items=[_NASTIER] * 9)
    text = re.search('json">(.*?)</script>', panel, re.DOTALL)[1]
    self.assertNotRegex(text, '[<\u2028\u2029]')
    data = json.loads(text)
    self.assertEqual(data['runs'][0]['name'], _NASTIER)
    self.assertEqual(data['texts'], [_NASTIER] * 9)

  def test_names_in_figures_change_no_tag(self):
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def tags(name):
      figure = plots.losses_figure({name: ([1, 2], [3, 4])})
      plots.save(figure, root / 'loss.svg')
      chart = report.chart((root / 'loss.svg').read_text('utf-8'), 'loss')
      return set(_Tags(chart).counts)

    self.assertEqual(tags(_NASTIER), tags('<fine>'))

  def test_nothing_is_loaded_from_anywhere(self):
    page = _panel_page()
    for address in _Tags(page).addresses:
      self.assertRegex(address, '^(data:|#)')
    self.assertNotRegex(page, r'url\((?!\$\{data)')
    self.assertNotIn('@import', page)
    self.assertIn("default-src 'none'", page)

  def test_sections_without_parts_are_left_out(self):
    page = report.page('T', 'S', [
        report.Section('Here', ['x']), report.Section('Gone', [])
    ])  # fmt: skip
    self.assertIn('Here', page)
    self.assertNotIn('Gone', page)

  def test_a_page_in_a_frame_is_escaped(self):
    page = report.page(_NASTY, '', [])
    frame = report.frame(page, height=300)
    self.assertEqual(_Tags(frame).counts, {'div': 1, 'iframe': 1})
    self.assertIn('height:300px', frame)

  def test_bold_cells(self):
    table = report.table(['a'], [['**1.5**'], ['2 ** 3']])
    self.assertIn('<td><b>1.5</b></td>', table)
    self.assertIn('<td>2 ** 3</td>', table)

  def test_differences_of_configurations_come_first(self):
    text = _Tags(report.configurations({
        'one': {'seed': 0, 'loss.beta': 1.0},
        'two': {'seed': 0, 'loss.beta': 0.0, 'extra': True},
    })).text
    self.assertLess(text.index('loss.beta'), text.index('seed'))
    self.assertIn("'-'", text)
    self.assertIn('all 3 fields', text)

  def test_one_configuration_differs_in_nothing(self):
    page = report.configurations({'one': {'seed': 0}})
    self.assertNotIn('differs in', page)

  def test_charts_have_the_width_of_the_page(self):
    svg = '<?xml?>\n<svg height="3pt" viewBox="0 0 1 1" width="4pt"><g/></svg>'
    page = report.chart(svg, 'a "label"')
    self.assertNotIn('<?xml', page)
    self.assertNotRegex(page, '(width|height)="')
    self.assertIn('aria-label="a &quot;label&quot;"', page)
    self.assertIn('viewBox', page)

  def test_tiles(self):
    images = _images(5)
    grid = report.tile_images(images, 2)
    self.assertEqual(grid.shape, (12, 8, 3))
    np.testing.assert_array_equal(grid[4:8, 4:], images[3])
    np.testing.assert_array_equal(grid[8:, 4:], 0)

  def test_panel_data(self):
    page = _panel_page()
    data = json.loads(
        re.search(r'application/json">(.*?)</script>', page, re.S)[1]
    )
    run = data['runs'][0]
    self.assertEqual([x['item'] for x in run['anchors']], [0, 1, 2])
    self.assertNotIn(1, run['anchors'][1]['items'])
    self.assertEqual(
        run['anchors'][0]['same'], [0, 1, 0, 1, 0, 1, 0, 1]
    )
    self.assertTrue(data['sprite'].startswith('data:image/png'))


class BrowserTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
      self.skipTest(f'the panel needs one of {", ".join(_BROWSERS)}.')
    self._browser = browser
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self._root = pathlib.Path(root.name)

  def _open(self, page, script=''):
    """The text of each role after a script has run in the page."""
    path = self._root / 'report.html'
    script = f'<script>{script}</script></body>'
    path.write_text(page.replace('</body>', script), 'utf-8')
    result = subprocess.run(
        [
            self._browser, '--headless', '--no-sandbox', '--disable-gpu',
            f'--user-data-dir={self._root}/profile', '--dump-dom',
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    self.assertEqual(result.returncode, 0, result.stderr)
    found = re.findall(r'data-role="([\w-]+)">([^<]*)<', result.stdout)
    return dict(found), result.stdout

  def test_numbers_are_those_of_the_library(self):
    script = '''
      const at = (name) => document.querySelector(`[data-role="${name}"]`);
      at('run').value = 1;
      at('run').dispatchEvent(new Event('change'));
      at('anchors').children[2].click();
      at('beta').value = 500;  // 20 * 0.5 ** 2
      at('tau').value = 0.05;
      at('beta').dispatchEvent(new Event('input'));
    '''
    shown, dom = self._open(_panel_page(), script)
    run = _run('standard', seed=2)
    logits = jnp.asarray(run.neg_logits[2][run.where[2]], jnp.float32)
    loss = hcl_jax.hard_nce_loss(
        jnp.float32(run.pos_logits[2]),
        logits,
        beta=5.0,
        tau_plus=0.05,
        log_floor=-2.0,
    )
    self.assertEqual(shown['beta-value'], '5.00')
    self.assertAlmostEqual(float(shown['loss'].split()[0]), loss, delta=1e-4)
    weights = np.exp(5 * (logits - logits.max()))
    weights /= weights.sum()
    number = 1 / np.sum(weights**2)
    self.assertEqual(shown['number'], f'{number:.1f} of 8')
    self.assertEqual(shown['largest'], f'{100 * weights.max():.1f} %')
    same = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0])[run.where[2]] == 0
    self.assertEqual(shown['same'], f'{100 * weights[same].sum():.1f} %')
    self.assertEqual(dom.count('<i '), 8)  # a bar for each negative

  def test_the_panel_works_in_a_frame(self):
    # What the frame shows is not in the DOM of the page around it.
    script = '''
      onload = () => {
        const inside = document.querySelector('iframe').contentDocument;
        document.title = inside.querySelector('[data-role="number"]').innerText;
      };
    '''
    framed = report.frame(_panel_page(), height=300)
    _, dom = self._open(f'<html><body>{framed}</body></html>', script)
    self.assertRegex(dom, r'<title>\d\.\d of 8</title>')

  def test_it_begins_with_the_values_of_the_run(self):
    shown, _ = self._open(_panel_page())
    self.assertEqual(shown['beta-value'], '1.00')
    self.assertEqual(shown['tau-value'], '0.10')

  def test_sentences_have_no_loss_and_no_classes(self):
    panel = report.beta_panel(
        [_run(with_loss=False)], items=[f'{_NASTY} {i}' for i in range(9)]
    )
    page = report.page('T', 'S', [report.Section('Drag', [panel])])
    shown, dom = self._open(page)
    self.assertRegex(dom, 'data-only="nce" hidden')
    self.assertEqual(shown['loss'], '')
    self.assertIn('alert(1)', dom)
    self.assertNotIn('<script>alert(1)', dom)
