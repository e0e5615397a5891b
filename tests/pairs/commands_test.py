# SPDX-License-Identifier: Apache-2.0
"""Commands on pairs as a user types them, in one process and in two."""

import json
import socket

from absl.testing import absltest
import numpy as np

from hcl_jax.runs import metrics as metrics_lib
from tests.support import commands
from tests.support import toy_pairs

_TINY = (
    '--config=pairs:hard', '--config.data.name=toy',
    '--config.data.batch_size=32', '--config.model.dim=8',
    '--config.model.width=16', '--config.model.token_dim=8',
    '--config.model.buckets=512', '--config.model.length=24',
    '--config.train.epochs=2', '--config.train.log_every_steps=1',
    '--config.evaluate.batch_size=64',
)  # fmt: skip
_MINED = (
    '--config.mining.every_epochs=0.5', '--config.mining.depth=4',
    '--config.data.num_negatives=2',
)  # fmt: skip


class CommandsTest(commands.CommandsTest):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    columns = toy_pairs.columns()
    rows = zip(*columns.values(), strict=True)
    lines = ['\t'.join(columns), *('\t'.join(row) for row in rows)]
    (cls.root / 'toy.tsv').write_text('\n'.join(lines), encoding='utf-8')
    done = commands.run(
        'prepare', '--dataset=toy', '--pairs=toy.tsv', '--group_column=group',
        folder=cls.root, TFDS_DATA_DIR=str(cls.root / 'data'),
    )  # fmt: skip
    assert done.status == 0, done.err
    cls.prepared = done

  def _losses(self, name):
    records = metrics_lib.read_metrics(self.root / name)
    return [x['loss'] for x in records if 'loss' in x]

  def test_prepare(self):
    self.assertIn('pairs): hcl_jax.pairs.load_pairs', self.prepared.out)
    self.assertIn('hcl_jax train --config=pairs:hard', self.prepared.out)
    bad = self.root / 'bad.tsv'
    for text, message in (
        ('query\tdocument\n', 'has no pairs'),
        ('query\tdocument\na\t\n', 'line 2: the document must be a text'),
        ('question\tanswer\na\tb\n', "no column 'query'"),
        ('query\tdocument\na\tb\n', 'all 1 rows share'),
    ):
      bad.write_text(text)
      done = self.run_here('prepare', '--dataset=bad', f'--pairs={bad}')
      self.check_refused(done, message)
    self.assertEmpty(list((self.root / 'data').glob('*/bad/*')))

  def test_train_evaluate_embed_and_look(self):
    workdir = f'--workdir={self.root / "run"}'
    done = self.run_here('train', *_TINY, workdir)
    self.assertEqual(done.status, 0, done.err)
    self.assertRegex(done.out, r'validation/R@1 +validation/R@5')
    done = self.run_here(
        'evaluate', workdir, '--protocol=test', '--measures=MRR,nDCG@10'
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertRegex(done.out, r'test/R@1 +test/MRR +test/nDCG@10\n')
    query = '--query=abcdefg000'
    done = self.run_here('nearest', workdir, query, '--k=3')
    self.assertEqual(done.status, 0, done.err)
    lines = done.out.splitlines()
    self.assertEqual(lines[0], 'abcdefg000')
    self.assertLen(lines, 4)
    index = self.root / 'index.npz'
    done = self.run_here('embed', workdir, f'--output={index}')
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('embeddings of 300 documents, 8 numbers each', done.out)
    done = self.run_here('nearest', workdir, query, f'--index={index}', '--k=3')
    self.assertEqual(done.out.splitlines(), lines)
    done = self.run_here(
        'nearest', workdir, f'--index={self.root / "toy.tsv"}', query
    )
    self.check_refused(done, 'no .npz file')
    done = self.run_here('analyze', workdir)
    self.assertEqual(done.status, 0, done.err)
    page = (self.root / 'run' / 'analysis' / 'report.html').read_text()
    self.assertIn('Queries of the validation part', page)

  def test_compare(self):
    workdir = self.root / 'both'
    done = self.run_here(
        'train', *_TINY, f'--workdir={workdir}',
        "--config.compare=('standard','hard')", '--config.compare_jobs=2',
        "--config.evaluate.protocols=('test',)",
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    self.assertRegex(done.out, r'(?m)^  hard - standard: R@1 [+-]\d+\.\d ± ')
    scores = json.loads((workdir / 'scores.json').read_text())
    self.assertContainsSubset(('tf-idf', 'untrained', 'standard'), scores)
    done = self.run_here('nearest', f'--workdir={workdir}', '--query=a')
    self.check_refused(done, 'holds the runs standard, hard; give the folder')

  def test_two_processes_train_as_one(self):
    with socket.socket() as probe:
      probe.bind(('127.0.0.1', 0))
      port = probe.getsockname()[1]
    started = [
        commands.start(
            'train', *_TINY, *_MINED, f'--workdir={self.root / "two"}',
            f'--coordinator=127.0.0.1:{port}', '--num_processes=2',
            f'--process_id={i}', folder=self.root,
            TFDS_DATA_DIR=str(self.root / 'data'),
        )
        for i in range(2)
    ]  # fmt: skip
    for process in started:
      self.addCleanup(process.kill)
    for process in started:
      _, err = process.communicate(timeout=300)
      self.assertEqual(process.wait(), 0, err)
    done = self.run_here(
        'train', *_TINY, *_MINED, f'--workdir={self.root / "one"}'
    )
    self.assertEqual(done.status, 0, done.err)
    one, two = self._losses('one'), self._losses('two')
    self.assertLen(one, 16)
    # Rounding differs, and with it, later, what is mined.
    np.testing.assert_allclose(two[:8], one[:8], rtol=1e-3)
    np.testing.assert_allclose(two, one, rtol=0.1)


if __name__ == '__main__':
  absltest.main()
