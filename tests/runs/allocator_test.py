# SPDX-License-Identifier: Apache-2.0
"""Memory that is freed stays with the process, where glibc is."""

import ctypes
import sys
from unittest import mock

from absl.testing import absltest

from hcl_jax.runs import allocator


class AllocatorTest(absltest.TestCase):

  def test_asks_glibc(self):
    library = mock.Mock()
    with mock.patch.object(ctypes, 'CDLL', lambda _: library):
      with mock.patch.object(sys, 'platform', 'linux'):
        allocator.keep_freed_memory()
    self.assertEqual(
        library.mallopt.call_args_list,
        [mock.call(-3, 2**30), mock.call(-1, 2**31 - 1)],
    )

  def test_does_nothing_elsewhere(self):
    with mock.patch.object(ctypes, 'CDLL', lambda _: object()):
      allocator.keep_freed_memory()
    with mock.patch.object(sys, 'platform', 'darwin'):
      with mock.patch.object(ctypes, 'CDLL', side_effect=OSError):
        allocator.keep_freed_memory()


if __name__ == '__main__':
  absltest.main()
