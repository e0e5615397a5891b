# SPDX-License-Identifier: Apache-2.0
"""The oracle: the equations in loops over numbers, values and gradients.

It imports neither jax nor hcl_jax. ``m`` is the arithmetic: ``math`` for
float64, or an mpmath context for as many digits as asked for. There exponents
have no range, so the formulas stand as they are printed, in exp space, and no
trick of the library can be repeated here by mistake.
"""

import math

import numpy as np

# --- The equation on logits -------------------------------------------------


def tilted_mean(logits, beta, m=math):
  """E_{q_beta}[e^s] = sum e^{(1+beta) s} / sum e^{beta s}."""
  top = sum(m.exp((1 + beta) * s) for s in logits)
  return top / sum(m.exp(beta * s) for s in logits)


def tilted_mean_grad(logits, beta, stop_gradient_weights=False, m=math):
  """d E_{q_beta}[e^s] / d s_k."""
  total = sum(m.exp(beta * s) for s in logits)
  mean = tilted_mean(logits, beta, m)
  grad = []
  for s in logits:
    weight = m.exp(beta * s) / total
    if stop_gradient_weights:
      grad.append(weight * m.exp(s))
    else:
      grad.append(weight * ((1 + beta) * m.exp(s) - beta * mean))
  return grad


def negative_mass(
    pos, neg, beta, tau_plus, log_floor=None, soft_floor=None, m=math
):
  """(Ng, dNg/dE-, dNg/dE+, whether the floor acts)."""
  n = len(neg)
  e_neg, e_pos = tilted_mean(neg, beta, m), tilted_mean(pos, beta, m)
  r = tau_plus * e_pos / e_neg
  if soft_floor is not None and r > soft_floor:
    # Ng = N/(1-tau) E- (1-r0)^2 / (1 - 2 r0 + tau E+/E-)
    k = n / (1 - tau_plus) * (1 - soft_floor) ** 2
    bottom = (1 - 2 * soft_floor) * e_neg + tau_plus * e_pos
    mass = k * e_neg**2 / bottom
    by_neg = k * (2 * e_neg * bottom - e_neg**2 * (1 - 2 * soft_floor))
    by_pos = -k * e_neg**2 * tau_plus
    return mass, by_neg / bottom**2, by_pos / bottom**2, False
  k = n / (1 - tau_plus)
  mass = k * (e_neg - tau_plus * e_pos)
  if tau_plus > 0 and soft_floor is None:
    floor = 0 * mass if log_floor is None else n * m.exp(log_floor)
    if mass < floor:
      return floor, 0, 0, True
  return mass, k, -k * tau_plus, False


def hard_nce(pos, neg, beta, tau_plus, m=math, positive_weight=1, **floors):
  """mean over positives of log(w + Ng / e^p)."""
  if not len(neg):
    return 0.0
  mass, *_ = negative_mass(pos, neg, beta, tau_plus, m=m, **floors)
  terms = [m.log(positive_weight + mass / m.exp(p)) for p in pos]
  return sum(terms) / len(pos)


def hard_nce_grad(
    pos, neg, beta, tau_plus, stop_gradient_weights=False, m=math,
    positive_weight=1, **floors,
):  # fmt: skip
  """(d loss / d pos, d loss / d neg)."""
  if not len(neg):
    return [0.0] * len(pos), []
  mass, by_neg, by_pos, _ = negative_mass(
      pos, neg, beta, tau_plus, m=m, **floors
  )
  bottoms = [positive_weight * m.exp(p) + mass for p in pos]
  by_mass = sum(1 / bottom for bottom in bottoms) / len(pos)
  d_pos = tilted_mean_grad(pos, beta, stop_gradient_weights, m)
  d_neg = tilted_mean_grad(neg, beta, stop_gradient_weights, m)
  to_pos = [
      by_mass * by_pos * d - mass / bottom / len(pos)
      for bottom, d in zip(bottoms, d_pos, strict=True)
  ]
  return to_pos, [by_mass * by_neg * d for d in d_neg]


