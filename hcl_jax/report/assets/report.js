'use strict';
// Recomputes the weights of an anchor's negatives as beta moves. The numbers are
// those of the library: q_beta is proportional to exp(beta s), and the loss is
// log(1 + Ng / e^p) with Ng = N / (1 - tau) (E_q[e^s] - tau e^p), clamped at its
// floor. As there, logits are shifted before they are multiplied by beta.

const MAX_NEGATIVES = 12;
const MAX_BARS = 256;

function tilt(logits, beta) {
  const peak = Math.max(...logits);
  const tilts = logits.map((s) => Math.exp(beta * (s - peak)));
  const total = tilts.reduce((a, b) => a + b, 0);
  return tilts.map((x) => x / total);
}

function effectiveNumber(weights) {
  return 1 / weights.reduce((sum, w) => sum + w * w, 0);
}

function hardLoss(positive, logits, weights, tau, logFloor) {
  const peak = Math.max(positive, ...logits);
  let mean = 0;
  logits.forEach((s, j) => { mean += weights[j] * Math.exp(s - peak); });
  let estimate = (mean - tau * Math.exp(positive - peak)) / (1 - tau);
  const floor = logFloor === null ? 0 : Math.exp(logFloor - peak);
  const clamped = tau > 0 && estimate < floor;
  if (clamped) estimate = floor;
  const ratio = logits.length * estimate / Math.exp(positive - peak);
  return {loss: Math.log1p(ratio), clamped};
}

function startPanel(root) {
  const data = JSON.parse(root.querySelector('script').textContent);
  const at = (name) => root.querySelector(`[data-role="${name}"]`);
  const state = {run: 0, anchor: 0};

  function picture(item) {
    const span = document.createElement('span');
    span.className = 'picture';
    span.setAttribute('role', 'img');
    span.setAttribute('aria-label', data.names ? data.names[item] : `item ${item}`);
    const rows = Math.ceil(data.count / data.columns);
    const x = item % data.columns, y = Math.floor(item / data.columns);
    span.style.backgroundImage = `url(${data.sprite})`;
    span.style.backgroundSize = `${100 * data.columns}% ${100 * rows}%`;
    span.style.backgroundPosition =
        `${data.columns > 1 ? 100 * x / (data.columns - 1) : 0}% ` +
        `${rows > 1 ? 100 * y / (rows - 1) : 0}%`;
    return span;
  }

  function tile(tag, item, words, same) {
    if (same) words = `✱ ${words}`;
    const element = document.createElement(tag);
    element.className = 'tile';
    if (same) element.classList.add('same');
    if (data.sprite) {
      const lines = [words, data.names ? data.names[item] : ''];
      element.append(picture(item));
      lines.filter(Boolean).forEach((line, i) => {
        if (i) element.append(document.createElement('br'));
        element.append(line);
      });
    } else {
      element.classList.add('word');
      const number = document.createElement('b');
      number.textContent = words;
      const text = document.createElement('span');
      text.textContent = data.texts[item];
      element.append(...(words ? [number, text] : [text]));
    }
    return element;
  }

  function chooseAnchor(number) {
    state.anchor = number;
    [...at('anchors').children].forEach((button, i) => {
      button.setAttribute('aria-pressed', String(i === number));
    });
    draw();
  }

  function listAnchors() {
    const buttons = data.runs[state.run].anchors.map((anchor, i) => {
      const button = tile('button', anchor.item, '', false);
      button.type = 'button';
      button.addEventListener('click', () => chooseAnchor(i));
      return button;
    });
    at('anchors').replaceChildren(...buttons);
    at('anchors').classList.toggle('words', !data.sprite);
    at('negatives').classList.toggle('words', !data.sprite);
  }

  function chooseRun(number) {
    state.run = number;
    const run = data.runs[number];
    setBeta(run.beta);
    at('tau').value = run.tau_plus;
    root.querySelectorAll('[data-only="nce"]').forEach((element) => {
      element.hidden = !run.nce;
    });
    listAnchors();
    chooseAnchor(Math.min(state.anchor, run.anchors.length - 1));
  }

  // The slider is quadratic, because small betas matter most.
  function beta() { return data.max_beta * (Number(at('beta').value) / 1000) ** 2; }
  function setBeta(value) {
    at('beta').value = Math.round(1000 * Math.sqrt(Math.min(value / data.max_beta, 1)));
  }

  function fact(name, value) { at(name).textContent = value; }

  function draw() {
    const run = data.runs[state.run];
    const anchor = run.anchors[state.anchor];
    const weights = tilt(anchor.logits, beta());
    const order = weights.map((_, j) => j)
        .sort((a, b) => anchor.logits[b] - anchor.logits[a]);
    order.sort((a, b) => weights[b] - weights[a]);
    fact('beta-value', beta().toFixed(2));
    fact('number', `${effectiveNumber(weights).toFixed(1)} of ${weights.length}`);
    fact('largest', `${(100 * Math.max(...weights)).toFixed(1)} %`);
    const isSame = (j) => anchor.same !== null && anchor.same[j] === 1;
    if (anchor.same !== null) {
      const share = weights.reduce((sum, w, j) => sum + (isSame(j) ? w : 0), 0);
      fact('same', `${(100 * share).toFixed(1)} %`);
    }
    if (run.nce) {
      const tau = Number(at('tau').value);
      fact('tau-value', tau.toFixed(2));
      const result = hardLoss(anchor.positive, anchor.logits, weights, tau, run.log_floor);
      fact('loss', result.loss.toFixed(4) + (result.clamped ? ' (at the floor)' : ''));
    }
    const most = weights[order[0]];
    const bars = order.slice(0, MAX_BARS).map((j) => {
      const bar = document.createElement('i');
      bar.style.height = `${100 * weights[j] / most}%`;
      if (isSame(j)) bar.className = 'same';
      return bar;
    });
    at('bars').replaceChildren(...bars);
    const tiles = order.slice(0, MAX_NEGATIVES).map((j) => tile(
        'div', anchor.items[j], `${(100 * weights[j]).toFixed(2)} %`, isSame(j)));
    at('negatives').replaceChildren(...tiles);
  }

  data.runs.forEach((run, i) => at('run').append(new Option(run.name, i)));
  at('run').parentElement.hidden = data.runs.length < 2;
  at('run').addEventListener('change', () => chooseRun(Number(at('run').value)));
  ['beta', 'tau'].forEach((name) => at(name).addEventListener('input', draw));
  at('own-beta').addEventListener('click', () => {
    setBeta(data.runs[state.run].beta);
    draw();
  });
  const betas = data.runs.map((run) => run.beta);
  at('run').value = betas.indexOf(Math.max(...betas));
  chooseRun(Number(at('run').value));
}

document.querySelectorAll('.panel').forEach(startPanel);
