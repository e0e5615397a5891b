# SPDX-License-Identifier: Apache-2.0
"""Counts what :func:`hcl_jax.simclr_loss` needs on many devices.

  python -m benchmarks scale --device_counts=1,2,4,8,16,32,64

Compiles value and gradient for simulated devices, gathered and as a ring, and
reads from the program what one device holds, computes and receives; then for
one device and batches that need not fit this machine. Nothing is run.
"""

from typing import Any
from typing import NamedTuple

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import program
import hcl_jax
from hcl_jax import command as command_lib
from hcl_jax.bench import options
from hcl_jax.bench import output
from hcl_jax.runs import reporting

_DEVICE_COUNTS = flags.DEFINE_list(
    'device_counts', '1,2,4,8,16,32,64', 'Numbers of simulated devices.'
)
_PAIRS = flags.DEFINE_integer(
    'pairs_per_device', 256, 'Pairs on each device.'
)
_BLOCK = flags.DEFINE_integer('ring_block', 256, 'Block size of the ring.')
_GLOBAL_SIZES = flags.DEFINE_list(
    'global_sizes', '4096,65536,1048576,4194304',
    'Pairs of a batch to compile for on one device.',
)  # fmt: skip
_SCALE_DIM = flags.DEFINE_integer('scale_dim', 128, 'Width of the embeddings.')

_AXIS = 'batch'
_TEMPERATURE, _BETA, _TAU_PLUS = 0.5, 1.0, 0.1
_NOTES = """\
B pairs in all, b of them on each of n devices, width d, float32; products of
full precision. Read from XLA's program for CPU devices, which other backends
may lay out otherwise. On a ring a device computes 32 b B d operations in
products (the similarities, once more in the derivative, and two products with
their slopes). Gathered in tiles, or alone, it computes half of that and half a
tile for each block on the diagonal: the matrix is symmetric. It receives
8 (B - b) d bytes, and as many for the gradient, when gathered (and sums of each
row in tiles), and 24 B d less 16 b d bytes in all on a ring, step by step
(labels or row numbers apart; two devices exchange their rows once and keep them
for the gradient). Memory is that of temporaries: in proportion to B when
gathered, to b on a ring.
Seconds are on paper, the operations divided by the vendors' peak for float32
products: TPU v5e 33 TFLOP/s (a sixth of 197 in bfloat16, 16 GB), H100 SXM 67
TFLOP/s (without tensor cores, 80 GB). They were not measured.\
"""


class Chip(NamedTuple):
  """Holds a vendor's figures.

  Attributes:
    name: of the chip.
    flops: peak of products of full float32 precision, in a second.
    memory: bytes.
  """

  name: str
  flops: float
  memory: float


_CHIPS = (Chip('v5e', 197e12 / 6, 16e9), Chip('H100', 67e12, 80e9))


def compile_loss(
    devices: int, pairs: int, dim: int, block_size: int | None
) -> jax.stages.Compiled:
  """Compiles value and gradient over devices, gathered or as a ring.

  Args:
    devices: how many.
    pairs: of each.
    dim: width of the embeddings.
    block_size: of the ring; None gathers.

  Returns:
    The program.
  """
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), (_AXIS,))
  split = jax.sharding.PartitionSpec(_AXIS)

  def mean(z1, z2):
    losses = hcl_jax.simclr_loss(
        z1,
        z2,
        temperature=_TEMPERATURE,
        beta=_BETA,
        tau_plus=_TAU_PLUS,
        axis_name=_AXIS,
        block_size=block_size,
    )
    return jax.lax.pmean(losses.mean(), _AXIS)

  mapped = jax.shard_map(
      jax.value_and_grad(mean, argnums=(0, 1)),
      mesh=mesh,
      in_specs=(split, split),
      out_specs=(jax.sharding.PartitionSpec(), split),
  )
  return _compile(mapped, devices * pairs, dim)


def compile_lone_loss(pairs: int, dim: int) -> jax.stages.Compiled:
  """Compiles value and gradient on one device, without an axis."""

  def mean(z1, z2):
    return hcl_jax.simclr_loss(
        z1, z2, temperature=_TEMPERATURE, beta=_BETA, tau_plus=_TAU_PLUS
    ).mean()

  return _compile(jax.value_and_grad(mean, argnums=(0, 1)), pairs, dim)


def _compile(function, pairs, dim):
  z = jax.ShapeDtypeStruct((pairs, dim), jnp.float32)
  return jax.jit(function).lower(z, z).compile()


