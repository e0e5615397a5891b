# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them: train, stop, resume, evaluate."""

import json
import pathlib
import signal
import tempfile
import time

from absl.testing import parameterized
import numpy as np

from hcl_jax.runs import metrics
from tests.support import commands
from tests.support import corpus
from tests.support import tu


class CommandTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    directory = tempfile.TemporaryDirectory()
    self.addCleanup(directory.cleanup)
    self.directory = pathlib.Path(directory.name)
    self.workdir = self.directory / 'run'

  def _start(self, module, *arguments, stdin=None):
    return commands.start(
        module, *arguments, stdin=stdin,
        TFDS_DATA_DIR=str(self.directory / 'data'),
    )  # fmt: skip

  def _run(self, module, *arguments):
    process = self._start(module, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err

  @parameterized.named_parameters(
      ('misspelt_key', ['--config.loss.bta=1'],
       'no such field.*mean --config.loss.beta'),
      ('wrong_type', ['--config.loss.beta=much'],
       "config.loss.beta must be a number, got 'much'"),
      ('impossible', ['--config.loss.beta=-1'], 'loss.beta must be >= 0'),
      ('no_data', ['--config.data.name=cifar10'],
       'hcl_jax.prepare --dataset=cifar10'),
      ('a_sweep', ['--config=configs/graphs.py:all'],
       r'config.sweep has .*data, loss, seed.* python -m hcl_jax.sweep'),
      ('lone_flag', ['--coordinator=host:1'],
       'num_processes and process_id are missing'),
      ('two_ways', ['--distributed', '--process_id=0'], 'give it or them'),
      ('no_cluster', ['--distributed'], 'no cluster that JAX knows'),
      ('no_file', ['--config=configs/nothing.py'], 'configs/nothing.py'),
  )  # fmt: skip
  def test_errors_of_use_are_one_line_and_write_nothing(self, flags, message):
    status, out, err = self._run(
        'train', '--config=configs/cifar10.py', f'--workdir={self.workdir}',
        *flags,
    )  # fmt: skip
    self.assertEqual(status, 2, err)
    self.assertRegex(err, message)
    self.assertLen(err.strip().splitlines(), 1)
    self.assertEmpty(out)
    self.assertFalse(self.workdir.exists())

  def test_trains_stops_resumes_and_evaluates(self):
    arguments = [
        '--config=configs/digits.py:hard',
        f'--workdir={self.workdir}',
        '--config.data.name=digit_scenes/tiny',
        '--config.data.batch_size=32',
        '--config.train.epochs=3',
        '--config.train.log_every_steps=1',
        '--config.evaluate.linear_epochs=2',
    ]
    process = self._start('train', *arguments)
    while not any('loss' in r for r in metrics.read_metrics(self.workdir)):
      self.assertIsNone(process.poll(), 'The run ended before its first step.')
      time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    self.assertIn('The same command resumes.', err)
    self.assertEmpty(
        [r for r in metrics.read_metrics(self.workdir) if r['step'] == 48]
    )

    status, out, err = self._run('train', *arguments)
    self.assertEqual(status, 0, err)
    self.assertIn('resumes after step', err)
    self.assertRegex(out, r'knn/top1 +knn/top5 +linear/top1 +linear/top5')
    steps = [r['step'] for r in metrics.read_metrics(self.workdir)
             if 'loss' in r]  # fmt: skip
    self.assertEqual(steps, list(range(1, 49)))

    status, out, err = self._run(
        'evaluate', f'--workdir={self.workdir}', '--protocol=knn'
    )
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'step 48 +\d+\.\d\d ± \d+\.\d\d %')
    evaluation = json.loads((self.workdir / 'evaluation.json').read_text())
    trained = json.loads((self.workdir / 'scores.json').read_text())
    self.assertEqual(
        evaluation[str(self.workdir)]['48']['knn/top1'],
        trained['last step']['knn/top1'],
    )

    status, _, err = self._run(
        'train', *arguments, '--config.loss.temperature=0.4'
    )
    self.assertEqual(status, 2)
    self.assertIn('loss.temperature was 0.2 and is 0.4', err)

  def test_graphs(self):
    tu.write_graphs(self.directory / 'TOY', tu.random_graphs(40))
    status, out, err = self._run(
        'prepare', '--dataset=tu_graphs/TOY',
        f'--graphs={self.directory / "TOY"}',
    )  # fmt: skip
    self.assertEqual(status, 0, err)
    self.assertIn("hcl_jax.graphs.load_graphs('tu_graphs/TOY')", out)
    arguments = [
        '--config=configs/graphs.py:tu_graphs/TOY',
        f'--workdir={self.workdir}',
        '--config.loss.beta=2',
        '--config.train.epochs=2',
        '--config.evaluate.folds=4',
    ]
    status, out, err = self._run('train', *arguments)
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'svm/accuracy +svm/deviation\n')
    scores = json.loads((self.workdir / 'scores.json').read_text())
    self.assertLen(scores['last step']['svm/folds'], 4)

    status, out, err = self._run(
        'evaluate', f'--workdir={self.workdir}', '--protocol=svm,logistic',
        '--seeds=0',
    )  # fmt: skip
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'step 2 +\d+\.\d\d ± \d+\.\d\d %')
    evaluation = json.loads((self.workdir / 'evaluation.json').read_text())
    self.assertEqual(
        evaluation[str(self.workdir)]['2']['svm/folds'],
        scores['last step']['svm/folds'],
    )
    self.assertIn('logistic/accuracy', evaluation[str(self.workdir)]['2'])

    status, _, err = self._run(
        'evaluate', f'--workdir={self.workdir}', '--protocol=knn'
    )
    self.assertEqual(status, 2)
    self.assertIn("a tuple of 'svm', 'logistic', got ('knn',)", err)

  def test_sentences(self):
    chapters = [
        '\n'.join(toy.text(row) for row in np.flatnonzero(toy.segments == part))
        for toy in (corpus.sentences(seed) for seed in (0, 1))
        for part in range(12)
    ]
    text = self.directory / 'toy.txt'
    text.write_text('\n\n'.join(chapters).replace('<unk>', 'strange'))
    corpus.write_tasks(self.directory / 'tasks', rows=20)
    status, _, err = self._run(
        'prepare', '--dataset=sentences/toy', f'--text={text}',
        '--validation_documents=12', '--min_count=1',
    )  # fmt: skip
    self.assertEqual(status, 0, err)
    status, out, err = self._run(
        'train', '--config=configs/sentences.py:small,hard',
        f'--workdir={self.workdir}', '--config.data.name=toy',
        '--config.data.batch_size=24', '--config.data.max_length=10',
        '--config.model.encoder=bag', '--config.model.word_dim=6',
        '--config.model.dim=8', '--profile_steps=1:2',
    )  # fmt: skip
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r'retrieval/accuracy +retrieval/loss\n')
    traces = list((self.workdir / 'profile').rglob('*.xplane.pb'))
    self.assertLen(traces, 1)

    with self.subTest('evaluate'):
      self._check_evaluating_tasks()
    with self.subTest('nearest'):
      self._check_nearest(chapters[0].splitlines()[0])

  def _check_evaluating_tasks(self):
    arguments = [
        f'--workdir={self.workdir}', '--protocol=sentences', '--tasks=TREC,MSRP'
    ]  # fmt: skip
    tasks = self.directory / 'tasks'
    status, out, err = self._run(
        'evaluate', *arguments, f'--tasks_dir={tasks}'
    )
    self.assertEqual(status, 0, err)
    self.assertRegex(out, r' TREC/accuracy +MRPC/accuracy +MRPC/f1\n')
    self.assertRegex(out, r'step 3 +\d+\.\d\d ± \d+\.\d\d %')
    self.assertIn('tasks: 20/20 folds', err)
    scores = json.loads((self.workdir / 'evaluation.json').read_text())
    scores = scores[str(self.workdir)]['3']
    self.assertIn(scores['TREC/choice']['c'], [2.0**k for k in range(9)])
    for flags, message in (
        ([], r'sentences needs --tasks_dir, the folder of the tasks'),
        ([f'--tasks_dir={tasks}', '--tasks=MR,SST'],
         r"evaluate.tasks must be one or more of 'MR'.* got \('MR', 'SST'\)"),
        ([f'--tasks_dir={self.workdir}'], r'must hold TREC/train_5500.label'),
        (['--protocol=retrieval'], r'--tasks needs --protocol=sentences'),
    ):  # fmt: skip
      status, out, err = self._run('evaluate', *arguments, *flags)
      self.assertEqual(status, 2, err)
      self.assertRegex(err, message)
      self.assertLen(err.strip().splitlines(), 1)

  def _check_nearest(self, sentence):
    status, out, err = self._run(
        'nearest', f'--workdir={self.workdir}', f'--sentence={sentence}',
        '--k=3',
    )  # fmt: skip
    self.assertEqual(status, 0, err)
    first, *found = out.splitlines()
    self.assertEqual(first, sentence)
    self.assertLen(found, 3)
    self.assertEqual(found[0], f' 1.0000  {sentence}')
    self.assertIn('embed: 72/72 sentences', err)

    other = self.directory / 'other.txt'
    other.write_text('w1 w2\n\nw40 w41 w42\n')
    questions = self.directory / 'questions.txt'
    questions.write_text('w41 w42\n\nw2\n')
    with questions.open() as file:
      process = self._start(
          'nearest', f'--workdir={self.workdir}', f'--text={other}', '--k=1',
          stdin=file,
      )  # fmt: skip
      out, err = process.communicate()
    self.assertEqual(process.returncode, 0, err)
    lines = out.splitlines()
    self.assertEqual(lines[::2], ['w41 w42', 'w2'])
    self.assertRegex(lines[1], r'^ \d\.\d{4}  w40 w41 w42$')
    self.assertRegex(lines[3], r'^ \d\.\d{4}  w1 w2$')

    other.write_text('\n')
    status, _, err = self._run(
        'nearest', f'--workdir={self.workdir}', f'--text={other}'
    )
    self.assertEqual(status, 2)
    self.assertIn('other.txt has no text', err)

  def test_evaluating_nothing(self):
    status, _, err = self._run('evaluate', f'--workdir={self.workdir}')
    self.assertEqual(status, 2)
    self.assertIn('there is no run in', err)
