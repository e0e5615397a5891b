# SPDX-License-Identifier: Apache-2.0
"""Collections of graphs: the text format, features, and padded batches."""

import os
import pathlib
import socket
import tempfile
from unittest import mock
import zipfile

from absl import flags
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np
import tensorflow_datasets as tfds

import hcl_jax
from hcl_jax import command
from hcl_jax import prepare
from hcl_jax.graphs import data as graph_data
from hcl_jax.graphs import prepare as graph_prepare
from hcl_jax.graphs import tu_collections
from hcl_jax.models import graph_batch as graphs_lib
from tests.support import tu


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    tfds.disable_progress_bar()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.folder, self.data_dir = self.root / 'TOY', self.root / 'data'

  def prepare(self, path=None, name='tu_graphs/TOY'):
    return prepare.prepare(
        name, data_dir=self.data_dir, graphs=str(path or self.folder)
    )

  def load(self, name='tu_graphs/TOY'):
    return graph_data.load_graphs(name, data_dir=self.data_dir)


class TextTest(_Test):

  def test_reads_folders_and_archives(self):
    tu.write(self.folder)
    archive = tu.zip_folder(self.folder, self.root / 'any_name.zip')
    for path in (self.folder, self.root, archive):
      graphs = tu_collections.read(path, 'TOY')
      np.testing.assert_array_equal(graphs.graph_ids, [0, 0, 0, 1, 1, 1, 1])
      np.testing.assert_array_equal(
          graphs.senders, [1, 0, 2, 1, 4, 5, 3, 5, 3, 4]
      )
      np.testing.assert_array_equal(
          graphs.receivers, [0, 1, 1, 2, 3, 3, 4, 4, 5, 5]
      )
      np.testing.assert_array_equal(graphs.node_labels, [0, 2, 0, 0, 0, 1, 2])
      np.testing.assert_array_equal(graphs.labels, [1, 0])

  def test_edges_listed_twice_and_loops_count_once(self):
    tu.write(self.folder)
    expected = tu_collections.read(self.folder, 'TOY')
    lines = (self.folder / 'TOY_A.txt').read_text()
    tu.write(self.folder, A='7,7\r\n' + 2 * lines)
    again = tu_collections.read(self.folder, 'TOY')
    for a, e in zip(again, expected, strict=True):
      np.testing.assert_array_equal(a, e)

  @parameterized.parameters(
      ({'A': '1, 2\n2, x\n'}, r"TOY_A.txt must hold integers.*' x'"),
      ({'A': '1 2\n2 1\n'}, 'TOY_A.txt must hold integers'),
      ({'A': '1, 2, 3\n'}, 'TOY_A.txt must hold 2 numbers in a line, got 3'),
      ({'A': '1, 2\n2\n'}, 'TOY_A.txt must hold integers'),
      ({'A': '1, 2\n2, 8\n'}, 'line 2 of TOY_A.txt names node 8.* 1 to 7'),
      ({'A': '0, 1\n'}, 'line 1 of TOY_A.txt names node'),
      ({'A': '1, 2\n1, 5\n'}, 'line 2 of TOY_A.txt joins two graphs'),
      ({'A': ''}, 'TOY_A.txt is empty'),
      ({'A': None}, 'must hold TOY_A.txt, but it holds no _A.txt at all'),
      ({'A': None, 'x_A': '1, 2\n'}, 'but it holds TOY_x_A.txt'),
      ({'graph_indicator': None}, 'TOY_graph_indicator.txt is missing'),
      ({'graph_indicator': '1\n2\n1\n2\n2\n2\n2\n'}, 'line 3 does not'),
      ({'graph_indicator': '2\n2\n2\n3\n3\n3\n3\n'}, 'line 1 does not'),
      ({'graph_labels': '1\n'}, 'graph_labels.txt has 1 lines, but.* 2 graphs'),
      ({'graph_labels': '1.5\n2\n'}, 'graph_labels.txt must hold int'),
      ({'node_labels': '1\n'}, 'node_labels.txt has 1 lines, but.* 7 nodes'),
      ({'node_labels': '9' * 30}, 'node_labels.txt must hold integers'),
  )
  def test_what_is_wrong_is_said_and_nothing_is_written(self, files, message):
    tu.write(self.folder, **files)
    with self.assertRaisesRegex(ValueError, message) as caught:
      self.prepare()
    self.assertIn(str(self.folder), str(caught.exception))
    self.assertFalse(self.data_dir.exists())

  def test_damaged_archives(self):
    tu.write(self.folder, A='1, 2\n2, 1\n' * 500)
    path = tu.zip_folder(self.folder, self.root / 'toy.zip')
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[45] ^= 0xFF
    for damaged, message in (
        (content[:-30], 'no zip archive, or a damaged one'),
        (bytes(flipped), 'cannot be read'),
        (b'graphs', 'no zip archive, or a damaged one'),
    ):
      path.write_bytes(damaged)
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        self.prepare(path)
    with self.assertRaisesRegex(FileNotFoundError, 'no file or folder'):
      self.prepare(self.root / 'nothing.zip')
    self.assertFalse(self.data_dir.exists())

  def test_archives_that_expand_without_end(self):
    tu.write(self.folder, A='1, 2\n2, 1\n' * 2000)
    archive = tu.zip_folder(self.folder, self.root / 'toy.zip')
    self.assertLess(archive.stat().st_size, 2000)
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='1e-5'):
      for path in (self.folder, archive):
        with self.assertRaisesRegex(ValueError, 'TOY_A.txt has more than 1e-0'):
          self.prepare(path)
      # What an archive declares is refused before anything is unpacked.
      with mock.patch.object(
          zipfile.ZipExtFile, 'read', return_value=b''
      ) as read:
        with self.assertRaisesRegex(ValueError, 'HCL_JAX_MAX_FILE_GIB=NUMBER'):
          tu_collections._unzip(archive, 'TOY/TOY_A.txt')
      read.assert_not_called()
    self.assertFalse(self.data_dir.exists())
    with mock.patch.dict(os.environ, HCL_JAX_MAX_FILE_GIB='1'):
      tu_collections.read(archive, 'TOY')

  def test_names_in_an_archive_lead_nowhere(self):
    tu.write(self.folder)
    archive = self.root / 'inside' / 'toy.zip'
    archive.parent.mkdir()
    names = ('../../TOY_A.txt', '/etc/TOY_graph_indicator.txt',
             'C:\\x/TOY_graph_labels.txt')  # fmt: skip
    with zipfile.ZipFile(archive, 'w') as file:
      for name in names:
        source = self.folder / pathlib.PurePosixPath(name).name
        file.writestr(name, source.read_bytes())
      link = zipfile.ZipInfo('TOY_node_labels.txt')
      link.external_attr = 0o120777 << 16  # a link, to
      file.writestr(link, str(self.folder / 'TOY_node_labels.txt'))
    before = sorted(self.root.rglob('*'))
    with self.assertRaisesRegex(ValueError, 'node_labels.txt must hold int'):
      tu_collections.read(archive, 'TOY')
    self.assertEqual(sorted(self.root.rglob('*')), before)

  def test_known_collections_must_have_their_statistics(self):
    tu.write(self.folder, 'MUTAG')
    with self.assertRaisesRegex(
        ValueError, 'has 2 graphs of 2.*3.50.*MUTAG has 188 graphs.* 19.79'
    ):
      self.prepare(name='MUTAG')
    self.assertFalse(self.data_dir.exists())


