# SPDX-License-Identifier: Apache-2.0
"""Analysis of sweeps: what is grouped, tabulated, drawn and refused."""

import itertools
import json
import math
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax import analysis
from hcl_jax.graphs import config as graph_config
from hcl_jax.report import plots
from hcl_jax.report import sweep_report
from hcl_jax.runs import scores as scores_lib
from hcl_jax.sweeps import grid
from hcl_jax.sweeps import results as results_lib
from tests.support import commands

_ROOT = pathlib.Path(__file__).parents[2]


def _columns(**values):
  """All combinations, as columns; '__' in a name stands for a dot."""
  rows = list(itertools.product(*values.values()))
  return {
      name.replace('__', '.'): [row[k] for row in rows]
      for k, name in enumerate(values)
  }


class RepeatsTest(parameterized.TestCase):

  def test_panels_series_and_places(self):
    fields = _columns(
        loss__beta=(2.0, 10.0, 0.0),
        data__name=('MUTAG', 'DD'),
        loss__variant=('released', 'paper'),
        loss__tau_plus=(0.0, 0.25),
        seed=(0, 1, 2),
        model__width=(32,),
    )
    scores = np.arange(72) / 72
    scores[0] = math.nan
    repeats = analysis.group_repeats(fields, scores)
    self.assertEqual(repeats.panels, ['MUTAG', 'DD'])
    self.assertEqual(
        repeats.series,
        ['released, τ⁺ = 0', 'released, τ⁺ = 0.25', 'paper, τ⁺ = 0',
         'paper, τ⁺ = 0.25'],
    )  # fmt: skip
    self.assertEqual((repeats.axis, repeats.ticks), ('β', ['0', '2', '10']))
    np.testing.assert_array_equal(repeats.scores[0][0][1], scores[[1, 2]])
    np.testing.assert_array_equal(repeats.scores[1][2][0], scores[66:69])
    self.assertEqual(repeats.counts(), {2, 3})

  @parameterized.parameters(
      (('model.width', 'loss.beta'), 'β'),
      (('seed', 'loss.variant', 'model.width', 'loss.tau_plus'), 'model.width'),
      (('loss.tau_plus', 'optimizer.decay_vectors'), 'τ⁺'),
      (('seed', 'loss.variant', 'optimizer.decay_vectors'), ''),
      (('seed',), ''),
  )
  def test_the_axis_is_beta_or_the_first_number(self, names, axis):
    values = {
        'seed': (0, 1),
        'loss.beta': (0.0, 1.0),
        'loss.variant': ('paper', 'released'),
        'loss.tau_plus': (0.0, 0.1),
        'model.width': (16, 32),
        'optimizer.decay_vectors': (False, True),
    }
    rows = list(itertools.product(*(values[name] for name in names)))
    fields = dict(zip(names, zip(*rows, strict=True), strict=True))
    repeats = analysis.group_repeats(fields, np.ones(len(rows)))
    self.assertEqual(repeats.axis, axis)
    if not axis:
      self.assertEqual(repeats.ticks, [''])

  def test_another_axis_can_be_asked_for(self):
    fields = _columns(
        data__batch_size=(16, 128), loss__beta=(0.0, 1.0), seed=(0, 1)
    )
    scores = np.arange(8) / 8
    repeats = analysis.group_repeats(fields, scores, axis='data.batch_size')
    self.assertEqual(repeats.axis, 'data.batch_size')
    self.assertEqual(repeats.ticks, ['16', '128'])
    self.assertEqual(repeats.series, ['β = 0', 'β = 1'])
    np.testing.assert_array_equal(repeats.scores[0][1][0], scores[2:4])
    for axis in ('seed', 'loss.tau_plus'):
      with self.assertRaisesRegex(ValueError, 'data.batch_size or loss.beta'):
        analysis.group_repeats(fields, scores, axis=axis)

  def test_divisions_are_repeats(self):
    fields = _columns(
        loss__beta=(0.0, 1.0), data__division=(1, 2, 3), seed=(0, 1)
    )
    repeats = analysis.group_repeats(fields, np.arange(12))
    self.assertEqual((repeats.axis, repeats.series), ('β', ['']))
    self.assertEqual(repeats.counts(), {6})
    curve = np.arange(2.0), np.arange(2.0)
    (panel,) = analysis.group_curves(fields, [curve] * 12).values()
    self.assertLen(set(panel[0].seeds), 6)
    self.assertEqual(panel[0].seeds, panel[1].seeds)

  def test_fields_that_vary_only_between_data_sets_label_nothing(self):
    fields = {
        'data.name': ['a', 'a', 'b', 'b'],
        'train.epochs': [5, 5, 50, 50],
        'loss.tau_plus': [0.0, 0.1, 0.0, 0.01],
    }
    repeats = analysis.group_repeats(fields, np.ones(4))
    self.assertEqual((repeats.axis, repeats.series), ('τ⁺', ['']))
    self.assertEqual(repeats.ticks, ['0', '0.01', '0.1'])

  def test_numbers_that_vary_together_are_labeled_by_the_first(self):
    fields = {
        'loss.beta': [0.0, 1.0, 0.0, 1.0],
        'loss.tau_plus': [0.0, 0.1, 0.0, 0.1],
        'mochi.num_hardest': [0, 0, 800, 800],
        'mochi.num_mixed': [0, 0, 100, 100],
        'train.epochs': [9, 9, 20, 20],
    }
    repeats = analysis.group_repeats(fields, np.ones(4))
    self.assertEqual(
        repeats.series,
        ['τ⁺ = 0, num_hardest = 0, epochs = 9',
         'τ⁺ = 0.1, num_hardest = 0, epochs = 9',
         'τ⁺ = 0, num_hardest = 800, epochs = 20',
         'τ⁺ = 0.1, num_hardest = 800, epochs = 20'],
    )  # fmt: skip
    repeats = analysis.group_repeats(
        fields, np.ones(4), axis='mochi.num_hardest'
    )
    self.assertEqual(
        repeats.series,
        ['β = 0, τ⁺ = 0, epochs = 9', 'β = 1, τ⁺ = 0.1, epochs = 9',
         'β = 0, τ⁺ = 0, epochs = 20', 'β = 1, τ⁺ = 0.1, epochs = 20'],
    )  # fmt: skip
    fields['mochi.num_mixed'][-1] = 50
    repeats = analysis.group_repeats(fields, np.ones(4))
    self.assertContainsSubset(
        ['τ⁺ = 0.1, num_hardest = 800, num_mixed = 50, epochs = 20'],
        repeats.series,
    )

  def test_strings_that_vary_together_are_all_labeled(self):
    fields = {
        'optimizer.name': ['sgd', 'adam'],
        'optimizer.learning_rate': [0.1, 0.001],
        'optimizer.decay_vectors': [False, True],
    }
    repeats = analysis.group_repeats(fields, np.ones(2))
    self.assertEqual(repeats.axis, 'optimizer.learning_rate')
    self.assertEqual(
        repeats.series,
        ['sgd, decay_vectors = False', 'adam, decay_vectors = True'],
    )

  def test_a_number_of_each_data_set_is_labeled_as_more_than_0(self):
    fields = {
        'data.name': ['a'] * 4 + ['b'] * 4,
        'loss.tau_plus': [0.0, 0.1] * 2 + [0.0, 0.01] * 2,
        'loss.beta': [0.0, 0.0, 1.0, 1.0] * 2,
    }
    repeats = analysis.group_repeats(fields, np.arange(8) / 8)
    self.assertEqual(repeats.series, ['τ⁺ = 0', 'τ⁺ > 0'])
    self.assertEqual(repeats.scores[1][1], [[5 / 8], [7 / 8]])
    panels = analysis.group_curves(fields, _run_curves(range(8)))
    self.assertEqual(
        [(x.setting, x.is_baseline) for x in panels['b']],
        [('τ⁺ = 0, β = 0', True), ('τ⁺ > 0, β = 0', False),
         ('τ⁺ = 0, β = 1', False), ('τ⁺ > 0, β = 1', False)],
    )  # fmt: skip
    fields['loss.tau_plus'][-1] = 0.1
    repeats = analysis.group_repeats(fields, np.arange(8) / 8)
    self.assertEqual(repeats.series, ['τ⁺ = 0', 'τ⁺ = 0.1', 'τ⁺ = 0.01'])


