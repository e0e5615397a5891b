# SPDX-License-Identifier: Apache-2.0
"""Figures of single runs: what is in them, and that odd data can be drawn."""

import io

from absl.testing import parameterized
from matplotlib import figure as figure_lib
import numpy as np

from hcl_jax import analysis
from hcl_jax import theory
from hcl_jax.report import plots
from tests.support import testing

_LABELS = np.arange(30) % 3


def _rows(seed=0):
  return testing.normal(30, 4, seed=seed)


def _histograms(labels=_LABELS):
  return analysis.similarity_histograms(_rows(), labels, num_bins=8)


def _legend(figure):
  (legend,) = figure.legends
  return [text.get_text() for text in legend.get_texts()]


class _FigureTestCase(parameterized.TestCase):

  def check(self, figure, *, panels=1, named=True):
    """It can be written, and its axes have names."""
    self.assertIsInstance(figure, figure_lib.Figure)
    self.assertLen(figure.axes, panels)
    figure.savefig(io.BytesIO(), format='svg')
    if named:
      self.assertTrue(figure.axes[-1].get_xlabel())
      self.assertTrue(figure.axes[-1].get_ylabel() or figure.get_supylabel())


class SimilarityFigureTest(_FigureTestCase):

  def test_runs_are_overlaid(self):
    found = _histograms()
    other = found._replace(same=found.different, different=found.same)
    figure = plots.similarity_figure({'one': found, 'two': other})
    self.check(figure, panels=2)
    above, below = figure.axes
    overlap = analysis.overlap_coefficient(found)
    self.assertEqual(
        _legend(figure),
        [f'{name} (overlap {overlap:.2f})' for name in ('one', 'two')],
    )
    outlines = [x.get_data() for x in above.patches]
    self.assertLen(outlines, 4)
    # Eight bins from -1 to 1, a quarter wide each.
    np.testing.assert_allclose(
        outlines[0].values, 100 * found.same / found.same.sum() / 2.5
    )
    np.testing.assert_allclose(
        below.patches[2].get_data().values, outlines[0].values
    )

  def test_one_class_and_empty_bins(self):
    figure = plots.similarity_figure({'one': _histograms(0 * _LABELS)})
    self.check(figure, panels=2)
    self.assertEqual(_legend(figure), ['one'])
    self.assertEqual([x.get_text() for x in figure.axes[1].texts], ['none'])
    self.assertEmpty(figure.axes[0].texts)
    empty = _histograms()._replace(
        same=np.zeros(8, int), different=np.zeros(8, int)
    )
    self.check(plots.similarity_figure({'none': empty}), panels=2)

  def test_many_runs_differ_in_more_than_color(self):
    figure = plots.similarity_figure({str(i): _histograms() for i in range(9)})
    self.check(figure, panels=2)
    lines = figure.legends[0].get_lines()
    looks = {(x.get_color(), x.get_linestyle()) for x in lines}
    self.assertLen(looks, 9)

  def test_margins(self):
    pairs = analysis.pair_similarities(*testing.views(9, 4))
    none = analysis.pair_similarities(*testing.views(9, 4), labels=[0] * 9)
    figure = plots.margins_figure({'some': pairs, 'none': none})
    self.check(figure)
    share = np.mean(pairs.hardest_margin < 0)
    self.assertEqual(_legend(figure), [f'some ({share:.1%} below 0)', 'none'])
    self.check(plots.margins_figure({'none': none}))

  def test_false_negatives(self):
    found = analysis.false_negatives(_rows(), _LABELS, k=(20, 1, 5))
    figure = plots.false_negatives_figure({'a': found, 'b': found})
    self.check(figure)
    line = figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 5, 20])
    np.testing.assert_allclose(
        line.get_ydata(), 100 * found.fraction[[1, 2, 0]]
    )
    text = figure.axes[0].texts[0]
    self.assertIn('random negatives', text.get_text())
    self.assertEqual(text.get_va(), 'top')  # not over the lines
    one = analysis.false_negatives(_rows(), np.arange(30), k=(1,))
    self.check(plots.false_negatives_figure({'no class': one}))

  def test_effective_negatives(self):
    betas = [0, 1, 30]
    counts = np.stack([
        analysis.effective_negatives(_rows(), beta=beta) for beta in betas
    ])
    figure = plots.effective_negatives_figure(
        betas, {'all': counts, 'mean': counts.mean(1)}, num_negatives=4
    )
    self.check(figure)
    np.testing.assert_allclose(
        figure.axes[0].lines[0].get_ydata(), np.median(counts, axis=1)
    )
    self.check(plots.effective_negatives_figure([0.0], {'one': [4.0]}))