def grouped_nce(pos, neg, beta, tau_plus, m=math, positive_weight=1, **floors):
  """log(w sum_p e^p + Ng) - mean p; without negatives, w = 1."""
  mass, weight = 0, 1
  if len(neg):
    mass, *_ = negative_mass(pos, neg, beta, tau_plus, m=m, **floors)
    weight = positive_weight
  total = weight * sum(m.exp(p) for p in pos) + mass
  return m.log(total) - sum(pos) / len(pos)


def grouped_nce_grad(
    pos, neg, beta, tau_plus, stop_gradient_weights=False, m=math,
    positive_weight=1, **floors,
):  # fmt: skip
  """(d loss / d pos, d loss / d neg)."""
  mass, by_neg, by_pos, weight = 0, 0, 0, 1
  if len(neg):
    mass, by_neg, by_pos, _ = negative_mass(
        pos, neg, beta, tau_plus, m=m, **floors
    )
    weight = positive_weight
  total = weight * sum(m.exp(p) for p in pos) + mass
  d_pos = tilted_mean_grad(pos, beta, stop_gradient_weights, m)
  to_pos = [
      (weight * m.exp(p) + by_pos * d) / total - m.exp(0) / len(pos)
      for p, d in zip(pos, d_pos, strict=True)
  ]
  if not len(neg):
    return to_pos, []
  d_neg = tilted_mean_grad(neg, beta, stop_gradient_weights, m)
  return to_pos, [by_neg * d / total for d in d_neg]


def perplexity(logits, beta):
  """e^H of the weights e^{beta s}, normalized."""
  top = max(logits)
  weights = [math.exp(beta * (s - top)) for s in logits]
  weights = [w / sum(weights) for w in weights]
  return math.exp(-sum(w * math.log(w) for w in weights if w))


def beta_for_perplexity(logits, fraction):
  """The beta at which a fraction of the logits counts, by bisection."""
  logits = list(logits)
  if not logits or max(logits) == min(logits) or fraction == 1:
    return 0.0
  low, high = 0.0, 2048 / (max(logits) - min(logits))
  for _ in range(60):
    middle = (low + high) / 2
    if perplexity(logits, middle) > fraction * len(logits):
      low = middle
    else:
      high = middle
  return high


# --- Losses on cosines ------------------------------------------------------


def unit(row, m=math):
  norm = m.sqrt(sum(x * x for x in row))
  return [x / norm if norm else x for x in row]


def dot(a, b):
  return sum(x * y for x, y in zip(a, b, strict=True))


def numbers(rows, m=math):
  """Exact copies of an array's numbers in the arithmetic m."""
  kind = float if m is math else m.mpf
  return [[kind(float(x)) for x in row] for row in rows]


def floors(floor, temperature):
  """The keyword arguments of hard_nce for a floor's name."""
  if floor == 'sphere':
    return {'log_floor': -1 / temperature}
  return {'soft_floor': 0.5} if floor == 'soft' else {}


def is_too_close(cosine, positive, margin, relative=False):
  """Whether a negative's cosine is above the positive's less a margin."""
  return cosine > positive - margin * (abs(positive) if relative else 1)


def _contrast(
    units, anchors, *, temperature, beta, tau_plus, floor='sphere',
    positive_weight=1, margin=None, relative=False, guide=None,
    stop_gradient_weights=False, m=math,
):  # fmt: skip
  """Losses of (row, positive, negatives, spared), and gradient in ``units``.

  A list of positives, the row's own first, is a group. ``spared`` are negatives
  that the margin never drops; ``beta`` may be one for each anchor; ``guide``
  are the rows whose cosines the margin compares.
  """
  grad = [[0 * x for x in row] for row in units]
  losses = []
  guide = units if guide is None else guide
  betas = [beta] * len(anchors) if np.ndim(beta) == 0 else beta
  knobs = {'tau_plus': tau_plus, 'positive_weight': positive_weight, 'm': m}
  knobs |= floors(floor, temperature)
  for (i, positive, negatives, spared), b in zip(anchors, betas, strict=True):
    group = isinstance(positive, list)
    positives = positive if group else [positive]
    loss = grouped_nce if group else hard_nce
    loss_grad = grouped_nce_grad if group else hard_nce_grad
    if margin is not None:
      own = dot(guide[i], guide[positives[0]])
      negatives = [
          j for j in negatives
          if not is_too_close(dot(guide[i], guide[j]), own, margin, relative)
      ]  # fmt: skip
    negatives = [*negatives, *spared]
    logit = lambda j, i=i: dot(units[i], units[j]) / temperature  # noqa: E731
    pos, neg = ([logit(j) for j in x] for x in (positives, negatives))
    losses.append(loss(pos, neg, beta=b, **knobs))
    to_pos, to_neg = loss_grad(
        pos, neg, beta=b, stop_gradient_weights=stop_gradient_weights, **knobs
    )
    pulls = zip([*positives, *negatives], [*to_pos, *to_neg], strict=True)
    for j, pull in pulls:
      for k in range(len(units[i])):
        grad[i][k] += pull / temperature * units[j][k]
        grad[j][k] += pull / temperature * units[i][k]
  return losses, grad