class LoadTest(_Test):

  def test_round_trip(self):
    tu.write(self.folder)
    directory = self.prepare()
    self.assertEqual(directory, self.data_dir / 'tu_graphs' / 'TOY' / '1.0.0')
    graphs = self.load()
    self.assertLen(graphs, 2)
    self.assertEqual((graphs.num_classes, graphs.num_features), (2, 3))
    np.testing.assert_array_equal(graphs.labels, [1, 0])
    np.testing.assert_array_equal(graphs.node_starts, [0, 3, 7])
    np.testing.assert_array_equal(graphs.edge_starts, [0, 4, 10])
    np.testing.assert_array_equal(
        graphs.senders, [1, 0, 2, 1, 1, 2, 0, 2, 0, 1]
    )
    np.testing.assert_array_equal(
        graphs.receivers, [0, 1, 1, 2, 0, 0, 1, 1, 2, 2]
    )
    np.testing.assert_array_equal(
        graphs.nodes, np.eye(3)[[0, 2, 0, 0, 0, 1, 2]]
    )

  def test_round_trip_of_many(self):
    expected = tu.random_graphs(30)
    tu.write_graphs(self.folder, expected)
    self.prepare(tu.zip_folder(self.folder, self.root / 'toy.zip'))
    graphs = self.load()
    for name in ('nodes', 'node_starts', 'senders', 'receivers', 'labels'):
      np.testing.assert_array_equal(
          getattr(graphs, name), getattr(expected, name), name
      )

  def test_degrees_where_nodes_have_no_label(self):
    tu.write(self.folder, node_labels=None)
    self.prepare()
    np.testing.assert_array_equal(
        self.load().nodes, np.eye(3)[[1, 2, 1, 2, 2, 2, 0]]
    )

  def test_large_degrees_are_scaled(self):
    none, degrees = np.zeros(0, int), np.array([1000] + [1] * 1000 + [0])
    made = graph_data.NodeFeatures.of(none, degrees)
    features = made.apply(none, degrees)
    degrees = np.array([1000.0] + [1.0] * 1000 + [0.0])
    deviation = np.sqrt(np.sum((degrees - degrees.mean()) ** 2) / 1001)
    expected = (degrees - degrees.mean()) / deviation
    np.testing.assert_allclose(features[:, 0], expected, rtol=1e-6)
    smaller = graph_data.NodeFeatures.of(none, np.array([999, 1, 0]))
    self.assertEqual(smaller.width, 1000)

  def test_labels_of_nodes_in_the_millions_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'number them through'):
      graph_data.NodeFeatures.of(np.array([0, 10**6]), np.zeros(2, int))

  def test_what_is_not_there(self):
    with self.assertRaisesRegex(
        FileNotFoundError, 'prepare --dataset=tu_graphs/MUTAG --data_dir='
    ):
      self.load('MUTAG')

  def test_damaged_records(self):
    tu.write(self.folder)
    (path,) = self.prepare().glob('*array_record*')
    whole = path.read_bytes()
    for part in (b'', whole[:1000], whole[: len(whole) // 2]):
      path.write_bytes(part)
      with self.assertRaisesRegex(OSError, f'{path} is damaged .*once more'):
        self.load()
    path.unlink()
    with self.assertRaisesRegex(OSError, 'is damaged .*No such file'):
      self.load()

  def test_images_are_no_graphs(self):
    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    self.folder.mkdir()
    np.save(self.folder / 'train_images.npy', pixels)
    prepare.prepare('dots', data_dir=self.data_dir, arrays=str(self.folder))
    with self.assertRaisesRegex(ValueError, 'has no graphs, only'):
      self.load('dots')


class CollectTest(_Test):

  def test_are_those_of_files(self):
    tu.write(self.folder)
    self.prepare()
    given = [
        {'num_nodes': 3, 'edges': [(0, 1), (2, 1)], 'nodes': [0, 2, 0],
         'label': 1},
        (4, np.array([(0, 1), (1, 0), (0, 2), (1, 2), (3, 3)]),
         np.array([0, 0, 1, 2]), 0),
    ]  # fmt: skip
    expected = self.load()
    for data in (given, iter(given), expected):
      graphs = graph_data.collect(data)
      for name in (
          'nodes', 'senders', 'receivers', 'labels', 'node_starts',
          'edge_starts',
      ):  # fmt: skip
        np.testing.assert_array_equal(
            getattr(graphs, name), getattr(expected, name), name
        )

  def test_features_and_degrees(self):
    graphs = graph_data.collect([(2, [(0, 1)], None, 0), (1, [], None, 1)])
    np.testing.assert_array_equal(graphs.nodes, [[0, 1], [0, 1], [1, 0]])
    self.assertEqual(graphs.features.kind, 'degrees')
    graphs = graph_data.collect([(2, [(0, 1)], [[0.5], [1.5]], 0)])
    np.testing.assert_array_equal(graphs.nodes, [[0.5], [1.5]])

  @parameterized.parameters(
      (7, TypeError, 'data must be Graphs or an iterable of graphs, got int'),
      ([], ValueError, 'data has no graph'),
      ([7], TypeError, r'data\[0\] must be a dict with num_nodes, .*got int'),
      ([{'num_nodes': 2}], ValueError, r'data\[0\] must have num_nodes, edges'),
      ([(0, [], None, 0)], ValueError, 'num_nodes of .* int >= 1, got 0'),
      ([(2, [(0, 2)], None, 0)], ValueError, r'edges of .* \[0, 2\)'),
      ([(2, [(0, 1)], [0], 0)], ValueError, r'nodes of .*\[2, F\].*\[1\]'),
      ([(2, [(0, 1)], [0, -1], 0)], ValueError, 'must be >= 0'),
      ([(2, [(0, 1)], None, 0.5)], ValueError, 'label of .* got 0.5'),
      ([(1, [], [0], 0), (1, [], None, 0)], ValueError, 'in all graphs'),
  )
  def test_unsuitable_data(self, data, error, message):
    with self.assertRaisesRegex(error, message):
      graph_data.collect(data)

  def test_other_graphs_are_another_run(self):
    config = hcl_jax.read_config('graphs:MUTAG', **{
        'evaluate.folds': 2, 'evaluate.inner_folds': 2
    })  # fmt: skip
    graphs = [(2 + i % 3, [(0, 1)], None, i % 2) for i in range(24)]
    made = [
        hcl_jax.make_experiment(config, data=x).inputs['data_digest']
        for x in (graphs, graphs, graphs[::-1])
    ]
    self.assertEqual(made[0], made[1])
    self.assertNotEqual(made[0], made[2])


class CommandTest(_Test):

  def setUp(self):
    super().setUp()
    flags.FLAGS.mark_as_parsed()

  def test_says_how_to_use_it(self):
    tu.write(self.folder)
    words = prepare.describe('tu_graphs/TOY', self.prepare())
    self.assertIn('(2 graphs)', words)
    call = words.split('): ')[-1]
    self.assertLen(eval(call, {'hcl_jax': hcl_jax}), 2)  # noqa: S307

  @parameterized.parameters(
      ({'dataset': 'NCI1', 'graphs': 'x'}, 'no file or folder x'),
      ({'dataset': 'tu_graphs/NCI1'}, 'NCI1 is not one of MUTAG.*--graphs'),
      ({'dataset': 'tu_graphs'}, 'needs the name of a collection'),
      ({'dataset': 'MUTAG', 'images': 'x'}, 'takes its files by --graphs'),
      ({'dataset': 'MUTAG', 'graphs': 'x', 'images': 'x'}, 'give one of'),
  )
  def test_mistakes(self, values, message):
    with (
        flagsaver.flagsaver(data_dir=str(self.data_dir), **values),
        self.assertRaisesRegex(command.UsageError, message),
    ):
      prepare.main([])
    self.assertFalse(self.data_dir.exists())

  def test_without_a_network(self):
    with (
        flagsaver.flagsaver(dataset='MUTAG', data_dir=str(self.data_dir)),
        mock.patch.object(socket, 'create_connection', side_effect=OSError),
        self.assertRaisesRegex(command.UsageError, 'must be down.*graphs'),
    ):
      prepare.main([])
    with self.assertRaisesRegex(FileNotFoundError, 'is not prepared'):
      self.load('MUTAG')

  def test_a_damaged_download_is_not_kept(self):
    tu.write(self.folder, 'MUTAG')
    download = tu.zip_folder(self.folder, self.root / 'download')
    builder = graph_prepare.TuGraphs(collection='MUTAG', data_dir=self.data_dir)
    manager = mock.Mock(**{'download.return_value': str(download)})
    with self.assertRaisesRegex(ValueError, 'is not MUTAG as published'):
      builder._split_generators(manager)
    self.assertFalse(download.exists())
    manager.download.assert_called_once_with(tu_collections.URL.format('MUTAG'))


class BatchTest(parameterized.TestCase):

  def test_packs_what_loops_pack(self):
    graphs = tu.random_graphs()
    rows = [7, 3, 12]
    padding = graphs_lib.Padding(40, 120, 42, 5)
    batch = graphs.batch(rows, padding)
    nodes, edges, ids = [], [], []
    for number, row in enumerate(rows):
      first = len(nodes)
      for v in range(graphs.node_starts[row], graphs.node_starts[row + 1]):
        nodes.append(graphs.nodes[v])
        ids.append(number)
      for e in range(graphs.edge_starts[row], graphs.edge_starts[row + 1]):
        edges.append((first + graphs.senders[e], first + graphs.receivers[e]))
    n, e = len(nodes), len(edges)
    np.testing.assert_array_equal(batch.nodes[:n], nodes)
    np.testing.assert_array_equal(batch.nodes[n:], 0)
    np.testing.assert_array_equal(batch.graph_ids, ids + [5] * (42 - n))
    members = [*range(n)] + [40] * (42 - n)
    np.testing.assert_array_equal(batch.members, members)
    np.testing.assert_array_equal(batch.member_counts, np.arange(42) < n)
    edges += [(40, 40)] * (120 - e)
    np.testing.assert_array_equal(
        np.stack([batch.senders, batch.receivers], 1), edges
    )
    np.testing.assert_array_equal(batch.node_counts, np.arange(40) < n)
    np.testing.assert_array_equal(batch.graph_mask, [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(batch.label, [1, 1, 0, -1, -1])
    np.testing.assert_array_equal(batch.index, [7, 3, 12, -1, -1])
    self.assertTrue(np.all(np.diff(batch.receivers) >= 0))
    self.assertEqual(batch.nodes.dtype, np.float32)
    for field in set(batch._fields) - {'nodes', 'graph_mask'}:
      self.assertEqual(getattr(batch, field).dtype, np.int32, field)

  def test_equal_nodes_share_a_row(self):
    # Two stars, whose leaves are alike in a round and not in two, and an edge.
    graphs = graph_data.Graphs(
        nodes=np.ones((9, 1)),
        num_nodes=np.array([4, 3, 2]),
        senders=[1, 2, 3, 0, 0, 0, 1, 2, 0, 0, 1, 0],
        receivers=[0, 0, 0, 1, 2, 3, 0, 0, 1, 2, 0, 1],
        num_edges=np.array([6, 4, 2]),
        labels=[0, 1, 0],
    )
    for rounds, colors in (
        (0, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (1, [0, 1, 1, 1, 2, 1, 1, 1, 1]),
        (2, [0, 1, 1, 1, 2, 3, 3, 4, 4]),
    ):
      found = graphs.colored(rounds).colors
      same = found[:, None] == found[None, :]
      colors = np.array(colors)
      np.testing.assert_array_equal(
          same, colors[:, None] == colors[None, :], f'{rounds} rounds'
      )
    batch = graphs.colored(1).batch(
        [1, 2, 0], graphs_lib.Padding(3, 6, 5, 3)
    )
    # Rows: the centre of the small star, a leaf, the centre of the large one.
    np.testing.assert_array_equal(batch.node_counts, [1, 7, 1])
    np.testing.assert_array_equal(batch.members, [0, 1, 1, 1, 2])
    np.testing.assert_array_equal(batch.graph_ids, [0, 0, 1, 2, 2])
    np.testing.assert_array_equal(batch.member_counts, [1, 2, 2, 3, 1])
    np.testing.assert_array_equal(batch.receivers, [0, 0, 1, 2, 2, 2])
    np.testing.assert_array_equal(batch.senders, [1, 1, 0, 1, 1, 1])

  def test_shapes_are_few_and_not_much_too_large(self):
    counts = np.arange(16, 100_000)
    rounded = np.array([graph_data._round_up(count, 2, 4) for count in counts])
    self.assertTrue(np.all(rounded >= counts))
    self.assertLess(np.max(rounded / counts), 1.125)
    self.assertLess(len(np.unique(rounded)), 110)

  def test_padding_must_be_large_enough(self):
    graphs = tu.random_graphs()
    enough = graphs.padding([1, 2])
    for field in enough._fields:
      with self.assertRaisesRegex(ValueError, 'padding must hold'):
        graphs.batch([1, 2], enough._replace(**{field: 1}))

  @parameterized.parameters([[]], [[20]], [[-1]], [[0.5]], [[[1]]])
  def test_rows_must_be_there(self, rows):
    with self.assertRaisesRegex(ValueError, r'rows must be .* \[0, 20\)'):
      tu.random_graphs().batch(rows)

  @parameterized.parameters(
      ({'nodes': np.zeros((4, 2))}, r'nodes must have shape \[5, features\]'),
      ({'num_nodes': [5, 0]}, 'graph 1 has 0'),
      ({'labels': [1]}, 'an entry for each graph, got 2, 2 and 1'),
      ({'senders': [1, 2, 0, 0]}, 'senders must be 4 nodes'),
      ({'receivers': [1, 0, 0, 1]}, 'receivers must be in ascending order'),
  )
  def test_graphs_that_do_not_fit_together(self, arrays, message):
    good = {
        'nodes': np.zeros((5, 2)), 'num_nodes': [2, 3], 'num_edges': [2, 2],
        'senders': [1, 0, 2, 0], 'receivers': [0, 1, 0, 2], 'labels': [0, 1],
    }  # fmt: skip
    graph_data.Graphs(**good)
    with self.assertRaisesRegex(ValueError, message):
      graph_data.Graphs(**good | arrays)


class GraphBatchesTest(parameterized.TestCase):

  def test_an_epoch_has_every_graph_once(self):
    graphs = tu.random_graphs(20)
    batches = graph_data.GraphBatches(graphs, seed=3, batch_size=6)
    index = [batch.index[batch.graph_mask] for batch in batches]
    self.assertEqual([len(rows) for rows in index], [6, 6, 6, 2])
    np.testing.assert_array_equal(np.sort(np.concatenate(index)), np.arange(20))
    shapes = [batch.nodes.shape + batch.senders.shape for batch in batches]
    self.assertLen(set(shapes[:3]), 1)

  def test_orders_share_common_paddings(self):
    graphs = tu.random_graphs(20)
    seeds = range(6)
    paddings = graph_data.common_paddings(graphs, seeds=seeds, batch_size=6)
    self.assertEqual(set(paddings), {6, 2})
    alone = set()
    for seed in seeds:
      knobs = {'seed': seed, 'batch_size': 6}
      common = graph_data.GraphBatches(graphs, paddings=paddings, **knobs)
      own = graph_data.GraphBatches(graphs, **knobs)
      alone.add((own[0].nodes.shape, own[0].senders.shape, own[3].nodes.shape))
      for batch, same in zip(common, own, strict=True):
        size = 2 if same is own[3] else 6
        self.assertIn(len(batch.nodes), [x.nodes for x in paddings[size]])
        self.assertIn(len(batch.senders), [x.edges for x in paddings[size]])
        np.testing.assert_array_equal(batch.index, same.index)
        self.assertEqual(batch.node_counts.sum(), same.node_counts.sum())
    shapes = [shape for of_size in paddings.values() for shape in of_size]
    self.assertLessEqual(len(alone), len(shapes))  # alone or together
    rounded = {
      graphs.padding(rows)
      for seed in seeds
      for rows in graph_data.GraphBatches(graphs, seed=seed, batch_size=6).rows
    }
    self.assertGreater(len(rounded), 2)  # or there is nothing to share

  def test_batches_of_very_different_sizes_have_three_shapes(self):
    sizes = np.repeat([100, 1000, 4000], 40)
    graphs = tu.paths(sizes)
    knobs = {'batch_size': 4}
    paddings = graph_data.common_paddings(graphs, seeds=[11], **knobs)
    self.assertEqual([len(shapes) for shapes in paddings.values()], [3])
    np.testing.assert_array_less(paddings[4][0][:3], paddings[4][1][:3])
    np.testing.assert_array_less(paddings[4][1][:3], paddings[4][2][:3])
    batches = graph_data.GraphBatches(graphs, seed=11, **knobs)
    lengths = [len(batch.nodes) for batch in batches]
    self.assertLen(set(lengths), 3)
    for rows, length in zip(batches.rows, lengths, strict=True):
      # A path of n nodes has 2 n - 2 edges, in both directions.
      nodes, edges = sizes[rows].sum(), np.sum(2 * sizes[rows] - 2)
      fit = [x for x in paddings[4] if x.nodes >= nodes and x.edges >= edges]
      self.assertEqual(length, fit[0].nodes)

  @parameterized.named_parameters(
      ('nearly_one_size', 950, 1050), ('few_nodes', 2, 100)
  )
  def test_where_little_is_spared_is_one_shape(self, least, most):
    sizes = np.random.default_rng(0).integers(least, most, size=50)
    paddings = graph_data.common_paddings(
      tu.paths(sizes), seeds=[0], batch_size=8
    )
    self.assertEqual([len(x) for x in paddings.values()], [1, 1])

  def test_the_seed_decides_the_order(self):
    graphs = tu.random_graphs(20)
    order = lambda seed: np.concatenate(  # noqa: E731
        graph_data.GraphBatches(graphs, seed=seed, batch_size=6).rows
    )
    np.testing.assert_array_equal(order(1), order(1))
    self.assertFalse(np.array_equal(order(1), order(2)))

  def test_fewer_graphs_than_a_batch(self):
    graphs = tu.random_graphs(5)
    batches = graph_data.GraphBatches(graphs, seed=0, batch_size=128)
    self.assertLen(batches, 1)
    self.assertEqual(batches[0].graph_mask.sum(), 5)

  def test_batches_of_nothing(self):
    with self.assertRaisesRegex(ValueError, 'batch_size must be at least 1'):
      graph_data.GraphBatches(tu.random_graphs(5), seed=0, batch_size=0)


def _histories(nodes, senders, receivers, rounds):
  """What a node knows of itself and its neighbors after some rounds."""
  known = [tuple(row) for row in nodes.tolist()]
  for _ in range(rounds):
    neighbors = [[] for _ in known]
    for u, v in zip(senders, receivers, strict=True):
      neighbors[v].append(known[u])
    known = [
        (own, tuple(sorted(others)))
        for own, others in zip(known, neighbors, strict=True)
    ]
  return known


class RefinementTest(parameterized.TestCase):

  @parameterized.product(seed=(0, 1, 2, 3), rounds=(0, 1, 3))
  def test_colors_are_equal_where_histories_are(self, seed, rounds):
    rng = np.random.default_rng(seed)
    # Few edges, so that there are lone nodes, many equal ones and all degrees.
    nodes = rng.choice([0.0, 1.0, -2.5], (60, 2), p=[0.8, 0.1, 0.1])
    edges = np.unique(rng.integers(0, 60, (45, 2)), axis=0)
    senders, receivers = np.concatenate([edges, edges[:, ::-1]]).T
    colors = graph_data.colors_of_features(nodes)
    for _ in range(rounds):
      colors = graph_data.refine(colors, senders, receivers)
    known = _histories(nodes, senders, receivers, rounds)
    numbers = {history: number for number, history in enumerate(known)}
    expected = np.array([numbers[history] for history in known])
    np.testing.assert_array_equal(
        colors[:, None] == colors[None, :],
        expected[:, None] == expected[None, :],
    )
    self.assertBetween(len(set(known)), 2, 59)
    self.assertEqual(colors.max(), len(set(known)) - 1)

  def test_nothing_to_tell_nodes_apart_by(self):
    colors = graph_data.colors_of_features(np.zeros((3, 2)))
    np.testing.assert_array_equal(colors, 0)
    none = np.zeros(0, np.int64)
    np.testing.assert_array_equal(graph_data.refine(colors, none, none), 0)
