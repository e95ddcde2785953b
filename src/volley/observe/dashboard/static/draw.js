// SPDX-License-Identifier: Apache-2.0
// Making elements and drawings. Text is only ever set as text, so what a program calls its columns cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (key === "width%") made.style.width = `${value}%`;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : String(child)));
  return made;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(2)} s`;
  return `${Math.floor(value / 60)} min ${(value % 60).toFixed(0)} s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(value) < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TB`;
}

export function count(value) {
  return value === null || value === undefined ? "" : value.toLocaleString("en");
}

// The operators of Spark's plan as a tree, children below their parents.
export function planGraph(plan) {
  const width = 300, height = 44, gap = 18;
  const nodes = plan.map((node) => ({ ...node, children: [] }));
  const roots = [], open = [];
  for (const node of nodes) {
    while (open.length && open.at(-1).depth >= node.depth) open.pop();
    (open.at(-1)?.children ?? roots).push(node);
    open.push(node);
  }
  let column = 0, deepest = 0;
  const place = (node) => {
    node.children.forEach(place);
    // Above its first child, so that the root of a lopsided plan is in view.
    node.x = node.children.length ? node.children[0].x : column++ * (width + gap);
    node.y = node.depth * (height + gap);
    deepest = Math.max(deepest, node.depth);
  };
  roots.forEach(place);
  const drawing = shape("svg", {
    width: Math.max(1, column) * (width + gap) + gap, height: (deepest + 1) * (height + gap) + gap,
    role: "img", "aria-label": "Spark's plan", class: "plan",
  });
  const inner = shape("g", { transform: `translate(${gap / 2} ${gap / 2})` });
  drawing.append(inner);
  for (const node of nodes) {
    for (const child of node.children) {
      const [fromX, toX] = [child.x + width / 2, node.x + width / 2];
      inner.append(shape("path", { class: "edge", d: `M${fromX} ${child.y}C${fromX} ${child.y - gap},${toX} ${node.y + height + gap},${toX} ${node.y + height}` }));
    }
    const verdict = node.native ? "native" : "spark";
    const why = node.reasons.map((reason) => `${reason.reason} ${reason.what} ${reason.detail}`).join("; ");
    const figures = node.figures ? ` · ${count(node.figures.rows)} rows · ${seconds(node.figures.seconds)} · stage ${node.figures.stage}` : "";
    const handover = node.handover ? ` · handed over to ${node.handover === "spark" ? "Spark" : "Volley"}` : "";
    inner.append(shape("g", { transform: `translate(${node.x} ${node.y})` },
      shape("title", {}, `${node.text}${why ? ` — ${why}` : ""}${figures ? `${figures} · skew ${node.figures.skew}` : ""}`),
      shape("rect", { class: `box ${verdict}`, width, height, rx: 7, "stroke-width": 1.5 }),
      shape("text", { x: 10, y: 18 }, clip(`${node.native ? "✓" : "✗"} ${node.subquery ? "subquery: " : ""}${node.text}`, 38)),
      shape("text", { x: 10, y: 35, class: "dim" }, clip((node.native ? "native" : why || "Spark") + figures + handover, 48))));
  }
  return drawing;
}

// One row a worker and slot, one bar an attempt.
export function timeline(stages, end, open) {
  const bars = stages.flatMap((stage) => stage.tasks.map((task) => ({ ...task, stage: stage.name, end: task.end ?? end, open: task.end === null })));
  bars.sort((a, b) => a.start - b.start);
  const lanes = new Map();
  for (const bar of bars) {
    const rows = lanes.get(bar.worker) ?? lanes.set(bar.worker, []).get(bar.worker);
    let row = rows.findIndex((until) => until <= bar.start + 1e-9);
    if (row < 0) row = rows.push(0) - 1;
    rows[row] = bar.end;
    bar.row = row;
  }
  const left = 150, width = 940, high = 18, top = 26;
  let y = top;
  const starts = new Map();
  for (const [worker, rows] of [...lanes].sort()) {
    starts.set(worker, y);
    y += rows.length * high + 8;
  }
  // From the first task on: planning has its place above.
  const begin = bars.length ? bars[0].start : 0, span = Math.max(end - begin, 1e-6);
  const scale = (value) => left + ((value - begin) / span) * width;
  const drawing = shape("svg", { width: left + width + 20, height: y + 6, role: "img", "aria-label": "Tasks by worker over time", class: "timeline" });
  for (let tick = 0; tick <= 8; tick++) {
    const at = begin + (span * tick) / 8, x = scale(at);
    drawing.append(shape("line", { class: "grid", x1: x, x2: x, y1: top - 6, y2: y }),
      shape("text", { class: "dim", x, y: 14, "text-anchor": "middle" }, seconds(at)));
  }
  for (const [worker, at] of starts) drawing.append(shape("text", { x: 8, y: at + 13 }, clip(worker, 24)));
  for (const bar of bars) {
    const kind = bar.code ? "failed" : bar.open ? "running" : "";
    const wide = Math.max(1.5, scale(bar.end) - scale(bar.start));
    const box = shape("rect", { class: `task ${kind}`, x: scale(bar.start), y: starts.get(bar.worker) + bar.row * high, width: wide, height: high - 3, rx: 2 },
      shape("title", {}, `stage ${bar.stage}, task ${bar.task}, attempt ${bar.attempt}: ${seconds(bar.end - bar.start)}, ${count(bar.rows)} rows, ${bytes(bar.bytes)}${bar.code ? `, ${bar.code}` : ""}`));
    if (open) box.addEventListener("click", () => open(bar.stage));
    drawing.append(box);
    if (wide > 34) drawing.append(shape("text", { x: scale(bar.start) + 4, y: starts.get(bar.worker) + bar.row * high + 12, class: "dim" }, `s${bar.stage}`));
  }
  return drawing;
}

// Stages from left to right in the order of their data, with a line for each exchange, as thick as it is large.
export function flow(stages, exchanges) {
  const level = new Map();
  for (const stage of stages) level.set(stage.name, stage.inputs.reduce((most, name) => Math.max(most, (level.get(name) ?? -1) + 1), 0));
  const width = 190, height = 56, across = 150, down = 22;
  const columns = new Map(), at = new Map();
  for (const stage of stages) {
    const column = level.get(stage.name), row = columns.get(column) ?? 0;
    columns.set(column, row + 1);
    at.set(stage.name, [12 + column * (width + across), 12 + row * (height + down)]);
  }
  const rows = Math.max(1, ...columns.values());
  const drawing = shape("svg", { width: 24 + columns.size * (width + across), height: 24 + rows * (height + down), role: "img", "aria-label": "Exchanges between stages", class: "flow" });
  const most = Math.max(1, ...exchanges.map((exchange) => exchange.bytes));
  for (const exchange of exchanges) {
    const [fx, fy] = at.get(exchange.from), [tx, ty] = at.get(exchange.to);
    const [x1, y1, x2, y2] = [fx + width, fy + height / 2, tx, ty + height / 2];
    const thick = 1 + 9 * Math.sqrt(exchange.bytes / most);
    drawing.append(shape("path", { class: "edge", "stroke-width": thick.toFixed(1), d: `M${x1} ${y1}C${x1 + 60} ${y1},${x2 - 60} ${y2},${x2} ${y2}` },
      shape("title", {}, `${count(exchange.rows)} rows, ${bytes(exchange.bytes)}, waited ${seconds(exchange.wait_seconds)}`)),
      shape("text", { class: "dim", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, `${bytes(exchange.bytes)}, wait ${seconds(exchange.wait_seconds)}`));
  }
  for (const stage of stages) {
    const [x, y] = at.get(stage.name);
    drawing.append(shape("g", { transform: `translate(${x} ${y})` },
      shape("rect", { class: "box native", width, height, rx: 7 }),
      shape("text", { x: 10, y: 20 }, `stage ${stage.name}: ${stage.tasks.length} tasks`),
      shape("text", { x: 10, y: 38, class: "dim" }, `${count(stage.rows)} rows, ${seconds(stage.seconds)}`)));
  }
  return drawing;
}

export function clip(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