def _through_unit(rows, units, grad, m):
  """The gradient in the rows from that in the unit rows."""
  result = []
  for row, u, g in zip(rows, units, grad, strict=True):
    norm = m.sqrt(dot(row, row))
    along = dot(g, u)
    result.append([
        (gk - along * uk) / norm if norm else 0 * gk
        for gk, uk in zip(g, u, strict=True)
    ])
  return result


def _joined_units(arrays, m):
  if arrays is None:
    return None
  return [unit(row, m) for array in arrays for row in numbers(array, m)]


def simclr(z1, z2, *, labels=None, guide=None, m=math, **knobs):
  """(loss per pair, gradient of their mean in z1, in z2)."""
  batch = len(z1)
  labels = range(batch) if labels is None else labels
  rows = numbers(z1, m) + numbers(z2, m)
  units = [unit(row, m) for row in rows]
  guide = _joined_units(guide, m)
  anchors = []
  for i in range(2 * batch):
    own = labels[i % batch]
    negatives = [j for j in range(2 * batch) if labels[j % batch] != own]
    anchors.append((i, (i + batch) % (2 * batch), negatives, []))
  losses, grad = _contrast(units, anchors, guide=guide, m=m, **knobs)
  grad = _through_unit(rows, units, grad, m)
  grad = [[g / (2 * batch) for g in row] for row in grad]
  pairs = [(losses[i] + losses[i + batch]) / 2 for i in range(batch)]
  return pairs, grad[:batch], grad[batch:]


def in_batch(
    anchors, positives, *, negatives=None, where=None, labels=None, ids=None,
    guide=None, normalize=True, bidirectional=False, m=math, **knobs,
):  # fmt: skip
  """(loss per anchor, gradient of their mean in anchors, in positives)."""
  batch = len(anchors)
  labels = range(batch) if labels is None else labels
  labels = labels if ids is None else ids
  rows = numbers(anchors, m) + numbers(positives, m)
  extra = [[] for _ in range(batch)]
  if negatives is not None:
    shared = np.ndim(negatives) == 2
    for i in range(batch):
      if shared and i:
        extra[i] = extra[0]
        continue
      own = numbers(negatives if shared else negatives[i], m)
      extra[i] = list(range(len(rows), len(rows) + len(own)))
      rows += own
  if where is not None:
    where = np.broadcast_to(where, (batch, len(extra[0])))
    extra = [
        [j for j, kept in zip(own, row, strict=True) if kept]
        for own, row in zip(extra, where, strict=True)
    ]
  units = [unit(row, m) if normalize else row for row in rows]
  guide = _joined_units(guide, m)
  given = []
  for i in range(batch):
    others = [batch + j for j in range(batch) if labels[j] != labels[i]]
    own = batch + i
    if ids is not None:
      same = [batch + j for j in range(batch) if ids[j] == ids[i] and j != i]
      own = [own, *same]
    given.append((i, own, others, extra[i]))
  for i in range(batch if bidirectional else 0):
    others = [j for j in range(batch) if labels[j] != labels[i]]
    own = i
    if ids is not None:
      own = [i, *(j for j in range(batch) if ids[j] == ids[i] and j != i)]
    given.append((batch + i, own, others, []))
  losses, grad = _contrast(units, given, guide=guide, m=m, **knobs)
  if normalize:
    grad = _through_unit(rows, units, grad, m)
  grad = [[g / len(given) for g in row] for row in grad]
  if bidirectional:
    both = zip(losses[:batch], losses[batch:], strict=True)
    losses = [(x + y) / 2 for x, y in both]
  return losses, grad[:batch], grad[batch : 2 * batch]