def _run_curves(values):
  """Curves at epochs 1, 2, 4 that end at the values."""
  epochs = np.array([1.0, 2.0, 4.0])
  return [(epochs, np.array([0.0, 0.5, 1.0]) * value) for value in values]


class CurvesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    fields = _columns(
        data__name=('a', 'b'), loss__beta=(0.0, 1.0), seed=(0, 1, 2)
    )
    curves = _run_curves([0.4, 0.6, 0.8, 0.8, 1.2, 0.5] * 2)
    curves[-1] = np.zeros(0), np.zeros(0)
    curves[1] = curves[1][0][[0, 2]], curves[1][1][[0, 2]]
    self.panels = analysis.group_curves(fields, curves)

  def test_groups(self):
    self.assertEqual(list(self.panels), ['a', 'b'])
    standard, hard = self.panels['a']
    self.assertEqual((standard.setting, hard.setting), ('β = 0', 'β = 1'))
    self.assertEqual((standard.is_baseline, hard.is_baseline), (True, False))
    np.testing.assert_array_equal(standard.epochs, [1, 4])
    np.testing.assert_array_equal(
        standard.scores, [[0, 0.4], [0, 0.6], [0, 0.8]]
    )
    np.testing.assert_array_equal(hard.epochs, [1, 2, 4])
    self.assertEqual(self.panels['b'][1].seeds, [(0,), (1,)])

  def test_epochs_to_the_baseline_of_the_same_seed(self):
    header, lines = sweep_report.epochs_cells(self.panels)
    self.assertLen(header, 4)
    self.assertEqual(
        lines,
        [
            ['a', 'β = 0', '4.0 ± 0.0', '3 of 3'],
            ['a', 'β = 1', '2.0 ± 0.0', '2 of 3'],
            ['b', 'β = 0', '4.0 ± 0.0', '3 of 3'],
            ['b', 'β = 1', '2.0 ± 0.0', '2 of 2'],
        ],
    )

  def test_without_one_baseline_nothing_is_reached(self):
    for name, values in (('loss.variant', 'pr'), ('loss.tau_plus', (0.1, 0.2))):
      fields = {'loss.beta': [0.0, 0.0, 1.0], name: [*values, values[0]]}
      panels = analysis.group_curves(fields, _run_curves([0.4, 0.6, 0.8]))
      self.assertLen(panels[''], 3)
      self.assertEqual(sweep_report.epochs_cells(panels)[1], [])

  def test_is_drawn(self):
    figure = plots.repeated_curves_figure(self.panels, 'knn/top1')
    first, second = figure.axes
    self.assertEqual([first.get_title(), second.get_title()], ['a', 'b'])
    broken, standard, hard = first.get_lines()
    np.testing.assert_allclose(broken.get_ydata(), [60, 60])
    np.testing.assert_allclose(standard.get_ydata(), [0, 60])
    np.testing.assert_allclose(hard.get_ydata(), [0, 125 / 3, 250 / 3])
    self.assertLen(first.collections, 2)
    with self.assertRaisesRegex(ValueError, 'panels must have at least one'):
      plots.repeated_curves_figure({}, 'knn/top1')

  def test_more_lines_than_colors_have_a_panel_for_each_series(self):
    fields = _columns(
        loss__beta=(0.0, 1.0), data__batch_size=(16, 32, 64, 128)
    )
    curves = _run_curves(np.arange(8) / 8)
    panels = analysis.group_curves(fields, curves, axis='data.batch_size')
    figure = plots.repeated_curves_figure(panels, 'knn/top1')
    first, second = figure.axes
    self.assertEqual([x.get_title() for x in figure.axes], ['β = 0', 'β = 1'])
    self.assertEqual(first.get_ylim(), second.get_ylim())
    lines = [line.get_ydata()[-1] for line in second.get_lines()]
    np.testing.assert_allclose(lines, [50, 62.5, 75, 87.5])
    (legend,) = figure.legends
    self.assertEqual(
        [x.get_text() for x in legend.get_texts()],
        [f'batch_size = {x}' for x in (16, 32, 64, 128)],
    )

  def test_series_of_two_data_sets_have_each_their_panels(self):
    fields = _columns(
        data__name='ab', loss__variant='pr', loss__beta=(0.0, 1.0, 2.0, 6.0)
    )
    curves = _run_curves([0.1] * 8 + [0.9] * 8)
    figure = plots.repeated_curves_figure(
        analysis.group_curves(fields, curves), 'knn/top1'
    )
    self.assertEqual(
        [x.get_title() for x in figure.axes], ['a, p', 'a, r', 'b, p', 'b, r']
    )
    first, *_, last = figure.axes
    self.assertLess(first.get_ylim()[1], 20)
    self.assertGreater(last.get_ylim()[1], 90)
    self.assertLen(last.get_lines(), 5)