def measure(compiled: jax.stages.Compiled, devices: int) -> dict[str, float]:
  """Reads what one device holds, computes and receives.

  Args:
    compiled: the program.
    devices: how many it is for.

  Returns:
    ``temporary`` and ``held`` bytes, ``flops``, and ``received`` bytes by the
    kind of collective.
  """
  memory = compiled.memory_analysis()
  work = program.count(compiled.as_text())
  temporary = memory.temp_size_in_bytes
  held = memory.argument_size_in_bytes + memory.output_size_in_bytes
  return {
      'temporary': float(temporary),
      'held': float(held + temporary),
      'flops': work.flops,
      'received': {
          kind: received(kind, size, devices)
          for kind, size in work.sent.items()
      },
  }


def received(kind: str, size: float, devices: int) -> float:
  """Returns the bytes that reach a device for a collective.

  The usual algorithms are assumed: rings for gathering and scattering.
  """
  others = devices - 1
  return {
      'all-gather': size * others / devices,
      'reduce-scatter': size * others,
      'all-reduce': 2 * size * others / devices,
      'collective-permute': size if others else 0.0,
      'all-to-all': size * others / devices,
  }[kind]


def device_rows(
    counts: list[int], pairs: int, dim: int, block_size: int
) -> list[dict[str, Any]]:
  """Returns a row for each number of devices and each form."""
  rows = []
  for devices in counts:
    for form, block in (('gathered', None), ('ring', block_size)):
      output.say(f'{devices} devices, {form}', detail=True)
      compiled = compile_loss(devices, pairs, dim, block)
      rows.append({
          'devices': devices,
          'form': form,
          'pairs': devices * pairs,
          **measure(compiled, devices),
      })
  return rows


def size_rows(sizes: list[int], dim: int) -> list[dict[str, Any]]:
  """Returns a row for each batch on one device."""
  rows = []
  for pairs in sizes:
    output.say(f'{pairs} pairs on one device', detail=True)
    found = measure(compile_lone_loss(pairs, dim), 1)
    rows.append({
        'pairs': pairs,
        **found,
        **{chip.name: _seconds(chip, found) for chip in _CHIPS},
    })
  return rows


def _seconds(chip, found):
  """Returns seconds on paper; None where it does not fit."""
  if found['held'] > chip.memory:
    return None
  return found['flops'] / chip.flops


def device_table(rows: list[dict[str, Any]]) -> str:
  lines = [
      [
          f'{row["devices"]} {row["form"]}',
          f'{row["pairs"]:,}',
          _mib(row['temporary']),
          f'{row["flops"] / 1e9:.2f}',
          _mib(sum(row['received'].values())),
          ', '.join(
              f'{kind} {_mib(x)}' for kind, x in row['received'].items() if x
          ) or '-',
      ]
      for row in rows
  ]  # fmt: skip
  return reporting.table(
      ['devices', 'B', 'MiB', 'GFLOP', 'received MiB', 'of which'], lines
  )


def size_table(rows: list[dict[str, Any]]) -> str:
  names = [chip.name for chip in _CHIPS]
  lines = [
      [
          f'{row["pairs"]:,}',
          _mib(row['temporary']),
          _mib(row['held']),
          f'{row["flops"] / 1e12:.3g}',
          *(reporting.number(row[name], 3) for name in names),
      ]
      for row in rows
  ]
  header = ['B', 'MiB', 'with in- and outputs', 'TFLOP']
  return reporting.table(
      [*header, *(f'{name} s (on paper)' for name in names)], lines
  )


def _mib(size):
  return f'{size / 2**20:.1f}'


def command() -> None:
  """Counts memory, operations and traffic of the loss on many devices."""
  options.check()
  counts = options.read_sizes(_DEVICE_COUNTS, least=1)
  sizes = options.read_sizes(_GLOBAL_SIZES)
  for flag, least in ((_PAIRS, 1), (_BLOCK, 1), (_SCALE_DIM, 1)):
    options.at_least(flag, least)
  simulate(max(counts))
  rows = {
      'devices': device_rows(
          counts, _PAIRS.value, _SCALE_DIM.value, _BLOCK.value
      ),
      'sizes': size_rows(sizes, _SCALE_DIM.value),
  }
  print(f'{_PAIRS.value} pairs on each device, d = {_SCALE_DIM.value}\n')
  print(device_table(rows['devices']))
  print('\nOne device\n')
  print(size_table(rows['sizes']))
  print(f'\n{_NOTES}')
  if options.JSON.value:
    reporting.write_json(options.JSON.value, rows)


def simulate(devices: int) -> None:
  """Simulates devices on the CPU; call it before anything else uses JAX."""
  jax.config.update('jax_platforms', 'cpu')
  try:
    jax.config.update('jax_num_cpu_devices', devices)
  except RuntimeError:
    pass  # JAX has begun; there may be enough of them all the same.
  if jax.device_count() < devices:
    raise command_lib.UsageError(
        f'--device_counts: {devices} devices are needed and there are '
        f'{jax.device_count()}; set '
        f'XLA_FLAGS=--xla_force_host_platform_device_count={devices}.'
    )