def moco(
    queries, keys, queue, *, where=None, extra=None, guide=None, m=math,
    **knobs,
):  # fmt: skip
  """(loss per query, gradient of their mean in the queries)."""
  batch, length = len(queries), len(queue)
  rows = numbers(queries, m) + numbers(keys, m) + numbers(queue, m)
  own = 0 if extra is None else len(extra[0])
  for i in range(batch if own else 0):
    rows += numbers(extra[i], m)
  units = [unit(row, m) for row in rows]
  if where is None:
    where = np.ones((batch, length), bool)
  where = np.broadcast_to(where, (batch, length))
  given = [
      (
          i,
          batch + i,
          [2 * batch + j for j in range(length) if where[i, j]],
          [2 * batch + length + own * i + j for j in range(own)],
      )
      for i in range(batch)
  ]
  guide = _joined_units(guide, m)
  losses, grad = _contrast(units, given, guide=guide, m=m, **knobs)
  grad = _through_unit(rows, units, grad, m)
  return losses, [[g / batch for g in row] for row in grad[:batch]]


def supcon(z1, z2, labels, *, temperature):
  """mean over positives of log sum_{a != i} e^{s_ia} - s_ip."""
  batch = len(z1)
  units = [unit(row) for row in numbers(z1) + numbers(z2)]
  losses = []
  for i in range(2 * batch):
    logits = {
        j: dot(units[i], units[j]) / temperature
        for j in range(2 * batch)
        if j != i
    }
    total = math.log(sum(math.exp(s) for s in logits.values()))
    own = labels[i % batch]
    same = [s for j, s in logits.items() if labels[j % batch] == own]
    losses.append(sum(total - s for s in same) / len(same))
  return [(losses[i] + losses[i + batch]) / 2 for i in range(batch)]


def hard_supcon(z1, z2, labels, *, m=math, **knobs):
  """(loss per pair, gradient of their mean in z1, in z2)."""
  batch = len(z1)
  rows = numbers(z1, m) + numbers(z2, m)
  units = [unit(row, m) for row in rows]
  anchors = []
  for i in range(2 * batch):
    same = [
        j for j in range(2 * batch)
        if labels[j % batch] == labels[i % batch]
    ]  # fmt: skip
    others = [j for j in range(2 * batch) if j not in same]
    anchors.append((i, [j for j in same if j != i], others, []))
  losses, grad = _contrast(
      units, anchors, tau_plus=0, floor='none', m=m, **knobs
  )
  grad = _through_unit(rows, units, grad, m)
  grad = [[g / (2 * batch) for g in row] for row in grad]
  pairs = [(losses[i] + losses[i + batch]) / 2 for i in range(batch)]
  return pairs, grad[:batch], grad[batch:]


def sigmoid(
    z1, z2, *, logit_scale, logit_bias, beta, labels=None,
    stop_gradient_weights=False, m=math,
):  # fmt: skip
  """(loss per anchor; gradient of their mean by z1, z2, scale, bias, beta)."""
  batch = len(z1)
  labels = range(batch) if labels is None else labels
  rows = numbers(z1, m) + numbers(z2, m)
  units = [unit(row, m) for row in rows]
  grad = [[0 * x for x in row] for row in units]
  losses, by_scale, by_bias, by_beta = [], 0, 0, 0
  for i in range(batch):
    # Of each pair: the column, d loss / d l, and d loss / d (scale cosine).
    pairs = []
    cosine = [dot(units[i], units[batch + j]) for j in range(batch)]
    logit = [logit_scale * c + logit_bias for c in cosine]
    loss = m.log1p(m.exp(-logit[i]))
    pairs.append((i, -1 / (1 + m.exp(logit[i])), 0))
    others = [j for j in range(batch) if labels[j] != labels[i]]
    if others:
      n = len(others)
      tilt = {j: m.exp(beta * logit_scale * cosine[j]) for j in others}
      total = sum(tilt.values())
      cost = {j: m.log1p(m.exp(logit[j])) for j in others}
      mean = sum(tilt[j] * cost[j] for j in others) / total
      loss += n * mean
      for j in others:
        q = tilt[j] / total
        rise = 0 if stop_gradient_weights else n * q * (cost[j] - mean)
        by_beta += rise * logit_scale * cosine[j]
        pairs.append((j, n * q / (1 + m.exp(-logit[j])), rise * beta))
    losses.append(loss)
    for j, by_logit, by_tilt in pairs:
      by_bias += by_logit
      by_scale += (by_logit + by_tilt) * cosine[j]
      for k in range(len(units[i])):
        by_cosine = logit_scale * (by_logit + by_tilt)
        grad[i][k] += by_cosine * units[batch + j][k]
        grad[batch + j][k] += by_cosine * units[i][k]
  grad = _through_unit(rows, units, grad, m)
  grad = [[g / batch for g in row] for row in grad]
  by_hyperparameters = (x / batch for x in (by_scale, by_bias, by_beta))
  return losses, grad[:batch], grad[batch:], *by_hyperparameters


