# SPDX-License-Identifier: Apache-2.0
"""Files of arrays: whole or not at all, and what is wrong with bad ones."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hcl_jax.runs import arrays


class ArraysTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / 'file.npz'

  def test_round_trip(self):
    given = {'a': np.arange(5), 'words': np.array(['x', 'ünï'])}
    arrays.write(self.path, given)
    found = arrays.read(self.path)
    self.assertEqual(set(found), set(given))
    for name, x in given.items():
      np.testing.assert_array_equal(found[name], x)

  def test_nothing_is_half_written(self):
    arrays.write(self.path, {'a': np.arange(3)})
    with mock.patch.object(np, 'savez', side_effect=OSError('disk full')):
      with self.assertRaisesRegex(OSError, 'disk full'):
        arrays.write(self.path, {'a': np.arange(4)})
    self.assertLen(arrays.read(self.path)['a'], 3)
    self.assertEqual([x.name for x in self.path.parent.iterdir()], ['file.npz'])

  @parameterized.parameters(b'', b'nothing', b'PK\x03\x04 and more')
  def test_damaged_files(self, content):
    self.path.write_bytes(content)
    with self.assertRaisesRegex(ValueError, 'file.npz is damaged, or no .npz'):
      arrays.read(self.path)

  def test_cut_off(self):
    arrays.write(self.path, {'a': np.arange(1000)})
    self.path.write_bytes(self.path.read_bytes()[:500])
    with self.assertRaisesRegex(ValueError, 'is damaged'):
      arrays.read(self.path)

  def test_an_array_alone(self):
    with self.path.open('wb') as file:
      np.save(file, np.arange(3))
    with self.assertRaisesRegex(ValueError, 'no .npz file of arrays'):
      arrays.read(self.path)

  def test_no_file(self):
    with self.assertRaises(FileNotFoundError):
      arrays.read(self.path)


if __name__ == '__main__':
  absltest.main()