class TableTest(absltest.TestCase):

  def test_means_deviations_and_the_best(self):
    fields = _columns(
        data__name=('MUTAG', 'DD'),
        loss__variant=('paper', 'released'),
        loss__beta=(0.0, 10.0),
        seed=(0, 1),
    )
    scores = np.array([80, 82, 70, 74, 90, 90, 60, 60] + [50] * 6 + [51, 53])
    table = sweep_report.repeats_table(
        analysis.group_repeats(fields, scores / 100), 'svm/accuracy'
    )
    about, _, head, _, mutag, dd = table.splitlines()
    self.assertEqual(
        about,
        'svm/accuracy in percent, mean ± standard deviation over 2 repeats; '
        'the best mean of each row is bold.',
    )
    self.assertEqual(
        head,
        '|  | paper, β = 0 | paper, β = 10 | released, β = 0 | '
        'released, β = 10 |',
    )
    self.assertEqual(
        mutag,
        '| MUTAG | 81.00 ± 1.41 | 72.00 ± 2.83 | **90.00 ± 0.00** | '
        '60.00 ± 0.00 |',
    )
    self.assertEndsWith(dd, '| 50.00 ± 0.00 | **52.00 ± 1.41** |')

  def test_one_data_set_has_a_row_for_each_series(self):
    fields = _columns(
        data__name=('stl10',), loss__variant=('paper', 'released'),
        loss__beta=(0.0, 1.0), seed=(0, 1),
    )  # fmt: skip
    table = sweep_report.repeats_table(
        analysis.group_repeats(fields, np.arange(8) / 10), 'knn/top1'
    )
    self.assertEqual(
        table.splitlines()[2:],
        ['| stl10 | β = 0 | β = 1 |', '| --- | ---: | ---: |',
         '| paper | 5.00 ± 7.07 | **25.00 ± 7.07** |',
         '| released | 45.00 ± 7.07 | **65.00 ± 7.07** |'],
    )  # fmt: skip

  def test_numbers_of_repeats_where_they_differ(self):
    fields = _columns(loss__beta=(0.0, 1.0, 2.0), seed=(0, 1))
    scores = [0.5, 0.7, 0.8, math.nan, math.nan, math.nan]
    table = sweep_report.repeats_table(
        analysis.group_repeats(fields, scores), 'svm/accuracy'
    )
    self.assertIn('over repeats (in parentheses);', table)
    self.assertEndsWith(table, '| 60.00 ± 14.14 (2) | **80.00** (1) | - |')
    errors = [0.1, 0.1, 0.05, math.nan, math.nan, math.nan]
    table = sweep_report.repeats_table(
        analysis.group_repeats(fields, scores),
        'svm/accuracy',
        analysis.group_repeats(fields, errors),
    )
    self.assertIn('a single one ± standard error over what is scored;', table)
    self.assertEndsWith(
        table, '| 60.00 ± 14.14 (2) | **80.00 ± 5.00** (1) | - |'
    )


