'use strict';
// Draws the figures from the numbers in the page: values under the pointer, drag to zoom, double click to go back,
// legends that switch methods on and off in all figures, tables that sort. Nothing is fetched.
(() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const W = 360, H = 268, LEFT = 60, RIGHT = 12, TOP = 28, BOTTOM = 44;
  const hidden = new Set();
  const panels = [];

  function make(name, attributes, parent, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  const superscript = power => '10' + [...String(power)].map(c => '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['-0123456789'.indexOf(c)]).join('');
  function show(value) {
    if (value === null || value === undefined) return '–';
    const size = Math.abs(value);
    const text = size && (size < 1e-4 || size >= 1e7) ? value.toExponential(2) : Number(value.toPrecision(4)).toLocaleString('en-GB', {maximumFractionDigits: 8});
    return text.replace(/-/g, '−');
  }

  function niceTicks([low, high], wanted) {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(size => size >= raw);
    const ticks = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high * (1 + 1e-12) + 1e-300; place++) ticks.push(Number((place * step).toPrecision(12)));
    return ticks;
  }
  // [place in the axis, label]; a logarithmic axis has places in powers of ten
  function ticksOf(kind, limits, names, wanted) {
    if (kind === 'names') return names.map((name, place) => [place, name]).filter(([place]) => place >= limits[0] && place <= limits[1]);
    const short = value => Math.abs(value) >= 2e4 ? show(value / 1000) + 'k' : show(value);
    if (kind === 'linear') return niceTicks(limits, wanted).map(value => [value, short(value)]);
    const decades = limits[1] - limits[0];
    if (decades > 1.6) {
      const step = Math.ceil(decades / 6), ticks = [];
      for (let power = Math.ceil(limits[0]); power <= limits[1]; power += step) ticks.push([power, Math.abs(power) < 3 ? show(10 ** power) : superscript(power)]);
      return ticks;
    }
    const ticks = [];
    for (let power = Math.floor(limits[0]); power <= limits[1]; power++)
      for (const factor of decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) {
        const place = power + Math.log10(factor);
        if (place >= limits[0] && place <= limits[1]) ticks.push([place, show(factor * 10 ** power)]);
      }
    if (ticks.length > 2) return ticks;
    return niceTicks(limits.map(end => 10 ** end), wanted).filter(value => value > 0).map(value => [Math.log10(value), show(value)]);
  }

  function mark(kind, x, y, colour, parent) {
    if (kind === 's') make('rect', {x: x - 2.8, y: y - 2.8, width: 5.6, height: 5.6, fill: colour}, parent);
    else if (kind === '^') make('path', {d: `M${x} ${y - 3.6}l3.5 6.4h-7z`, fill: colour}, parent);
    else if (kind === 'D') make('path', {d: `M${x} ${y - 3.8}l3.8 3.8l-3.8 3.8l-3.8 -3.8z`, fill: 'var(--page)', stroke: colour, 'stroke-width': 1.2}, parent);
    else if (kind === 'x') make('path', {d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`, stroke: colour, 'stroke-width': 1.5}, parent);
    else make('circle', {cx: x, cy: y, r: 2.8, fill: colour}, parent);
  }

  class Panel {
    constructor(box, data, number) {
      this.data = data;
      this.number = number;
      this.box = document.createElement('div');
      this.box.className = 'panel';
      box.append(this.box);
      this.svg = make('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': data.title}, this.box);
      this.tip = document.createElement('div');
      this.tip.className = 'tip';
      this.tip.hidden = true;
      this.box.append(this.tip);
      this.unit = {x: v => data.x === 'log' ? Math.log10(v) : v, y: v => data.y === 'log' ? Math.log10(v) : v};
      const xs = data.series.flatMap(each => each.x.map(this.unit.x));
      const low = Math.min(...xs), high = Math.max(...xs), margin = 0.03 * (high - low) || 0.5;
      const across = data.x === 'names' ? [-0.5, data.names.length - 0.5] : [low - (data.x === 'linear' && low === 0 ? 0 : margin), high + margin];
      this.full = data.series.length && data.ylim ? {x: across, y: data.ylim.map(this.unit.y)} : null;
      this.view = this.full;
      if (this.full) this.listen();
      this.draw();
    }
    x(v) { return LEFT + (this.unit.x(v) - this.view.x[0]) / (this.view.x[1] - this.view.x[0]) * (W - LEFT - RIGHT); }
    y(v) { return H - BOTTOM - (this.unit.y(v) - this.view.y[0]) / (this.view.y[1] - this.view.y[0]) * (H - TOP - BOTTOM); }
    shown() { return this.data.series.filter(each => !hidden.has(each.label)); }

    draw() {
      const {svg, data} = this;
      svg.replaceChildren();
      make('text', {x: 4, y: 13, class: 'title'}, svg, data.title);
      if (!this.full) { make('text', {x: W / 2, y: H / 2, class: 'middle'}, svg, data.words); return; }
      const id = `clip-${this.number}`;
      make('rect', {x: LEFT, y: TOP - 3, width: W - LEFT - RIGHT, height: H - TOP - BOTTOM + 3}, make('clipPath', {id}, make('defs', {}, svg)));
      const across = ticksOf(data.x, this.view.x, data.names, 5);
      const crowded = data.x === 'names' && 6 * Math.max(0, ...across.map(([, label]) => label.length)) * across.length > W - LEFT - RIGHT;
      for (const [turn, [place, label]] of across.entries()) {
        const at = LEFT + (place - this.view.x[0]) / (this.view.x[1] - this.view.x[0]) * (W - LEFT - RIGHT);
        make('path', {d: `M${at} ${H - BOTTOM}v4`, class: 'axis'}, svg);
        make('text', {x: at, y: H - BOTTOM + 14 + (crowded && turn % 2 ? 8 : 0), class: crowded ? 'middle small' : 'middle'}, svg, label.replace('\n', ' '));
      }
      for (const [place, label] of ticksOf(data.y, this.view.y, [], 5)) {
        const at = H - BOTTOM - (place - this.view.y[0]) / (this.view.y[1] - this.view.y[0]) * (H - TOP - BOTTOM);
        make('path', {d: `M${LEFT} ${at}H${W - RIGHT}`, class: 'grid'}, svg);
        make('text', {x: LEFT - 6, y: at + 3.5, class: 'end'}, svg, label);
      }
      make('path', {d: `M${LEFT} ${TOP - 3}V${H - BOTTOM}H${W - RIGHT}`, class: 'axis'}, svg);
      make('text', {x: (LEFT + W - RIGHT) / 2, y: H - 7, class: 'middle'}, svg, data.xlabel);
      make('text', {x: 0, y: 0, class: 'middle', transform: `translate(11 ${(TOP + H - BOTTOM) / 2}) rotate(-90)`}, svg, data.ylabel);
      const ink = make('g', {'clip-path': `url(#${id})`}, svg);
      for (const [axis, value] of data.lines) {
        if (axis === 'y' && data.y === 'log' && value <= 0) continue;
        make('path', {d: axis === 'x' ? `M${this.x(value)} ${TOP}V${H - BOTTOM}` : `M${LEFT} ${this.y(value)}H${W - RIGHT}`, class: 'line'}, ink);
      }
      for (const each of this.shown()) this.series(each, ink, svg);
    }
    series(each, ink, svg) {
      const colour = each.colour === '#000000' ? 'var(--text)' : each.colour;
      const floor = v => this.data.y === 'log' && !(v > 0) ? 10 ** (this.full.y[0] - 9) : v;
      const ends = each.low.map((low, i) => low === null || each.high[i] === null ? null : [this.y(floor(low)), this.y(floor(each.high[i]))]);
      const known = ends.map((end, i) => i).filter(i => ends[i]);
      if (each.band && known.length > 1) {
        const there = known.map(i => `${this.x(each.x[i])} ${ends[i][1]}`), back = known.map(i => `${this.x(each.x[i])} ${ends[i][0]}`).reverse();
        make('path', {d: `M${[...there, ...back].join('L')}Z`, fill: colour, opacity: 0.15}, ink);
      }
      const points = each.x.map((x, i) => [this.x(x), this.y(each.y[i])]);
      if (each.line && points.length > 1)
        make('path', {d: 'M' + points.map(p => p.join(' ')).join('L'), fill: 'none', stroke: colour, 'stroke-width': each.width, 'stroke-dasharray': each.dashes.map(d => 1.4 * d).join(' ') || 'none'}, ink);
      if (!each.band) for (const i of known) make('path', {d: `M${points[i][0]} ${ends[i][0]}V${ends[i][1]}`, stroke: colour, 'stroke-width': 1.1}, ink);
      points.forEach(([x, y]) => {
        if (y > H - BOTTOM + 2 && each.marker && x >= LEFT && x <= W - RIGHT) make('path', {d: `M${x} ${H - BOTTOM}l3.5 -5h-7z`, fill: colour}, svg);
        else if (y < TOP - 3 && (each.marker || points.every(p => p[1] < TOP - 3)) && x >= LEFT && x <= W - RIGHT) make('path', {d: `M${x} ${TOP - 7}l3.5 5h-7z`, fill: colour}, svg);
        else if (each.marker || points.length === 1) mark(each.marker, x, y, colour, ink);
      });
    }
    place(event) {
      const frame = this.svg.getBoundingClientRect();
      return [(event.clientX - frame.left) * W / frame.width, (event.clientY - frame.top) * H / frame.height, frame.width / W];
    }
    nearest(px, py) {
      let best = null, least = 26;
      for (const each of this.shown()) each.x.forEach((x, i) => {
        const y = Math.max(this.y(each.y[i]), TOP - 4), far = Math.hypot(this.x(x) - px, y - py);
        if (far < least) { least = far; best = [each, i, this.x(x), y]; }
      });
      return best;
    }
    hover(event) {
      const [px, py, scale] = this.place(event), found = this.nearest(px, py);
      this.tip.hidden = !found;
      if (!found) return;
      const [each, i, x, y] = found, {data} = this;
      const across = data.x === 'names' ? data.names[Math.round(each.x[i])] : show(each.x[i]);
      const interval = each.low.length && each.low[i] !== null ? ` [${show(each.low[i])}, ${show(each.high[i])}]` : '';
      this.tip.textContent = `${each.label}\n${data.xlabel}: ${across}\n${data.ylabel}: ${show(each.y[i])}${interval}`;
      this.tip.style.left = `${Math.min(x * scale + 8, this.box.clientWidth - this.tip.offsetWidth - 2)}px`;
      this.tip.style.top = `${Math.max(y * scale - this.tip.offsetHeight - 6, 0)}px`;
    }
    listen() {
      const {svg} = this;
      let from = null, frame = null;
      svg.addEventListener('pointermove', event => {
        if (!from) return this.hover(event);
        const [x, y] = this.place(event);
        frame = frame || make('rect', {class: 'frame'}, svg);
        for (const [key, value] of Object.entries({x: Math.min(x, from[0]), y: Math.min(y, from[1]), width: Math.abs(x - from[0]), height: Math.abs(y - from[1])})) frame.setAttribute(key, value);
        return undefined;
      });
      svg.addEventListener('pointerdown', event => {
        if (event.pointerType === 'touch') return this.hover(event);
        from = this.place(event);
        svg.setPointerCapture(event.pointerId);
        return undefined;
      });
      svg.addEventListener('pointerup', event => {
        const [x, y] = this.place(event), start = from;
        const framed = frame !== null;
        from = frame = null;
        if (start && Math.abs(x - start[0]) > 8 && Math.abs(y - start[1]) > 8) {
          const across = p => this.view.x[0] + (Math.min(Math.max(p, LEFT), W - RIGHT) - LEFT) / (W - LEFT - RIGHT) * (this.view.x[1] - this.view.x[0]);
          const up = p => this.view.y[0] + (H - BOTTOM - Math.min(Math.max(p, TOP), H - BOTTOM)) / (H - TOP - BOTTOM) * (this.view.y[1] - this.view.y[0]);
          this.view = {x: [across(Math.min(x, start[0])), across(Math.max(x, start[0]))], y: [up(Math.max(y, start[1])), up(Math.min(y, start[1]))]};
        }
        if (framed) this.draw();
      });
      svg.addEventListener('dblclick', () => { this.view = this.full; this.draw(); });
      svg.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    }
  }

  for (const box of document.querySelectorAll('[data-panels]')) {
    box.replaceChildren();
    for (const data of JSON.parse(box.dataset.panels)) panels.push(new Panel(box, data, panels.length));
  }
  const switches = [...document.querySelectorAll('.legend button')];
  for (const button of switches) button.addEventListener('click', () => {
    const label = button.dataset.label;
    if (!hidden.delete(label)) hidden.add(label);
    for (const other of switches) if (other.dataset.label === label) other.setAttribute('aria-pressed', String(!hidden.has(label)));
    for (const panel of panels) panel.draw();
  });

  const value = row => column => {
    const text = row.cells[column].textContent.trim().replace(/−/g, '-').replace(/,(?=\d{3})/g, '');
    const number = parseFloat(text.replace(/^d\s=\s/, ''));
    return Number.isNaN(number) ? text : number;
  };
  for (const table of document.querySelectorAll('figure.table table')) [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const order = (a, b) => {
        const [one, two] = [value(a)(column), value(b)(column)];
        if (typeof one !== typeof two) return typeof one === 'number' ? -1 : 1;  // what is no number comes last
        return (down ? -1 : 1) * (typeof one === 'number' ? one - two : one.localeCompare(two));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
})();