class CurvesFigureTest(_FigureTestCase):

  def test_when_the_baseline_is_reached(self):
    curves = {
        'base': ([1, 2, 4], [0.1, 0.3, 0.5]),
        'fast': ([1, 2, 4], [0.2, 0.6, 0.7]),
        'slow': ([1, 2, 4], [0.1, 0.2, 0.3]),
    }
    figure = plots.curves_figure(curves, 'knn/top1', baseline='base')
    self.check(figure)
    self.assertEqual(
        _legend(figure),
        ['base (epoch 4)', 'fast (epoch 2)', 'slow (not reached)'],
    )
    self.assertEqual(figure.axes[0].get_ylabel(), 'knn top1 (%)')
    self.assertEqual(
        _legend(plots.curves_figure(curves, 'knn/top1')), list(curves)
    )
    self.check(plots.curves_figure({'point': ([3], [0.2])}, 'knn/top1'))
    curves['zero'] = [1, 2], [0.1, 0.0]
    figure = plots.curves_figure(curves, 'knn/top1', baseline='zero')
    title = figure.legends[0].get_title().get_text()
    self.assertEqual(title, 'reaches 0.0% (zero) at')
    with self.assertRaisesRegex(ValueError, 'one of .*, slow, zero; got x'):
      plots.curves_figure(curves, 'knn/top1', baseline='x')

  def test_convergence_in_beta(self):
    curve = theory.convergence_in_beta(_rows(), _LABELS, betas=[0, 1, 100])
    figure = plots.beta_figure({'a': curve})
    self.check(figure)
    self.assertEqual(_legend(figure), ['a', 'limit L*'])
    self.check(plots.beta_figure({'a': curve._replace(
        betas=curve.betas[:1], losses=curve.losses[:1]
    )}))  # fmt: skip

  def test_variance(self):
    curve = theory.variance_against_alignment(
        np.eye(2, dtype=np.float32), spreads=[0.0, 0.1, 1.0], num_rows=5
    )
    figure = plots.variance_figure({'a': curve})
    self.check(figure)
    self.assertEqual(_legend(figure), ['a', "the lemma's bound"])

  def test_mixture(self):
    found = analysis.mixture_proportion([1.0, 2, 3], [0.0, 1, 2])
    self.assertLen(_legend(plots.mixture_figure(found)), 2)
    figure = plots.mixture_figure(found, known=0.4)
    self.check(figure)
    self.assertEqual(_legend(figure)[-1], 'known: 0.400')
    self.check(plots.mixture_figure(analysis.mixture_proportion([1.0], [0.0])))


class GalleryFigureTest(_FigureTestCase):

  @parameterized.parameters(
      ((30, 5, 5), np.uint8),
      ((30, 5, 5, 1), np.float32),
      ((30, 5, 5, 3), float),
  )
  def test_grid(self, shape, dtype):
    most = 255 if dtype == np.uint8 else 1
    images = np.random.default_rng(0).uniform(0, most, shape).astype(dtype)
    gallery = analysis.hard_negative_gallery(_rows(), [4, 7], k=3)
    figure = plots.gallery_figure(gallery, images, labels=_LABELS)
    self.check(figure, panels=16, named=False)
    grid = np.reshape(figure.axes, (2, 2, 4))
    shown = grid[1, 0, 2].images[0].get_array()
    np.testing.assert_array_equal(
        shown, images[gallery.hardest[1, 1]].squeeze()
    )
    title = grid[0, 1, 1].get_title()
    self.assertEqual(title, f'{gallery.random_similarities[0, 0]:.2f}')
    framed = [[x.axison for x in row] for row in grid[:, 0, 1:]]
    false = _LABELS[gallery.hardest] == _LABELS[gallery.anchors][:, None]
    np.testing.assert_array_equal(framed, false)

  def test_refuses(self):
    gallery = analysis.hard_negative_gallery(_rows(), [4], k=3)
    with self.assertRaisesRegex(ValueError, r'images must have shape.*\(30,\)'):
      plots.gallery_figure(gallery, np.zeros(30))
    with self.assertRaisesRegex(ValueError, 'between 0 and 1; got .* 0 to 9'):
      plots.gallery_figure(gallery, np.linspace(0, 9, 120).reshape(30, 2, 2))
    with self.assertRaisesRegex(ValueError, r'at least \d+ rows; got 2'):
      plots.gallery_figure(gallery, np.zeros((2, 2, 2)))


class PackingFigureTest(_FigureTestCase):

  def test_packings(self):
    options = {'num_restarts': 2, 'num_steps': 50}
    five = {
        str(dim) + name: theory.tammes_packing(3, dim, **options)
        for dim in (2, 3)
        for name in 'abc'
    }
    figure = plots.packing_figure(five)
    self.check(figure, panels=6, named=False)
    self.assertStartsWith(figure.axes[0].get_title(), '2a: 1')
    same = theory.Packing(np.tile([[1.0, 0.0]], (9, 1)), 0.0, 0.0)
    self.check(plots.packing_figure({'a point': same}), named=False)
    flat = theory.Packing(np.eye(4), np.pi / 2, 2.0)
    with self.assertRaisesRegex(ValueError, '2-D and 3-D .* drawn; got 4-D'):
      plots.packing_figure({'too many': flat})

  @parameterized.parameters((2, 4), (3, 4), (4, 2))
  def test_trajectory(self, dim, panels):
    rng = np.random.default_rng(0)
    run = theory.Trajectory(
        steps=np.array([0, 5, 10]),
        embeddings=rng.normal(size=(3, 18, dim)),
        labels=np.arange(18) // 2,
        class_means=rng.normal(size=(3, 9, dim)),
        spreads=np.array([0.5, 0.1, 0.0]),
        angles=np.array([0.1, 0.5, 0.9]),
        values=np.array([0.1, 0.2, 0.3]),
        best_angle=1.0,
        best_value=0.4,
    )
    figure = plots.trajectory_figure(run)
    self.check(figure, panels=panels, named=False)
    np.testing.assert_allclose(
        figure.axes[-2].lines[0].get_ydata(), np.degrees(run.angles)
    )


class EmptyTest(parameterized.TestCase):

  @parameterized.parameters(
      (plots.similarity_figure, ()),
      (plots.margins_figure, ()),
      (plots.false_negatives_figure, ()),
      (plots.curves_figure, ('knn',)),
      (plots.beta_figure, ()),
      (plots.variance_figure, ()),
      (plots.packing_figure, ()),
  )
  def test_nothing_to_draw_is_refused(self, draw, others):
    with self.assertRaisesRegex(ValueError, 'at least one entry to draw'):
      draw({}, *others)
