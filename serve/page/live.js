// The live page: asks the API now and then, and shows what it says. No state but what is on screen.
'use strict';

const kEvery = 1000, kEveryIdle = 3000, kSoon = 300, kLongestPause = 8000;  // ms
const kListed = 200;    // violations on the page; the API has more
const kMapHeight = 230; // px, about
const kMargin = 3;      // px around a map, for the rings at its edge
const kBands = 16;      // rows of the table of a map

const $ = (id) => document.getElementById(id);
const element = (tag, properties = {}, ...children) => {
  const e = Object.assign(document.createElement(tag), properties);
  e.append(...children);
  return e;
};

// ---------------------------------------------------------------- numbers

const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, '\u202f');
const short = (n) => {
  if (n < 10000) return n < 10 && n % 1 ? n.toFixed(1) : grouped(Math.round(n));
  const units = ['', 'k', 'M', 'G', 'T', 'P'];
  const power = Math.min(Math.floor(Math.log10(n) / 3), units.length - 1);
  return `${(n / 1000 ** power).toPrecision(3)}\u202f${units[power]}`;
};
const bytes = (n) => `${short(n)}${n < 10000 ? '\u202f' : ''}B`;
const duration = (seconds) => {
  if (seconds < 1e-3) return `${(seconds * 1e6).toPrecision(3)}\u202fµs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)}\u202fms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)}\u202fs`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes}\u202fmin` : `${Math.round(minutes / 60)}\u202fh`;
};
const plural = (n, one, many = `${one}s`) => `${grouped(n)} ${n === 1 ? one : many}`;

// ---------------------------------------------------------------- the API

const ask = async (path) => {
  const response = await fetch(path, {signal: AbortSignal.timeout(8000)});
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error.message), {status: response.status});
  return answer;
};

// ---------------------------------------------------------------- headline and counters

const counter = (name, value, more) => {
  const place = document.querySelector(`[data-counter="${name}"]`);
  place.textContent = value;
  document.querySelector(`[data-more="${name}"]`).textContent = more;
};

function showStats(s) {
  const alone = s.engine.state === 'none';
  $('alone').hidden = !alone;
  $('live').hidden = alone;
  if (alone) {
    $('headline').textContent = 'No engine here';
    $('engine').textContent = 'The error reference is.';
    return;
  }
  const bad = s.violations > 0;
  $('state').dataset.mood = bad ? 'bad' : 'good';
  $('headline').textContent = bad ? `${plural(s.violations, 'violation')} found` : 'All quiet';
  const doing = s.engine.state === 'ended' ? 'ended after' : 'running, at';
  $('engine').textContent = `${s.engine.name}: ${doing} step ${grouped(s.steps)} · format ` +
      `${s.canary.format}, depth ${s.canary.depth}, mode ${s.canary.mode}`;
  document.title = bad ? `${grouped(s.violations)} violations · Serinus` : 'Serinus';

  const spent = s.seconds.head + s.seconds.tail + s.seconds.sweep;
  const dropped = s.ring_dropped > 0 ? `, ${grouped(s.ring_dropped)} dropped` : '';
  counter('slots_protected', grouped(s.slots_protected), `${short(s.entries_written)} stamped`);
  counter('entries_verified', short(s.entries_verified), `${bytes(s.digested_bytes)} digested`);
  counter('violations', grouped(s.violations), `${plural(s.sightings, 'sighting')}${dropped}`);
  document.querySelector('[data-counter="violations"]').closest('dl > div')
      .classList.toggle('bad', bad);
  counter('steps', grouped(s.steps),
          s.steps > 0 ? `${short(s.entries_verified / s.steps)} verified in each` : '');
  counter('latency', s.steps > 0 ? duration(spent / s.steps) : '–',
          s.steps > 0 ? `head ${duration(s.seconds.head / s.steps)}, tail ${
                            duration(s.seconds.tail / s.steps)}` : '');
  const since = Math.max(0, Date.now() / 1000 - s.last_sweep_time);
  counter('sweep', s.last_sweep_time > 0 ? `${duration(since)} ago`.replace(/^\d.*µs ago$/, 'now') : 'not yet',
          `every slot within ${plural(s.sweep_bound_steps, 'step')}`);
  showChart('chart-verified', s.history, (p) => p.verified / p.steps, short);
  showChart('chart-latency', s.history, (p) => p.seconds / p.steps, duration);
}

function showChart(id, history, value, format) {
  const figure = $(id);
  const svg = figure.querySelector('svg');
  const points = history.map(value);
  const caption = figure.querySelector('figcaption span');
  const axis = figure.querySelectorAll('.axis span');
  if (points.length < 2) {
    caption.textContent = points.length ? format(points[0]) : 'no steps yet';
    svg.replaceChildren();
    return;
  }
  const most = Math.max(...points) || 1;
  const x = (i) => (300 * i / (points.length - 1)).toFixed(1);
  const y = (v) => (100 - 94 * v / most).toFixed(1);
  const line = points.map((v, i) => `${x(i)} ${y(v)}`).join('L');
  const draw = (name, d) => {
    const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    path.setAttribute('class', name);
    path.setAttribute('d', d);
    return path;
  };
  svg.replaceChildren(draw('base', 'M0 100H300'), draw('area', `M0 100L${line}L300 100Z`),
                      draw('stroke', `M${line}`));
  const text = `now ${format(points.at(-1))}, at most ${format(most)}`;
  caption.textContent = text;
  svg.setAttribute('aria-label',
                   `${figure.querySelector('b').textContent} over ${points.length} points: ${text}`);
  axis[0].textContent = `step ${grouped(history[0].step)}`;
  axis[1].textContent = `step ${grouped(history.at(-1).step)}`;
}

// ---------------------------------------------------------------- the maps

class PoolMap {
  constructor(number) {
    this.number = number;
    this.cell = 0;          // where the keyboard is
    this.pointed = null;    // where the mouse is
    this.card = $('pool-template').content.firstElementChild.cloneNode(true);
    this.canvas = this.card.querySelector('canvas');
    this.output = this.card.querySelector('output');
    this.canvas.addEventListener('pointermove', (e) => this.point(this.at(e)));
    this.canvas.addEventListener('pointerleave', () => this.point(null));
    this.canvas.addEventListener('click', (e) => {
      const cell = this.at(e);
      if (cell === null) return;
      this.move(cell);
      this.choose();
    });
    this.canvas.addEventListener('keydown', (e) => this.key(e));
    this.canvas.addEventListener('focus', () => this.draw());
    this.canvas.addEventListener('blur', () => this.draw());
    this.card.querySelector('details').addEventListener('toggle', () => this.table());
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  show(pool) {
    this.pool = pool;
    const {card, canvas} = this;
    card.dataset.pool = pool.pool;
    card.querySelector('h2').textContent = `Pool ${pool.name}`;
    card.querySelector('.facts').textContent = `${plural(pool.slots, 'slot')} in pages of ${
        pool.page_size} · ${pool.layout || pool.kind}, ${plural(pool.layers, 'layer')}`;
    const marks = pool.map.violations.reduce((a, b) => a + b, 0);
    const {free, empty, written, cached} = pool.counts;
    const legend = {free, empty, cached, request: written - cached, violations: marks};
    this.known = pool.map.passes > 0;  // else nobody has looked at all of it yet
    for (const [kind, n] of Object.entries(legend)) {
      card.querySelector(`.legend .${kind} b`).textContent =
          this.known || kind === 'violations' ? grouped(n) : '…';
    }
    canvas.setAttribute('aria-label', `Map of pool ${pool.name}, ${
        plural(pool.map.slots_per_cell, 'slot')} a step; Enter looks at a slot`);
    canvas.setAttribute('aria-valuemax', pool.map.cells - 1);
    this.cell = Math.min(this.cell, pool.map.cells - 1);
    this.draw();
    this.say();
    this.table();
  }

  range(first, last = first) {
    const {map, slots} = this.pool;
    return [first * map.slots_per_cell, Math.min((last + 1) * map.slots_per_cell, slots) - 1];
  }

  text(cell) {
    const {map} = this.pool;
    const [begin, end] = this.range(cell);
    if (!this.known) return `slots ${grouped(begin)} to ${grouped(end)}`;
    const written = map.written[cell], empty = map.empty[cell];
    const free = end - begin + 1 - written - empty;
    const parts = [written && `${grouped(written)} written`,
                   map.cached[cell] && `${grouped(map.cached[cell])} of them cached`, empty && `${grouped(empty)} empty`,
                   free && `${grouped(free)} free`,
                   map.violations[cell] && plural(map.violations[cell], 'violation')];
    const slots = begin === end ? `slot ${grouped(begin)}` : `slots ${grouped(begin)} to ${grouped(end)}`;
    return `${slots}: ${parts.filter(Boolean).join(', ')}`;
  }

  say() {
    const text = this.text(this.cell);
    this.canvas.setAttribute('aria-valuenow', this.cell);
    this.canvas.setAttribute('aria-valuetext', text);
    const shown = this.pointed ?? (document.activeElement === this.canvas ? this.cell : null);
    this.output.textContent = shown === null ? '' : this.text(shown);
  }

  point(cell) {
    if (!this.pool || cell === this.pointed) return;
    this.pointed = cell;
    this.say();
    this.draw();
  }

  move(cell) {
    this.cell = Math.max(0, Math.min(cell, this.pool.map.cells - 1));
    this.say();
    this.draw();
  }

  // The cell's first slot that a violation names, or its first slot.
  choose() {
    const [begin, end] = this.range(this.cell);
    const seen = violations.list.find(
        (v) => v.pool_number === this.number && v.slot >= begin && v.slot <= end);
    look(this.number, seen ? seen.slot : begin);
  }

  key(e) {
    const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
                   PageUp: -10 * this.columns, PageDown: 10 * this.columns,
                   Home: -Infinity, End: Infinity};
    if (e.key === 'Enter' || e.key === ' ') {
      this.choose();
    } else if (e.key in steps) {
      this.move(this.cell + steps[e.key]);
    } else {
      return;
    }
    e.preventDefault();
  }

  at(e) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((e.clientX - box.left - kMargin) / this.size);
    const row = Math.floor((e.clientY - box.top - kMargin) / this.size);
    const cell = row * this.columns + column;
    return column >= 0 && column < this.columns && cell >= 0 && cell < this.pool.map.cells ? cell : null;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!this.pool || width === 0) return;
    const inner = width - 2 * kMargin;
    const {map} = this.pool;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const [request, cached, empty, free, bad, ink] =
        ['request', 'cached', 'empty', 'free', 'bad', 'ink'].map(colour);
    const fitting = Math.sqrt(inner * kMapHeight / map.cells);
    this.size = Math.max(4, Math.min(22, Math.floor(fitting * 2) / 2));
    this.columns = Math.max(1, Math.floor(inner / this.size));
    const rows = Math.ceil(map.cells / this.columns);
    const height = rows * this.size + 2 * kMargin;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const g = this.canvas.getContext('2d');
    g.scale(scale, scale);
    g.translate(kMargin, kMargin);
    const gap = this.size > 6 ? 1 : 0.5;
    const box = (cell) => [cell % this.columns * this.size, Math.floor(cell / this.columns) * this.size];
    for (let cell = 0; cell < map.cells; ++cell) {
      const [x, y] = box(cell);
      const [begin, end] = this.range(cell);
      const slots = end - begin + 1;
      const side = this.size - gap;
      g.fillStyle = free;
      g.fillRect(x, y, side, side);
      // Stacked from the bottom, each as high as its share.
      let top = y + side;
      const stack = (n, fill) => {
        if (n === 0) return;
        const part = n === slots ? side : Math.max(side * n / slots, 1);
        top = Math.max(top - part, y);
        g.fillStyle = fill;
        g.fillRect(x, top, side, Math.min(part, y + side - top));
      };
      stack(map.cached[cell], cached);
      stack(map.written[cell] - map.cached[cell], request);
      stack(map.empty[cell], empty);
    }
    const ring = (cell, stroke, radius, line) => {
      const [x, y] = box(cell);
      g.beginPath();
      g.arc(x + this.size / 2, y + this.size / 2, radius, 0, 7);
      g.lineWidth = line;
      g.strokeStyle = stroke;
      g.stroke();
    };
    map.violations.forEach((n, cell) => {
      if (n > 0) ring(cell, bad, Math.max(this.size / 2 - 0.5, 3), 2);
    });
    const frame = (cell, line) => {
      const [x, y] = box(cell);
      g.lineWidth = line;
      g.strokeStyle = ink;
      g.strokeRect(x - 1, y - 1, this.size + 1, this.size + 1);
    };
    if (document.activeElement === this.canvas) frame(this.cell, 2);
    if (this.pointed !== null) frame(this.pointed, 1.25);
  }

  table() {
    if (!this.pool || !this.card.querySelector('details').open) return;
    const {map} = this.pool;
    const bands = Math.min(kBands, map.cells);
    const rows = [];
    for (let b = 0; b < bands; ++b) {
      const first = Math.floor(b * map.cells / bands), last = Math.floor((b + 1) * map.cells / bands) - 1;
      const sum = (list) => list.slice(first, last + 1).reduce((a, n) => a + n, 0);
      const [begin, end] = this.range(first, last);
      const written = sum(map.written), cached = sum(map.cached), empty = sum(map.empty);
      const numbers = [written - cached, cached, empty, end - begin + 1 - written - empty,
                       sum(map.violations)];
      rows.push(element('tr', {}, element('th', {scope: 'row'}, `${grouped(begin)} to ${grouped(end)}`),
                        ...numbers.map((n) => element('td', {}, grouped(n)))));
    }
    this.card.querySelector('tbody').replaceChildren(...rows);
  }
}

const maps = [];

function showPools(pools) {
  for (const pool of pools) {
    if (!maps[pool.pool]) {
      const map = maps[pool.pool] = new PoolMap(pool.pool);
      $('pools').append(map.card);
      $('ask-pool').append(element('option', {value: pool.pool}, pool.name));
    }
    maps[pool.pool].show(pool);
  }
}

document.addEventListener('themechange', () => maps.forEach((m) => m.draw()));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => maps.forEach((m) => m.draw()));

// ---------------------------------------------------------------- violations

const violations = {list: [], last: 0};  // newest first

function reasonLinks(v) {
  return element('span', {className: 'reasons'},
                 ...v.reasons.map((reason, i) => element('a', {href: `/errors/${v.pages[i]}`}, reason)));
}

function violationItem(v, isNew) {
  const where = element('div', {className: 'where'});
  if (v.slot >= 0) {
    const button = element('button', {className: 'link', type: 'button'}, `slot ${v.slot}`);
    button.addEventListener('click', () => look(v.pool_number, v.slot));
    where.append(button, ` of ${v.pool}`);
  } else {
    where.append(`pool ${v.pool}, no slot`);
  }
  where.append(v.request > 0 ? ` · request ${v.request}` : ' · no request', ` · ${v.moment}`,
               v.count > 1 ? ` · seen ${v.count} times` : '',
               v.segment ? ` · layer ${v.layer}, ${v.segment}` : '');
  const item = element('li', {},
                       element('div', {className: 'line'}, reasonLinks(v),
                               element('span', {}, `#${v.number} · step ${grouped(v.first_step)}`)),
                       where);
  item.dataset.number = v.number;
  item.dataset.reasons = v.reasons.join(' ');
  if (v.note) item.append(element('div', {className: 'note'}, v.note));
  if (isNew) item.classList.add('new');
  return item;
}