class FigureTest(absltest.TestCase):

  def _draw(self, num_sets, num_seeds):
    fields = _columns(
        data__name=[f'SET{i}' for i in range(num_sets)],
        loss__variant=('paper', 'released'),
        loss__beta=(0.0, 1.0, 10.0),
        seed=range(num_seeds),
    )
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.5, 0.9, len(fields['seed']))
    repeats = analysis.group_repeats(fields, scores)
    return plots.repeats_figure(repeats, 'svm/accuracy'), repeats

  def test_a_panel_has_boxes_and_every_repeat(self):
    figure, repeats = self._draw(5, 4)
    self.assertLen(figure.axes, 8)
    self.assertEqual([x.axison for x in figure.axes], [True] * 5 + [False] * 3)
    axes = figure.axes[1]
    self.assertEqual(axes.get_title(), 'SET1')
    self.assertLen(axes.patches, 6)
    self.assertEqual(
        [x.get_text() for x in axes.get_xticklabels()], ['0', '1', '10']
    )
    drawn = [
        line.get_ydata()
        for line in axes.lines
        if line.get_linestyle() == 'None'
    ]
    np.testing.assert_allclose(drawn[0], 100 * repeats.scores[1][0][0])
    self.assertLen(drawn, 6)
    colors = [patch.get_edgecolor() for patch in axes.patches]
    self.assertLen(set(colors[:3]), 1)
    self.assertNotEqual(colors[0], colors[3])
    self.assertEqual(figure.get_supylabel(), 'svm accuracy (%)')
    self.assertEqual(figure.get_supxlabel(), 'β')
    (legend,) = figure.legends
    self.assertEqual(
        [x.get_text() for x in legend.get_texts()], ['paper', 'released']
    )

  def test_a_legend_of_long_names_is_not_cut_off(self):
    fields = _columns(loss__beta=(0.0, 1.0), loss__variant=('x' * 50, 'y' * 50))
    curves = analysis.group_curves(fields, _run_curves([0.1, 0.2, 0.3, 0.4]))
    for figure in (
        plots.repeats_figure(
            analysis.group_repeats(fields, np.ones(4)), 'knn/top1'
        ),
        plots.repeated_curves_figure(curves, 'knn/top1'),
    ):
      figure.draw_without_rendering()
      (legend,) = figure.legends
      box = legend.get_window_extent()
      self.assertGreaterEqual(box.x0, 0)
      self.assertLessEqual(box.x1, figure.bbox.x1)

  def test_two_repeats_have_a_mean_and_a_deviation(self):
    figure, repeats = self._draw(1, 2)
    (axes,) = figure.axes
    self.assertEmpty(axes.patches)
    self.assertLen(axes.containers, 6)
    data, _, (bars,) = axes.containers[0].lines
    scores = 100 * repeats.scores[0][0][0]
    ((_, low), (_, high)) = bars.get_segments()[0]
    self.assertAlmostEqual((low + high) / 2, scores.mean())
    self.assertAlmostEqual((high - low) / 2, scores.std(ddof=1))
    self.assertAlmostEqual(data.get_ydata()[0], scores.mean())

  def test_the_same_figure_is_the_same_file(self):
    with tempfile.TemporaryDirectory() as folder:
      files = [pathlib.Path(folder) / name for name in ('a.svg', 'b.svg')]
      for path in files:
        plots.save(self._draw(1, 3)[0], path)
      self.assertEqual(files[0].read_bytes(), files[1].read_bytes())


