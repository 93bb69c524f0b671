// Draws the charts of a Lakegate report and fills its long tables. Options and rows come as JSON from charts.py and
// html.py; here is what only a browser can do: shapes, the colours of the theme, tooltips, the keyboard.
'use strict';
(() => {
  const PRINT_WIDTH_PX = 660; // fits between the margins of A4 and of Letter
  const PAGE_ROWS = 500; // a table of ten thousand rows takes a browser seconds to lay out
  const NOTHING = '–';
  const tables = new Map();
  const byId = new Map(); // the drawings

  // ---- colours: `var(--name)` in an option stands for the value that the name has in the theme of the moment
  const known = new Map(); // asking the style sheet once for each of ten thousand items takes longer than drawing them
  const colour = (name) => {
    if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name.slice(4, -1)).trim());
    return known.get(name);
  };
  const themed = (node, key) => {
    if (typeof node === 'string') return node.startsWith('var(--') ? colour(node) : node;
    if (node === null || typeof node !== 'object' || key === 'data') return node;
    if (Array.isArray(node)) return node.map((item) => themed(item));
    return Object.fromEntries(Object.entries(node).map(([name, item]) => [name, themed(item, name)]));
  };

  // ---- shapes. Items that would cover the same pixels as one already drawn in this pass are left out, so that ten
  // thousand turns cost about as much as the screen has columns; `picked` is the item that the reader stands on.
  const isPicked = (drawing, params) => drawing.picked === params.dataIndex && drawing.pickedSeries === params.seriesId;
  const isDrawn = (drawing, params, kind, pixel) => {
    if (isPicked(drawing, params)) return false;
    const place = kind * 65536 + pixel;
    params.context.drawn ??= new Set();
    if (params.context.drawn.has(place)) return true;
    params.context.drawn.add(place);
    return false;
  };
  const rect = (x, y, width, height, style, more) => ({ type: 'rect', shape: { x, y, width, height }, style, ...more });
  const target = (x, y, width, height) =>
    rect(x + Math.min(0, (width - 10) / 2), y, Math.max(10, width), height, { fill: 'transparent' }, { emphasisDisabled: true });
  const letter = (text, fill, x, y) => ({
    type: 'text',
    silent: true,
    style: { text, fill, x, y, align: 'center', verticalAlign: 'middle', font: 'bold 10px system-ui, sans-serif' },
  });
  const hovered = () => ({ emphasis: { style: { stroke: colour('var(--ink)'), lineWidth: 1.5 } } });

  const shapes = {
    turns: (drawing) => (params, api) => {
      const [lane, cutOff] = [api.value(0), api.value(5)];
      const [left, y] = api.coord([api.value(1), lane]);
      const right = api.coord([api.value(3), lane])[0];
      const isGranted = !Number.isNaN(api.value(2));
      const granted = isGranted ? api.coord([api.value(2), lane])[0] : right;
      const outcome = api.value(4);
      const mark = drawing.marks[outcome];
      const fill = drawing.colours[outcome];
      if (right - left < 2) {
        if (isDrawn(drawing, params, lane * 16 + outcome, Math.round(left))) return null;
        const bar = rect(left - 0.5, y - 10, 2, 20, { fill }, { emphasisDisabled: true, z2: mark ? 1 : 0 });
        if (!mark || isDrawn(drawing, params, lane * 16 + 15, Math.round(right / 9))) return bar;
        return { type: 'group', children: [bar, letter(mark, fill, left + 0.5, y - 15)] };
      }
      const children = [target(left, y - 14, right - left, 28)];
      if (granted - left > 0.5) children.push(rect(left, y - 4, granted - left, 8, { fill, opacity: 0.32 }));
      if (isGranted) {
        const style = cutOff ? { fill, opacity: 0.75, stroke: fill, lineDash: [3, 2] } : { fill };
        children.push(rect(granted, y - 10, Math.max(1.5, right - granted), 20, style, hovered()));
      } else {
        children.push(rect(right - 1, y - 8, 2, 16, { fill }));
      }
      if (mark && !isDrawn(drawing, params, lane * 16 + 15, Math.round(right / 9))) {
        if (!isGranted) children.push(letter(mark, fill, right + 7, y));
        else if (right - granted > 14) children.push(letter(mark, colour('var(--paper)'), (granted + right) / 2, y));
        else children.push(letter(mark, fill, (granted + right) / 2, y - 15));
      }
      return { type: 'group', children };
    },
    held: (drawing) => (params, api) => {
      const [left, y] = api.coord([api.value(1), 0]);
      const right = api.coord([api.value(2), 0])[0];
      const overlapped = api.value(3);
      if (right - left < 2 && isDrawn(drawing, params, overlapped, Math.round(left))) return null;
      const fill = colour(overlapped ? 'var(--bad)' : 'var(--lock)');
      // A hair's breadth between neighbours shows where one turn ends and the next begins.
      const width = Math.max(1.5, right - left - (right - left > 6 ? 1 : 0));
      return rect(left, y - (overlapped ? 10 : 6), width, overlapped ? 20 : 12, { fill }, hovered());
    },
    commits: (drawing) => (params, api) => {
      const [place, added, removed, job] = [api.value(0), api.value(1), api.value(2), api.value(3)];
      const fill = drawing.colours[job];
      const [x, zero] = api.coord([place, 0]);
      const step = api.size([1, 0])[0];
      const width = Math.min(28, Math.max(1, step * 0.7));
      const area = params.coordSys;
      if (api.value(4)) {
        if (step < 3 && isDrawn(drawing, params, job * 2, Math.round(x / 2))) return null;
        if (step < 3) return { type: 'circle', shape: { cx: x, cy: zero, r: 1.5 }, style: { fill, opacity: 0.8 }, emphasisDisabled: true };
        const dot = { type: 'circle', shape: { cx: x, cy: zero, r: 2.5 }, style: { fill, opacity: 0.8 }, ...hovered() };
        return { type: 'group', children: [target(x - width / 2, zero - 8, width, 16), dot] };
      }
      const up = added ? Math.max(2, zero - api.coord([place, added])[1]) : 0;
      const down = removed ? Math.max(2, api.coord([place, removed])[1] - zero) : 0;
      const heights = (job * 256 + Math.round(up)) * 256 + Math.round(down);
      if (step < 1 && isDrawn(drawing, params, heights, Math.round(x))) return null;
      const bars = [];
      if (step >= 6) bars.push(rect(x - step / 2, area.y, step, area.height, { fill: 'transparent' }, { emphasisDisabled: true }));
      if (up) bars.push(rect(x - width / 2, zero - up, width, up, { fill }, hovered()));
      if (down) bars.push(rect(x - width / 2, zero, width, down, { fill, opacity: 0.55 }, hovered()));
      return { type: 'group', children: bars };
    },
    dots: (drawing) => (params, api) => {
      const [x, y] = api.coord([api.value(0), api.value(1)]);
      // Spread over the lane by the row's number, the same at every drawing: dots of equal length stay apart.
      const cy = y + (((api.value(2) * 7) % 15) - 7) * 1.3;
      if (isDrawn(drawing, params, api.value(1) * 1024 + Math.round(cy / 2), Math.round(x / 2))) return null;
      return { type: 'circle', shape: { cx: x, cy, r: 2.5 }, style: { fill: drawing.colours[0], opacity: 0.55 }, ...hovered() };
    },
    boxes: (drawing) => (params, api) => {
      const [low, median, high, p95] = [0, 1, 2, 3].map((place) => api.coord([api.value(place), api.value(4)])[0]);
      const y = api.coord([0, api.value(4)])[1];
      const stroke = colour('var(--ink-soft)');
      const line = (x, half, lineWidth) => ({ type: 'line', shape: { x1: x, y1: y - half, x2: x, y2: y + half }, style: { stroke, lineWidth } });
      const box = rect(low - 1, y - 13, Math.max(2, high - low + 2), 26, { fill: colour('var(--sunken)'), stroke, lineWidth: 1 }, hovered());
      return { type: 'group', children: [box, line(median, 13, 2.5), line(p95, 6, 1.5)] };
    },
  };

  // ---- tooltips: the row of the table behind the chart, as text, so that nothing in the data can become markup
  const rowOf = (drawing, seriesId, value) => {
    const table = tables.get(drawing.tables[seriesId]);
    return { table, cells: table.rows[value[value.length - 1]] };
  };
  const heading = (table, cells) => table.title.replace(/\{(\d+)\}/g, (_, place) => cells[place]);
  const add = (parent, name, text) => {
    const element = parent.appendChild(document.createElement(name));
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const card = (drawing, seriesId, value) => {
    const { table, cells } = rowOf(drawing, seriesId, value);
    const box = document.createElement('div');
    box.className = 'card';
    add(box, 'strong', heading(table, cells));
    const list = add(box, 'dl');
    table.headings.forEach((name, place) => {
      if (cells[place] === NOTHING || table.title.includes(`{${place}}`)) return;
      add(list, 'dt', name);
      add(list, 'dd', cells[place]);
    });
    return box;
  };

  // ---- the long tables, one page of rows at a time, made when they are first opened
  const fill = (frame, table, first, scrolled) => {
    const grid = document.createElement('table');
    grid.id = table.id;
    const cell = (row, name, place, text) => {
      const element = add(row, name, text);
      if (table.numeric.includes(place)) element.className = 'number';
      return element;
    };
    const head = add(add(grid, 'thead'), 'tr');
    table.headings.forEach((name, place) => { cell(head, 'th', place, name).scope = 'col'; });
    const body = add(grid, 'tbody');
    table.rows.slice(first, first + PAGE_ROWS).forEach((cells, offset) => {
      const row = add(body, 'tr');
      const link = table.links[first + offset];
      if (table.anchors.length) row.id = table.anchors[first + offset];
      cells.forEach((text, place) => {
        const isLink = link && place === table.linkColumn;
        const element = cell(row, 'td', place, isLink ? undefined : text);
        if (isLink) add(element, 'a', text).href = `#${link}`;
      });
    });
    frame.replaceChildren(grid);
    frame.scrollTop = scrolled;
  };
  const filled = new WeakMap(); // details → fills its table again
  const shown = new Map(); // table → a function that opens it at a row
  const wire = (details) => {
    const frame = details.querySelector('.scrolling');
    const pages = details.querySelector('.pages');
    let first = 0;
    const show = (scrolled = 0) => {
      const table = tables.get(details.dataset.table);
      first = Math.min(first, PAGE_ROWS * Math.floor((table.rows.length - 1) / PAGE_ROWS));
      fill(frame, table, first, scrolled);
      const last = Math.min(first + PAGE_ROWS, table.rows.length);
      pages.hidden = table.rows.length <= PAGE_ROWS;
      pages.querySelector('span').textContent = `rows ${first + 1} to ${last} of ${table.rows.length}`;
      const [before, after] = pages.querySelectorAll('button');
      [before.disabled, after.disabled] = [first === 0, last === table.rows.length];
    };
    details.addEventListener('toggle', () => { if (details.open && !frame.firstChild) show(); });
    shown.set(details.dataset.table, (row) => {
      first = row - (row % PAGE_ROWS);
      details.open = true;
      show();
    });
    pages.addEventListener('click', (event) => {
      if (!event.target.dataset.page) return;
      first += PAGE_ROWS * Number(event.target.dataset.page);
      show();
    });
    filled.set(details, () => { if (frame.firstChild) show(frame.scrollTop); });
  };

  // ---- links to a row of a long table: the table is opened at that row first
  const follow = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    for (const table of name ? tables.values() : []) {
      const row = table.anchors.indexOf(name);
      if (row < 0 || !shown.has(table.id)) continue;
      shown.get(table.id)(row);
      for (const aimed of document.querySelectorAll('tr.aimed')) aimed.classList.remove('aimed');
      const target = document.getElementById(name);
      target.classList.add('aimed');
      target.scrollIntoView({ block: 'center' });
    }
  };
  const go = (anchor) => {
    if (location.hash === `#${anchor}`) follow();
    else location.hash = anchor;
  };

  // ---- drawing
  // Under the item, or over it where the window ends; beside the chart's edge never, so that a narrow screen shows it whole.
  const besideItem = (drawing) => (point, _, element, __, size) => {
    const [width, height] = size.contentSize;
    const top = document.getElementById(drawing.id).getBoundingClientRect().top;
    const isBelow = top + point[1] + 24 + height < innerHeight || top + point[1] - 24 - height < 0;
    return [Math.max(0, Math.min(point[0] + 12, size.viewSize[0] - width)), isBelow ? point[1] + 24 : point[1] - 24 - height];
  };
  const option = (drawing) => {
    drawing.colours = drawing.palette.map(colour);
    const drawn = themed(drawing.option);
    drawn.textStyle = { fontFamily: getComputedStyle(document.body).fontFamily };
    drawn.tooltip = {
      ...drawn.tooltip,
      position: besideItem(drawing),
      formatter: (item) => card(drawing, item.seriesId, item.value),
      backgroundColor: colour('var(--paper)'),
      borderColor: colour('var(--axis)'),
      textStyle: { color: colour('var(--ink)') },
      padding: [8, 12],
    };
    drawn.series.forEach((series) => {
      const shape = shapes[series.id](drawing);
      series.renderItem = (params, api) => {
        const item = shape(params, api);
        // The picked item lies on top: after drawing, ECharts asks again what is under the tooltip, and shows that.
        if (item && isPicked(drawing, params)) for (const part of [item, ...(item.children ?? [])]) part.z2 = 10;
        return item;
      };
    });
    if (drawing.ticks.length) {
      const nearest = (value) => drawing.ticks.reduce((best, tick) => (Math.abs(tick[0] - value) < Math.abs(best[0] - value) ? tick : best));
      drawn.xAxis.axisLabel.formatter = (value) => nearest(value)[1];
    }
    if (drawn.yAxis.type === 'value') drawn.yAxis.axisLabel.formatter = (value) => Math.abs(value).toLocaleString('en');
    return drawn;
  };
  const see = (drawing, start, end) => {
    const width = Math.min(100, Math.max(0.001, end - start));
    const from = Math.min(100 - width, Math.max(0, start));
    drawing.chart.dispatchAction({ type: 'dataZoom', dataZoomIndex: 0, start: from, end: from + width });
  };
  const acts = {
    earlier: (drawing, [start, end]) => see(drawing, start - (end - start) / 2, end - (end - start) / 2),
    later: (drawing, [start, end]) => see(drawing, start + (end - start) / 2, end + (end - start) / 2),
    in: (drawing, [start, end]) => see(drawing, start + (end - start) / 4, end - (end - start) / 4),
    out: (drawing, [start, end]) => see(drawing, start - (end - start) / 2, end + (end - start) / 2),
    all: (drawing) => see(drawing, 0, 100),
  };

  // ---- one item at a time, for the keyboard and for the "Show" buttons
  const mainSeries = (drawing) => drawing.option.series.findIndex((series) => series.id !== 'boxes');
  const placeOf = (drawing, value) => {
    const axis = drawing.option.xAxis;
    if (axis.type === 'category') return [value[0], value[0] + 1].map((at) => (100 * at) / axis.data.length);
    return [value[1], value[3]].map((at) => (100 * (at - axis.min)) / (axis.max - axis.min));
  };
  const pick = (drawing, index) => {
    const series = mainSeries(drawing);
    const { id, data } = drawing.option.series[series];
    drawing.picked = Math.min(data.length - 1, Math.max(0, index));
    drawing.pickedSeries = id;
    const value = data[drawing.picked];
    if (drawing.option.dataZoom) {
      const [from, to] = placeOf(drawing, value);
      const [start, end] = drawing.seen;
      const isSeen = from >= start && to <= end;
      const width = Math.max(end - start, (to - from) * 1.5);
      // Drawn again even when it is in view: it may have been left out beside an equal neighbour.
      if (isSeen) see(drawing, start, end);
      else see(drawing, (from + to - width) / 2, (from + to + width) / 2);
    } else {
      drawing.chart.setOption({ series: drawing.option.series.map(({ id: name }) => ({ id: name })) });
    }
    const item = { seriesIndex: series, dataIndex: drawing.picked };
    drawing.chart.dispatchAction({ type: 'downplay', seriesIndex: series });
    drawing.chart.dispatchAction({ type: 'highlight', ...item });
    drawing.chart.dispatchAction({ type: 'showTip', ...item });
    const { table, cells } = rowOf(drawing, id, value);
    document.getElementById('spoken').textContent = heading(table, cells);
  };
  const keys = {
    ArrowRight: (drawing) => pick(drawing, (drawing.picked ?? -1) + 1),
    ArrowLeft: (drawing) => pick(drawing, (drawing.picked ?? 1) - 1),
    Home: (drawing) => pick(drawing, 0),
    End: (drawing) => pick(drawing, Infinity),
    Escape: (drawing) => drawing.chart.dispatchAction({ type: 'hideTip' }),
    '+': (drawing) => drawing.option.dataZoom && acts.in(drawing, drawing.seen),
    '-': (drawing) => drawing.option.dataZoom && acts.out(drawing, drawing.seen),
    0: (drawing) => drawing.option.dataZoom && acts.all(drawing),
  };

  const draw = (drawing, element) => {
    drawing.seen = [0, 100];
    byId.set(drawing.id, drawing);
    drawing.chart = echarts.init(element, null, { renderer: 'canvas' });
    drawing.chart.setOption(option(drawing));
    drawing.chart.on('click', (item) => {
      const { table } = rowOf(drawing, item.seriesId, item.value);
      const link = table.links[item.value[item.value.length - 1]];
      if (link) go(link);
    });
    drawing.chart.on('datazoom', (event) => {
      const { start, end } = event.batch ? event.batch[0] : event;
      drawing.seen = [start, end];
    });
    // ECharts swallows every turn of the wheel over a chart that can zoom, also those that it does not act upon.
    const passOver = (event) => { if (!event.ctrlKey) event.stopPropagation(); };
    for (const name of ['wheel', 'mousewheel']) element.addEventListener(name, passOver, { capture: true, passive: true });
    element.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      keys[event.key](drawing);
    });
    new ResizeObserver(() => { if (!document.documentElement.classList.contains('print')) drawing.chart.resize(); }).observe(element);
  };
  // New data for a chart that is drawn: the reader stays at the time in view, or at the end, and on the picked item.
  const update = (drawing, fresh) => {
    const [before, [start, end]] = [drawing.option, drawing.seen];
    const series = mainSeries(drawing);
    const picked = before.series[series].data[drawing.picked];
    Object.assign(drawing, fresh);
    const { data } = drawing.option.series[series];
    const place = picked ? data.findIndex((item) => item[1] === picked[1] && item[3] === picked[3]) : -1;
    drawing.picked = place < 0 ? undefined : place;
    drawing.chart.resize();
    drawing.chart.setOption(option(drawing));
    const axis = drawing.option.xAxis;
    const moved = (percent) => (100 * (before.xAxis.min + ((before.xAxis.max - before.xAxis.min) * percent) / 100 - axis.min)) / (axis.max - axis.min);
    if (end > 99.9) see(drawing, start, end);
    else see(drawing, moved(start), moved(end));
  };
  // Draws the charts of a report, and fills its tables: once on a page from the disk, at each change on a live page.
  const show = (report) => {
    tables.clear();
    for (const table of report.tables) tables.set(table.id, table);
    for (const [id, { chart }] of byId) {
      if (chart.getDom().isConnected) continue;
      chart.dispose();
      byId.delete(id);
    }
    for (const fresh of report.charts) {
      if (byId.has(fresh.id)) update(byId.get(fresh.id), fresh);
      else draw({ ...fresh }, document.getElementById(fresh.id));
    }
    for (const details of document.querySelectorAll('details[data-table]')) {
      if (filled.has(details)) filled.get(details)();
      else wire(details);
    }
  };
  document.addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (!button) return;
    if (button.dataset.do) {
      const drawing = byId.get(button.parentElement.dataset.chart);
      acts[button.dataset.do](drawing, drawing.seen);
    } else if (button.dataset.row) {
      const drawing = byId.get(button.dataset.chart);
      const [from, to] = placeOf(drawing, drawing.option.series[0].data[button.dataset.row]);
      const width = Math.min(100, Math.max(8, (to - from) * 4));
      see(drawing, (from + to - width) / 2, (from + to + width) / 2);
      document.getElementById(drawing.id).focus({ preventScroll: true });
      document.getElementById(drawing.id).scrollIntoView({ block: 'center' });
      pick(drawing, Number(button.dataset.row));
    }
  });

  document.addEventListener('click', (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) follow(); // no change of the address, so no event of its own
  });
  addEventListener('hashchange', follow);

  const redraw = () => {
    known.clear();
    for (const drawing of byId.values()) {
      const [start, end] = drawing.seen;
      drawing.chart.setOption(option(drawing));
      if (drawing.option.dataZoom) see(drawing, start, end);
    }
  };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  // On paper: light colours, and a width that the paper has; painted at once, because the printer does not wait a frame.
  const redrawAt = (width, isPrint) => {
    document.documentElement.classList.toggle('print', isPrint);
    redraw();
    for (const { chart } of byId.values()) {
      chart.resize({ width });
      chart.getZr().refreshImmediately();
    }
  };
  addEventListener('beforeprint', () => redrawAt(PRINT_WIDTH_PX, true));
  addEventListener('afterprint', () => redrawAt('auto', false));

  const data = document.getElementById('report-data');
  if (data) {
    show(JSON.parse(data.textContent));
    follow();
  } else globalThis.lakegate = { show };
})();