function addViolations(added, isFirst) {
  if (added.length === 0) return;
  const list = $('violations');
  for (const v of added) {
    violations.list.unshift(v);
    list.prepend(violationItem(v, !isFirst));
    for (const reason of v.reasons) {
      if (![...$('filter').options].some((o) => o.value === reason)) {
        $('filter').append(element('option', {value: reason}, reason));
      }
    }
  }
  violations.list.length = Math.min(violations.list.length, kListed);
  while (list.children.length > kListed) list.lastElementChild.remove();
  list.hidden = false;
  $('no-violations').hidden = true;
  filterViolations();
  if (!isFirst) $('announcer').textContent = `${plural(added.length, 'new violation')}`;
}

function filterViolations() {
  const reason = $('filter').value;
  for (const item of $('violations').children) {
    item.hidden = reason !== '' && !item.dataset.reasons.split(' ').includes(reason);
  }
}
$('filter').addEventListener('change', filterViolations);

// ---------------------------------------------------------------- one slot

let looking = 0;  // the latest question: answers to older ones are not shown

async function look(pool, slot) {
  const mine = ++looking;
  $('ask-pool').value = pool;
  $('ask-slot').value = slot;
  try {
    const answer = await ask(`/api/pools/${pool}/slots/${slot}`);
    if (mine === looking) showSlot(answer);
  } catch (e) {
    if (mine !== looking) return;
    $('slot').replaceChildren(element('p', {className: 'empty-state'},
                                      e.status ? e.message.replace(/^.*?: /, '') : 'No answer.'));
  }
}