class _FolderTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )

  def _write_sweep(self, name, fields, failed=(), **changes):
    """A finished sweep, whose accuracies count runs in thousandths."""
    workdir = self.root / name
    workdir.mkdir()
    config = graph_config.infograph()
    with config.ignore_type():
      config.update_from_flattened_dict(changes)
    record = config.to_dict() | {'sweep': {}}
    (workdir / 'config.json').write_text(json.dumps(record))
    runs = grid.expand(config, fields)
    results = results_lib.SweepResults(workdir, runs)
    for run in runs:
      if run.number in failed:
        results.add(run, {'failure': 'it was not to be'})
      else:
        score = scores_lib.Score(run.number / 1000)
        results.add(run, {'scores': {'svm/accuracy': score}})
    results.write()
    return workdir


class ResultsTest(_FolderTestCase):

  def test_one_sweep(self):
    fields = {'loss.beta': (0.0, 2.0), 'optimizer.decay_vectors': (True, False)}
    workdir = self._write_sweep('one', fields, failed=[2])
    results = results_lib.read([workdir])
    self.assertEqual(
        results.fields,
        {
            'loss.beta': [0.0, 0.0, 2.0, 2.0],
            'optimizer.decay_vectors': [True, False, True, False],
            'data.name': ['MUTAG'] * 4,
        },
    )
    np.testing.assert_array_equal(
        results.scores['svm/accuracy'], [0, 0.001, math.nan, 0.003]
    )

  def test_curves_of_runs(self):
    workdir = self._write_sweep(
        'one', {'seed': (0, 1)}, **{'train.epochs': 20}
    )
    run = workdir / 'runs' / '0001'
    run.mkdir()
    steps = (100, 0.2), (50, 0.1), (200, 0.4)
    lines = [{'step': step, 'svm/accuracy': x} for step, x in steps]
    lines += [{'step': 150, 'loss': 1.0}]
    (run / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    results = results_lib.read([workdir])
    self.assertEqual(results.curve_score, 'svm/accuracy')
    (none, _), (epochs, scores) = results.curves
    self.assertEmpty(none)
    np.testing.assert_array_equal(epochs, [5, 10, 20])
    np.testing.assert_array_equal(scores, [0.1, 0.2, 0.4])

  def test_sweeps_are_joined_by_what_they_differ_in(self):
    one = self._write_sweep('one', {'seed': (0, 1)})
    two = self._write_sweep(
        'two',
        {'loss.beta': (0.0, 1.0)},
        **{'data.name': 'DD', 'data.dir': 'elsewhere', 'seed': 5},
    )
    results = results_lib.read([one, two])
    self.assertEqual(
        results.fields,
        {
            'seed': [0, 1, 5, 5],
            'loss.beta': [1.0, 1.0, 0.0, 1.0],
            'data.name': ['MUTAG', 'MUTAG', 'DD', 'DD'],
        },
    )
    np.testing.assert_array_equal(
        results.scores['svm/accuracy'], [0, 0.001, 0, 0.001]
    )

  @parameterized.parameters('[1]', '{}', 'null', '{"a": 1}')
  def test_values_are_numbers_or_strings_and_nothing_else(self, value):
    workdir = self._write_sweep('one', {'seed': (0, 1)})
    (workdir / 'runs' / '0001.json').write_text(
        f'{{"values": {{"seed": {value}}}, "scores": {{}}}}'
    )
    with self.assertRaisesRegex(ValueError, '0001.json must have values'):
      results_lib.read([workdir])

  @parameterized.parameters('{', '[]', '3', '{"scores": 3}', '{"kinds": []}')
  def test_damaged_results(self, text):
    workdir = self._write_sweep('one', {'seed': (0, 1)})
    (workdir / 'runs' / '0001.json').write_text(text)
    with self.assertRaisesRegex(ValueError, '0001.json (cannot be|must have)'):
      results_lib.read([workdir])

  def test_the_same_run_twice_is_refused(self):
    one = self._write_sweep('one', {'seed': (0, 1)})
    two = self._write_sweep('two', {'seed': (1, 2)})
    with self.assertRaisesRegex(ValueError, 'two: seed=1, .* is there twice'):
      results_lib.read([one, two])

  def test_other_configurations_are_not_joined(self):
    one = self._write_sweep('one', {'seed': (0, 1)})
    two = self._write_sweep('two', {'seed': (2, 3)})
    record = json.loads((two / 'config.json').read_text())
    record['loss']['other'] = 1
    (two / 'config.json').write_text(json.dumps(record))
    with self.assertRaisesRegex(ValueError, 'only one has a field loss.other'):
      results_lib.read([one, two])

  def test_kinds_are_those_that_were_written(self):
    workdir = self._write_sweep('one', {'seed': (0, 1)})
    path = workdir / 'runs' / '0001.json'
    record = json.loads(path.read_text())
    self.assertEqual(record['kinds'], {'svm/accuracy': 'share'})
    record['scores'] |= {'a/b': 2.0, 'a/loss': 3.0, 'a/folds': [1]}
    record['kinds'] |= {'a/b': 'number'}
    path.write_text(json.dumps(record))
    self.assertEqual(
        results_lib.read([workdir]).kinds,
        {'svm/accuracy': 'share', 'a/b': 'number', 'a/loss': 'loss'},
    )


class CommandTest(_FolderTestCase):

  def _run(self, *arguments):
    return commands.run('analyze', *arguments)

  def test_draws_and_tabulates(self):
    fields = {'loss.beta': (0.0, 2.0), 'seed': (0, 1, 2)}
    one = self._write_sweep('one', fields)
    two = self._write_sweep('two', fields, **{'data.name': 'DD'})
    done = self._run(f'--workdir={one}')
    self.assertEqual(done.status, 0, done.err)
    names = {
        'table.md', 'svm_accuracy.png', 'svm_accuracy.svg', 'report.html'
    }  # fmt: skip
    self.assertEqual({x.name for x in (one / 'analysis').iterdir()}, names)
    table = (one / 'analysis' / 'table.md').read_text()
    self.assertIn(table, done.out)
    self.assertIn('| MUTAG | 0.10 ± 0.10 | **0.40 ± 0.10** |', table)

    page = (one / 'analysis' / 'report.html').read_text()
    self.assertIn('<td><b>0.40 ± 0.10</b></td>', page)
    self.assertIn('aria-label="svm/accuracy by β"', page)
    self.assertIn('<figcaption>A point is a run, a box the quartiles', page)

    for number in range(6):
      run = one / 'runs' / f'000{number}'
      run.mkdir()
      (run / 'metrics.jsonl').write_text(
          '{"step": 1, "svm/accuracy": 0.1}\n'
          f'{{"step": 2, "svm/accuracy": 0.{number}}}\n'
      )
    done = self._run(f'--workdir={one}')
    self.assertEqual(done.status, 0, done.err)
    names |= {'curves_svm_accuracy.png', 'curves_svm_accuracy.svg', 'epochs.md'}
    self.assertEqual({x.name for x in (one / 'analysis').iterdir()}, names)
    epochs = (one / 'analysis' / 'epochs.md').read_text()
    self.assertIn('| MUTAG | β = 2 |', epochs)
    page = (one / 'analysis' / 'report.html').read_text()
    self.assertIn('aria-label="svm/accuracy by epoch"', page)

    both = f'--workdir={one},{two}'
    done = self._run(both, f'--output={self.root / "both"}')
    self.assertEqual(done.status, 0, done.err)
    table = (self.root / 'both' / 'table.md').read_text()
    self.assertRegex(table, r'(?s)\| MUTAG \| .*\| DD \| ')

    done = self._run(both)
    self.assertEqual(done.status, 2)
    self.assertIn('--output=FOLDER is needed', done.err)
    done = self._run(f'--workdir={one}', '--axis=model.width')
    self.assertEqual(done.status, 2)
    self.assertIn('axis must be a numeric field that varies', done.err)
    done = self._run(f'--workdir={one}', '--score=knn/top1')
    self.assertEqual(done.status, 2)
    self.assertIn('must be one of svm/accuracy; got knn/top1', done.err)

  @parameterized.named_parameters(
      ('nothing', False, False, 'there is no run in'),
      ('a_run_that_has_not_begun', True, False, 'has no checkpoint yet'),
      ('an_unfinished_sweep', True, True, 'has no results: no run'),
  )
  def test_what_has_no_results_is_refused(self, has_config, is_sweep, message):
    if has_config:
      record = graph_config.infograph().to_dict()
      record |= {'sweep': {'seed': [0]}} if is_sweep else {}
      (self.root / 'config.json').write_text(json.dumps(record))
    done = self._run(f'--workdir={self.root}')
    self.assertEqual(done.status, 2, done.err)
    self.assertIn(message, done.err)
    self.assertLen(done.err.strip().splitlines(), 1)
    self.assertFalse((self.root / 'analysis').exists())

  def test_runs_and_sweeps_are_not_mixed(self):
    sweep = self._write_sweep('one', {'seed': (0, 1)})
    run = self.root / 'run'
    run.mkdir()
    record = graph_config.infograph().to_dict()
    (run / 'config.json').write_text(json.dumps(record))
    done = self._run(f'--workdir={sweep},{run}', f'--output={self.root}/both')
    self.assertEqual(done.status, 2)
    self.assertRegex(done.err, 'one is a sweep and .*run a run')
    self.assertFalse((self.root / 'both').exists())

  def test_a_sweep_of_failures_is_refused(self):
    workdir = self._write_sweep('one', {'seed': (0, 1)}, failed=[0, 1])
    done = self._run(f'--workdir={workdir}')
    self.assertEqual(done.status, 2)
    self.assertIn('no run of the sweep has a score', done.err)