# --- Graphs -----------------------------------------------------------------


def softplus(x):
  return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def infograph(scores, graph_ids, beta, tau_plus, variant):
  """The three objectives from a matrix of node-graph scores.

  ``beta`` of 'paper' may be one for each node, which no clip divides.
  """
  return {'paper': _paper, 'released': _released, 'infograph': _jsd}[variant](
      np.asarray(scores, np.float64), graph_ids, beta, tau_plus
  )


def _jsd(scores, graph_ids, beta, tau_plus):
  del beta, tau_plus
  n, graphs = scores.shape
  e_pos = e_neg = 0.0
  for u in range(n):
    for g in range(graphs):
      if graph_ids[u] == g:
        e_pos += math.log(2) - softplus(-scores[u, g])
      else:
        e_neg += softplus(scores[u, g]) - math.log(2)
  return e_neg / (n * (graphs - 1)) - e_pos / n


def _paper(scores, graph_ids, beta, tau_plus):
  n, graphs = scores.shape
  negatives = [
      [g for g in range(graphs) if g != graph_ids[u]] for u in range(n)
  ]
  c = max(abs(scores[u, g]) for u in range(n) for g in negatives[u]) or 1.0
  betas = [2 * beta / c] * n if np.ndim(beta) == 0 else beta
  hard = 0.0
  for u in range(n):
    tilts = [math.exp(betas[u] * scores[u, g]) for g in negatives[u]]
    mean = sum(tilts) / len(tilts)
    for tilt, g in zip(tilts, negatives[u], strict=True):
      hard += tilt / mean * softplus(scores[u, g])
  hard /= n * (graphs - 1)
  own = [scores[u, graph_ids[u]] for u in range(n)]
  as_negative = sum(softplus(t) for t in own) / n
  positive = sum(softplus(-t) for t in own) / n
  first = (hard - tau_plus * as_negative) / (1 - tau_plus) - math.log(2)
  return first - (math.log(2) - positive)


def _released(scores, graph_ids, beta, tau_plus):
  n, graphs = scores.shape
  own = np.array([[graph_ids[u] == g for g in range(graphs)] for u in range(n)])
  p, q = scores * own, scores * ~own
  c = max(q.max(), abs(q.min()))
  e_pos = e_neg = 0.0
  for u in range(n):
    tilts = [math.exp(-2 * beta * q[u, g] / c) for g in range(graphs)]
    mean = sum(tilts) / graphs
    for g in range(graphs):
      e_pos += math.log(2) - softplus(-p[u, g])
      e_pos -= tau_plus / (1 - tau_plus) * softplus(p[u, g])
      if beta == 0:
        e_neg += (softplus(q[u, g]) - math.log(2)) / (1 - tau_plus)
      else:
        weighted = tilts[g] / mean * softplus(q[u, g])
        e_neg += weighted / (1 - tau_plus) - math.log(2)
  return e_neg / (n * (graphs - 1)) - e_pos / n


# --- Sentences --------------------------------------------------------------