function sentence(s) {
  const {record: r, ledger: l} = s;
  if (s.state === 'free') return 'Free: nobody holds it.';
  if (s.state === 'empty') return `Held by ${l ? l.owner_name : 'somebody'}, not written yet.`;
  const by = r.owner_name ? ` by ${r.owner_name}` : '';
  const holder = l && l.owner_name !== r.owner_name ? `; now held by ${l.owner_name}` : '';
  return `Written${by} as token ${r.token} at position ${r.position}${holder}.`;
}

function showSlot(s) {
  const {ledger: l} = s;
  const r = s.record && /[^0]/.test(s.record.chain) ? s.record : null;  // zeros: never written, or erased
  const parts = [element('p', {className: 'sentence'}, sentence(s))];
  const rows = [];
  const row = (name, written, now, mustAgree = false) => {
    const differs = mustAgree && s.state === 'written' && written !== now;
    const cells = [written, now].map((v) => element('td', {}, v === undefined ? '' : String(v)));
    const tr = element('tr', {className: differs ? 'differs' : ''},
                       element('th', {scope: 'row'}, differs ? `${name} (differ)` : name), ...cells);
    rows.push(tr);
  };
  if (r || l) {
    row('owner', r?.owner_name, l?.owner_name);
    row('position', r?.position, l?.position, Boolean(r && l));
    row('generation', r?.generation, l?.generation, Boolean(r && l));
    row('token', r?.token);
    row('chain', r?.chain);
    row('digest', r?.kv_digest);
    if (l) row('owner before', undefined, l.previous_owner_name);
    parts.push(element('div', {className: 'scroll'}, element('table', {},
        element('caption', {className: 'hidden-text'}, `Slot ${s.slot} of pool ${s.pool_name}`),
        element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, 'slot ' + grouped(s.slot)),
                                     element('th', {scope: 'col'}, 'record, as written'),
                                     element('th', {scope: 'col'}, 'ledger, as held'))),
        element('tbody', {}, ...rows))));
  }
  if (s.events.length) {
    parts.push(element('h3', {}, 'What happened to it'),
               element('ol', {}, ...s.events.map((e) => element('li', {}, `step ${grouped(e.step)}: ${e.text}`))));
  }
  if (s.violations.length) {
    parts.push(element('h3', {}, 'Violations here'),
               element('ol', {}, ...s.violations.map((v) => element('li', {}, reasonLinks(v), ` step ${grouped(v.first_step)} ${v.note}`))));
  }
  const go = (text, slot) => {
    const button = element('button', {type: 'button', disabled: slot < 0 || slot > maps[s.pool].pool.slots - 1}, text);
    button.addEventListener('click', () => look(s.pool, slot));
    return button;
  };
  parts.push(element('div', {className: 'steps-between'}, go('Slot before', s.slot - 1), go('Slot after', s.slot + 1),
                     ...(l && l.prev >= 0 ? [go('Token before', l.prev)] : [])));
  $('slot').replaceChildren(...parts);
  $('slot').dataset.slot = s.slot;
}

