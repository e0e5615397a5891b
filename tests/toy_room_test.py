# SPDX-License-Identifier: Apache-2.0
"""A room that lives under tests only goes through every command."""

import json
import re
import signal
import time

from absl.testing import parameterized
import numpy as np

import hcl_jax
from hcl_jax.runs import metrics as metrics_lib
from tests.support import commands

_CONFIG = commands.ROOT / 'tests' / 'support' / 'toy' / 'config.py'


class ToyRoomTest(commands.CommandsTest):

  def _train(self, name, *flags):
    return commands.start(
        'train', f'--config={_CONFIG}', f'--workdir={self.root / name}',
        '--config.train.log_every_steps=1', *flags, folder=self.root,
    )  # fmt: skip

  def _losses(self, name):
    records = metrics_lib.read_metrics(self.root / name)
    return {x['step']: x['loss'] for x in records if 'loss' in x}

  def test_train_kill_resume_evaluate_and_analyze(self):
    every_step = '--config.train.checkpoint_every_epochs=0.25'
    length = '--config.train.epochs=20'
    whole = self._train('whole', length)
    _, err = whole.communicate(timeout=300)
    self.assertEqual(whole.wait(), 0, err)
    self.assertLen(self._losses('whole'), 80)

    killed = self._train('killed', length, every_step)
    end = time.monotonic() + 300
    while not any(
        path.name.isdecimal() and int(path.name) >= 8
        for path in (self.root / 'killed').glob('checkpoints/*')
    ):
      self.assertLess(time.monotonic(), end)
      time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=300)
    self.assertEqual(killed.wait(), -signal.SIGKILL)
    resumed = self._train('killed', length)
    _, err = resumed.communicate(timeout=300)
    self.assertEqual(resumed.wait(), 0, err)
    self.assertIn('resumes after step', err)
    self.assertEqual(self._losses('killed'), self._losses('whole'))

    done = self.run_here('evaluate', f'--workdir={self.root / "whole"}')
    self.check_refused(done, "names code of its own, config.domain='tests")
    done = self.run_here(
        'evaluate', f'--workdir={self.root / "whole"}', '--allow_code'
    )
    self.assertEqual(done.status, 0, done.err)
    scores = json.loads((self.root / 'whole' / 'evaluation.json').read_text())
    (found,) = scores.values()
    self.assertGreater(found['80']['nearest/accuracy'], 0.5)
    self.assertGreater(found['errors']['80']['nearest/accuracy'], 0)

    done = self.run_here(
        'analyze', f'--workdir={self.root / "whole"}', '--allow_code'
    )
    self.assertEqual(done.status, 0, done.err)
    self.assertTrue((self.root / 'whole/analysis/report.html').is_file())

    self._check_embeddings(self.root / 'whole', 80)

  def _check_embeddings(self, workdir, step):
    with self.assertRaisesRegex(ValueError, 'names code of its own'):
      hcl_jax.load(workdir)
    encoder = hcl_jax.load(workdir, allow_code=True)
    self.assertEqual(encoder.step, step)
    points = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    embeddings = encoder(points)
    expected = np.tanh(points @ np.asarray(encoder.params['kernel']))
    np.testing.assert_allclose(embeddings, expected, rtol=1e-5)
    with self.assertRaisesRegex(ValueError, r'must be \[n, 2\], got \(3,\)'):
      encoder(points[:, 0])

    np.savetxt(self.root / 'points.txt', points)
    command = (
        'embed', f'--workdir={workdir}', '--input=points.txt',
        '--output=points.npz',
    )  # fmt: skip
    self.check_refused(self.run_here(*command), 'names code of its own')
    done = self.run_here(*command, '--allow_code')
    self.assertEqual(done.status, 0, done.err)
    with np.load(self.root / 'points.npz') as file:
      np.testing.assert_array_equal(file['embeddings'], embeddings)
      self.assertEqual(list(file['names']), ['line 1', 'line 2', 'line 3'])

  def test_sweep_and_analyze(self):
    workdir = self.root / 'sweep'
    done = self.run_here(
        'sweep', f'--config={_CONFIG}', f'--workdir={workdir}',
        '--config.train.epochs=1', '--sweep.loss.beta=0,1', '--sweep.seed=0:2',
    )  # fmt: skip
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('| loss.beta | runs | nearest/accuracy |', done.out)
    done = self.run_here('analyze', f'--workdir={workdir}')
    self.assertEqual(done.status, 0, done.err)
    self.assertTrue((workdir / 'analysis' / 'report.html').is_file())

  def test_prepare(self):
    room = '--domain=tests.support.toy'
    done = self.run_here('prepare', room, '--dataset=circle', '--num_points=7')
    self.assertEqual(done.status, 0, done.err)
    self.assertIn('circle/1.0.0 (7 points): see', done.out)
    (self.root / 'angles.txt').write_text('0 1 2')
    file = '--dataset=file', '--text=angles.txt'  # as sentences have it too
    for words in ('file/1.0.0 (3 points): see', 'is prepared already, from'):
      done = self.run_here('prepare', room, *file)
      self.assertEqual(done.status, 0, done.err)
      self.assertIn(words, done.out)
    done = self.run_here('prepare', room, '--dataset=other', '--graphs=x')
    self.check_refused(done, 'got other, which takes its files by --text')
    done = self.run_here('prepare', '--dataset=other', '--num_points=7')
    self.check_refused(done, "Unknown command line flag 'num_points'")

  def test_help_on_preparing(self):
    done = self.run_here('prepare', '--domain', 'tests.support.toy', '--help')
    for words in ('Prepares images: of the tfds', '--image_size: Height and',
                  'Points, on a circle', '--num_points: Points'):  # fmt: skip
      self.assertIn(words, done.out)

  def test_a_value_that_cannot_work(self):
    done = self.run_here(
        'train', f'--config={_CONFIG}', f'--workdir={self.root / "bad"}',
        '--config.model.dim=0',
    )  # fmt: skip
    self.check_refused(done, 'config.model.dim must be >= 1')


class TutorialTest(parameterized.TestCase):

  @parameterized.parameters('config', 'experiment', 'inspect', 'encode')
  def test_the_page_has_the_file(self, name):
    page = (commands.ROOT / 'docs' / 'own_domain.md').read_text()
    (section,) = [
        x for x in page.split('\n## ') if f'`{name}.py`' in x.split('\n')[0]
    ]
    blocks = re.findall(r'```python\n(.*?)```', section, flags=re.DOTALL)
    license_line, *lines = _CONFIG.with_stem(name).read_text().split('\n')
    self.assertIn('SPDX', license_line)
    self.assertEqual(
        list(filter(None, '\n'.join(blocks).split('\n'))),
        list(filter(None, lines)),
        f'docs/own_domain.md must show tests/support/toy/{name}.py as it is.',
    )