def quick_thoughts(
    scores, *, beta, tau_plus, window=1, self_pair='zero', clip_scale=None,
    floor='none', segments=None, where=None,
):  # fmt: skip
  """One loss per sentence from the matrix of inner products."""
  losses = []
  for pos, neg, tilt in _quick_thoughts_anchors(
      scores, beta, window, self_pair, clip_scale, segments, where
  ):
    if not pos:
      losses.append(0.0)
      continue
    mass = 0.0
    if neg:
      mass, *_ = negative_mass(
          pos, neg, tilt, tau_plus, **floors(floor, 1.0)
      )
    total = math.log(sum(math.exp(s) for s in pos) + mass)
    losses.append(sum(total - s for s in pos) / len(pos))
  return losses


def quick_thoughts_clamp_fraction(
    scores, *, beta, tau_plus, window=1, self_pair='zero', clip_scale=None,
    floor='none', segments=None, where=None,
):  # fmt: skip
  """The share of sentences with a neighbour whose Ng is below its floor."""
  clamped = []
  for pos, neg, tilt in _quick_thoughts_anchors(
      scores, beta, window, self_pair, clip_scale, segments, where
  ):
    if pos and neg:
      mean = tilted_mean(neg, tilt) - tau_plus * tilted_mean(pos, tilt)
      least = math.exp(-1) if floor == 'sphere' else 0.0
      clamped.append(tau_plus > 0 and mean / (1 - tau_plus) < least)
    elif pos:
      clamped.append(False)
  return sum(clamped) / max(len(clamped), 1)


def _quick_thoughts_anchors(
    scores, beta, window, self_pair, clip_scale, segments, where
):
  """Logits of positives and of negatives, and beta, of each sentence.

  Without a clip, beta may be one for each sentence.
  """
  logits = quick_thoughts_logits(
      scores, window=window, self_pair=self_pair, segments=segments, where=where
  )
  if clip_scale is not None:
    largest = max(abs(s) for _, neg in logits for s in neg)
    beta = beta * clip_scale / largest if largest else 0.0
  betas = [beta] * len(logits) if np.ndim(beta) == 0 else beta
  return [(*both, b) for both, b in zip(logits, betas, strict=True)]


def quick_thoughts_logits(
    scores, *, window=1, self_pair='zero', segments=None, where=None
):
  """(logits of positives, logits of negatives) of each sentence."""
  scores = np.asarray(scores, np.float64)
  batch = len(scores)
  counted = [True] * batch if where is None else list(where)
  segments = [0] * batch if segments is None else list(segments)
  logits = []
  for i in range(batch):
    pos, neg = [], []
    for j in range(batch):
      if not (counted[i] and counted[j]):
        continue
      if i == j:
        neg += [0.0] if self_pair == 'zero' else []
      elif abs(i - j) <= window and segments[i] == segments[j]:
        pos.append(scores[i, j])
      else:
        neg.append(scores[i, j])
    logits.append((pos, neg))
  return logits


# --- Schedules --------------------------------------------------------------


def anneal(beta, total_steps, num_changes, direction):
  """beta at every step of the run, stair by stair."""
  values = []
  for step in range(total_steps):
    stair = step * num_changes // total_steps
    if direction == 'up':
      stair = num_changes - 1 - stair
    values.append(beta * (1 - stair / num_changes))
  return values