$('ask').addEventListener('submit', (e) => {
  e.preventDefault();
  if ($('ask-pool').value !== '') look(Number($('ask-pool').value), $('ask-slot').value);
});

// ---------------------------------------------------------------- again and again

let run = null, pause = kEvery, timer = null;

async function refresh() {
  const stats = await ask('/api/stats');
  if (run !== null && run !== stats.run) {  // another run: begin anew
    location.reload();
    return;
  }
  const isFirst = run === null;
  run = stats.run;
  showStats(stats);
  if (stats.engine.state !== 'none') {
    const page = await ask(isFirst ? `/api/violations?limit=${kListed}`
                                   : `/api/violations?since=${violations.last}&limit=1000`);
    addViolations(page.violations, isFirst);
    violations.last = page.violations.at(-1)?.number ?? page.last;
    showPools((await ask('/api/pools')).pools);
  }
  pause = stats.engine.state === 'running' ? kEvery : kEveryIdle;
  if (maps.some((m) => !m.known)) pause = kSoon;
  document.body.dataset.state = stats.engine.state;
}

async function again() {
  clearTimeout(timer);
  if (document.hidden) return;  // nobody looks
  try {
    await refresh();
    $('lost').hidden = true;
  } catch {
    $('lost').hidden = false;
    pause = Math.min(2 * pause, kLongestPause);
  }
  timer = setTimeout(again, pause);
}

document.addEventListener('visibilitychange', again);
again();