def released_schedule(beta, total_epochs):
  """beta in force during each epoch, by running the released loop."""
  points = iter(np.linspace(beta, 0, 9))
  values, current = [], beta
  for epoch in range(1, total_epochs + 1):
    values.append(current)
    if epoch % max(total_epochs // 9, 1) == 0:
      current = next(points, 0.0)
  return values


# --- Analysis ---------------------------------------------------------------


def cosines(rows):
  """All cosines, ``[n, n]`` lists."""
  units = [unit(row) for row in numbers(rows)]
  return [[dot(a, b) for b in units] for a in units]


def similarity_histograms(rows, labels, num_bins):
  """(same, different), each unordered pair once."""
  found, same, different = cosines(rows), [0] * num_bins, [0] * num_bins
  for i in range(len(rows)):
    for j in range(i):
      place = math.floor((found[i][j] + 1) / 2 * num_bins)
      place = min(max(place, 0), num_bins - 1)
      (same if labels[i] == labels[j] else different)[place] += 1
  return same, different


def uniformity(rows, scale):
  """log of the mean of e^{-scale |u - v|^2} over pairs."""
  units = [unit(row) for row in numbers(rows)]
  terms = [
      math.exp(-scale * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
      for i, a in enumerate(units)
      for b in units[:i]
  ]
  return math.log(math.fsum(terms) / len(terms))


def negative_weights(logits, beta):
  total = math.fsum(math.exp(beta * s) for s in logits)
  return [math.exp(beta * s) / total for s in logits]


def effective_negatives(logits, beta, order):
  """The Hill number of order 1 or 2 of the weights."""
  weights = negative_weights(logits, beta)
  if order == 2:
    return 1 / math.fsum(w * w for w in weights)
  return math.exp(-math.fsum(w * math.log(w) for w in weights))


def theory_anchors(rows, labels, temperature):
  """(logits of positives, logits of negatives) of each row."""
  for i, line in enumerate(cosines(rows)):
    pos = [c / temperature for c, k in zip(line, labels, strict=True)
           if k == labels[i]]  # fmt: skip
    neg = [c / temperature for c, k in zip(line, labels, strict=True)
           if k != labels[i]]  # fmt: skip
    yield pos, neg


def tilted_loss(rows, labels, beta, temperature, q):
  """L(f, q_beta^-); beta None is L*(f), the hardest negative."""
  losses = []
  for pos, neg in theory_anchors(rows, labels, temperature):
    mean = math.exp(max(neg)) if beta is None else tilted_mean(neg, beta)
    losses.append(
        sum(-math.log(math.exp(p) / (math.exp(p) + q * mean)) for p in pos)
        / len(pos)
    )
  return sum(losses) / len(losses)


def limiting_worst_case_loss(rows, labels, temperature):
  """E log(max e^{s-} / e^{s+})."""
  losses = [
      sum(math.log(math.exp(max(neg)) / math.exp(p)) for p in pos) / len(pos)
      for pos, neg in theory_anchors(rows, labels, temperature)
  ]
  return sum(losses) / len(losses)


def one_positive_variance(rows, labels, beta, temperature):
  """E_x Var(e^s), s that of a positive from q_beta^+."""
  variances = []
  for pos, _ in theory_anchors(rows, labels, temperature):
    weights = negative_weights(pos, beta)
    first, second = (
        sum(w * math.exp(k * s) for w, s in zip(weights, pos, strict=True))
        for k in (1, 2)
    )
    variances.append(second - first**2)
  return sum(variances) / len(variances)


def best_bin(positive, unlabelled, delta, gamma):
  """Best Bin Estimation by trying every positive score as the threshold."""
  best = None
  for c in positive:
    q_p = sum(s >= c for s in positive) / len(positive)
    q_u = sum(s >= c for s in unlabelled) / len(unlabelled)
    width = sum(
        math.sqrt(math.log(4 / delta) / (2 * n))
        for n in (len(positive), len(unlabelled))
    )
    bound = q_u / q_p + (1 + gamma) * width / q_p
    if best is None or bound < best[0]:
      best = bound, q_u / q_p
  return best[1]


# --- Mining -----------------------------------------------------------------


def mine(queries, documents, k, skip=0, margin=None, positives=None):
  """(indices, cosines) of hard negatives, by sorting all documents."""

  def cosine(a, b):
    a, b = np.float64(a), np.float64(b)
    size = math.sqrt(a @ a) * math.sqrt(b @ b)
    return a @ b / size if size else 0.0

  indices, scores = [], []
  for i, query in enumerate(queries):
    own = [] if positives is None else np.ravel(positives[i])
    own = [j for j in own if j != -1]
    found = [
        (-cosine(query, document), j)
        for j, document in enumerate(documents)
        if j not in own
    ]
    if margin is not None:
      for j in own:
        most = cosine(query, documents[j]) - margin
        found = [x for x in found if -x[0] <= most]
    found = sorted(found)[skip : skip + k]
    found += [(math.inf, -1)] * (k - len(found))
    indices.append([j for _, j in found])
    scores.append([-score for score, _ in found])
  return np.array(indices), np.array(scores)
