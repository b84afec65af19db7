"use strict";
// Draws the page from the data beside it: charts as inline SVG, heat maps on canvas. No library, no network.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const dark = matchMedia("(prefers-color-scheme: dark)");
// Chosen to differ in lightness too; from the seventh on the line is dashed.
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#00875f", "#a83a96", "#a87500", "#1f9ac9", "#6a4cc0", "#8c4f3f", "#5c676b", "#c2185b", "#4b8b00", "#1b2a6b"],
  dark: ["#5ab0f0", "#ff8a50", "#3dd1a5", "#ea8fd6", "#e8b83a", "#7fdbff", "#b6a2ff", "#d9a08c", "#b5c1c4", "#ff6f9f", "#a4db4a", "#8fa6ff"],
};
const colour = (policy) => COLOURS[dark.matches ? "dark" : "light"][policy % 12];
const dash = (policy) => (policy % 12 >= 6 ? "6 3" : "none");
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

// What is shown: policies by number, and one offered load.
const state = { shown: new Set(), load: data.loads.length - 1, map: 0 };
const ranking = [...data.ranking];
const initial = data.policies.length <= 6 ? ranking : [...ranking.slice(0, 4), ...["round_robin", "random"].map((name) => data.policies.indexOf(name)).filter((p) => p >= 0)];
initial.forEach((policy) => state.shown.add(policy));
state.load = data.best_load;
state.map = ranking[0];
const groupOf = (policy, load = state.load) => data.groups.find((group) => group.policy === policy && group.load === load);
const shownGroups = () => data.policies.map((_, policy) => policy).filter((policy) => state.shown.has(policy)).map((policy) => groupOf(policy)).filter(Boolean);
const number = (group, name) => (group.numbers[name] ? group.numbers[name].mean : null);

function format(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const decimals = Math.max(0, Math.min(3, digits - 1 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en", { maximumFractionDigits: decimals, minimumFractionDigits: 0 });
}
const milliseconds = (value) => (value === null ? "–" : value >= 10000 ? format(value / 1000) + " s" : format(value) + " ms");
const percent = (value) => (value === null ? "–" : format(value * 100) + " %");
function loadName(load) {
  if (data.ceilings) return "at the ceiling";
  if (load === null) return "own pace";
  return data.load_unit === "rate" ? format(load) + "/s" : format(load) + " " + data.load_unit;
}

// Tooltip.
const tip = $("tip");
function showTip(event, html) {
  tip.innerHTML = html;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 16 + box.width > innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX - box.width - 12 : event.clientX + 16) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 6)) + "px";
}
const hideTip = () => { tip.hidden = true; };
const tipRow = (policy, text) => `<div><span><i style="background:${colour(policy)}"></i>${escape(data.policies[policy])}</span><b>${text}</b></div>`;

// Scales and axes.
function niceStep(span, count) {
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw) || raw;
}
function linear(low, high, from, to, count = 5) {
  const step = niceStep((high - low) || 1, count), ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  return { at: (value) => from + ((value - low) / ((high - low) || 1)) * (to - from), ticks, invert: (x) => low + ((x - from) / (to - from)) * (high - low) };
}
function logarithmic(low, high, from, to) {
  const a = Math.log10(low), b = Math.log10(high), ticks = [];
  for (let power = Math.floor(a); power <= Math.ceil(b); power++)
    for (const m of b - a > 2.2 ? [1] : b - a > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) {
      const tick = m * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  return { at: (value) => from + ((Math.log10(Math.max(value, low)) - a) / (b - a || 1)) * (to - from), ticks, invert: (x) => 10 ** (a + ((x - from) / (to - from)) * (b - a)) };
}

/// A plot with axes. `lines` are {policy, points: [x, y], band}; `onHover` gives the tooltip for an x.
function plot(section, options) {
  const { title, note, lines, x, y, marks = [], formatX, formatY, labelX, onHover } = options;
  const width = Math.max(280, section.clientWidth - 32), height = Math.max(240, Math.min(330, width * 0.55));
  const left = 54, right = 14, top = 20, bottom = 42;
  const xs = (x.log ? logarithmic : linear)(x.low, x.high, left, width - right, Math.max(3, Math.floor(width / 110)));
  const ys = linear(y.low, y.high, height - bottom, top, 5);
  const parts = [];
  for (const tick of ys.ticks) parts.push(`<line x1="${left}" x2="${width - right}" y1="${ys.at(tick)}" y2="${ys.at(tick)}" stroke="var(--grid)"/><text x="${left - 8}" y="${ys.at(tick) + 4}" text-anchor="end">${formatY(tick)}</text>`);
  for (const tick of xs.ticks) parts.push(`<line x1="${xs.at(tick)}" x2="${xs.at(tick)}" y1="${height - bottom}" y2="${height - bottom + 4}" stroke="var(--line)"/><text x="${xs.at(tick)}" y="${height - bottom + 18}" text-anchor="middle">${formatX(tick)}</text>`);
  parts.push(`<line x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}" stroke="var(--line)"/><text x="${(left + width - right) / 2}" y="${height - 6}" text-anchor="middle">${escape(labelX)}</text>`);
  for (const mark of marks) {
    if (mark.x !== undefined && mark.x >= x.low && mark.x <= x.high) {
      const at = xs.at(mark.x), flip = at > width - 150;
      const ink = mark.soft ? "var(--soft)" : "var(--slo)";
      parts.push(`<line x1="${at}" x2="${at}" y1="${top - 8}" y2="${height - bottom}" stroke="${ink}" stroke-dasharray="5 4"/><text x="${at + (flip ? -5 : 5)}" y="${top - 4}" text-anchor="${flip ? "end" : "start"}" style="fill:${ink}">${escape(mark.text)}</text>`);
    }
    if (mark.y !== undefined) parts.push(`<line x1="${left}" x2="${width - right}" y1="${ys.at(mark.y)}" y2="${ys.at(mark.y)}" stroke="var(--slo)" stroke-dasharray="5 4"/><text x="${left + 6}" y="${ys.at(mark.y) + 14}" style="fill:var(--slo)">${escape(mark.text)}</text>`);
    if (mark.diagonal) parts.push(`<line x1="${xs.at(x.low)}" y1="${ys.at(x.low)}" x2="${xs.at(Math.min(x.high, y.high))}" y2="${ys.at(Math.min(x.high, y.high))}" stroke="var(--soft)" stroke-dasharray="2 4"/>`);
  }
  for (const { policy, points, dots } of lines) {
    const path = points.map(([px, py], i) => `${i ? "L" : "M"}${xs.at(px).toFixed(1)} ${ys.at(py).toFixed(1)}`).join("");
    parts.push(`<path class="series" data-policy="${policy}" d="${path}" fill="none" stroke="${colour(policy)}" stroke-width="2" stroke-dasharray="${dash(policy)}" stroke-linejoin="round"/>`);
    if (dots) for (const [px, py] of points) parts.push(`<circle cx="${xs.at(px)}" cy="${ys.at(py)}" r="3.5" fill="${colour(policy)}"/>`);
  }
  section.innerHTML = `<h2>${escape(title)}</h2><p class="note">${note}</p><svg role="img" aria-label="${escape(title)}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${parts.join("")}<line class="cursor" y1="${top}" y2="${height - bottom}" stroke="var(--soft)" stroke-width="1" visibility="hidden"/></svg>`;
  const svg = section.querySelector("svg"), cursor = svg.querySelector(".cursor");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * (width / box.width);
    if (px < left || px > width - right) { cursor.setAttribute("visibility", "hidden"); return hideTip(); }
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px); cursor.setAttribute("visibility", "visible");
    showTip(event, onHover(xs.invert(px)));
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
}

function empty(section, title, text) {
  section.innerHTML = `<h2>${escape(title)}</h2><p class="note">${escape(text)}</p>`;
}

// The share of requests answered within a time, from the times at the levels.
function shareWithin(curve, answered, time) {
  let below = 0;
  while (below < curve.length && curve[below] <= time) below++;
  if (below === 0) return 0;
  if (below === curve.length) return answered;
  const [a, b] = [curve[below - 1], curve[below]], [la, lb] = [data.levels[below - 1], data.levels[below]];
  return ((la + ((time - a) / (b - a || 1)) * (lb - la)) / 1000) * answered;
}
function timeAt(curve, answered, share) {
  const level = (share / answered) * 1000;
  const above = data.levels.findIndex((known) => known >= level);
  return above < 0 || !curve.length ? null : curve[above];
}
function distribution(section, key, title, note, slo, goal) {
  const groups = shownGroups().filter((group) => group[key].length);
  if (!groups.length) return empty(section, title, "No request of the policies shown has this time.");
  const answered = (group) => (key === "ttft" ? group.answered : 1);
  const all = groups.flatMap((group) => group[key]);
  // A few multiples are told apart better on a linear axis.
  const log = Math.max(...all) > 8 * Math.max(0.1, Math.min(...all)) || key === "ttft";
  const low = log ? Math.max(0.1, Math.min(...all, slo) * 0.9) : 0, high = Math.max(...all, slo * 1.2) * 1.05;
  plot(section, {
    title, note, labelX: log ? "milliseconds, logarithmic" : "milliseconds", x: { low, high, log }, y: { low: 0, high: 1 }, formatX: (v) => format(v), formatY: (v) => Math.round(v * 100) + " %",
    marks: [{ x: slo, text: `SLO ${format(slo)} ms` }, { y: goal, text: `${format(goal * 100)} %` }],
    lines: groups.map((group) => ({ policy: group.policy, points: group[key].map((time, i) => [time, (data.levels[i] / 1000) * answered(group)]) })),
    onHover: (time) => `<b>within ${milliseconds(time)}</b>` + groups.map((group) => [group.policy, shareWithin(group[key], answered(group), time)]).sort((a, b) => b[1] - a[1]).map(([policy, share]) => tipRow(policy, percent(share))).join(""),
  });
}

function goodput(section) {
  if (data.ceilings) return bars(section, "Ceiling: the highest rate inside the SLO", "Requests per second that each policy sustains; the whisker is the standard deviation over the seeds.", "ceiling", null, (v) => format(v) + "/s");
  if (data.loads.length < 2) return bars(section, "Goodput", `Requests per second answered within the SLO; the mark is what was offered.`, "goodput", "offered", (v) => format(v) + "/s");
  const shown = data.policies.map((_, policy) => policy).filter((policy) => state.shown.has(policy));
  const points = (policy) => data.groups.filter((group) => group.policy === policy).map((group) => [number(group, "offered"), number(group, "goodput")]).sort((a, b) => a[0] - b[0]);
  const all = shown.flatMap(points);
  if (!all.length) return empty(section, "Goodput over offered rate", "No policy is shown.");
  const high = Math.max(...all.map(([x]) => x)) * 1.05;
  plot(section, {
    title: "Goodput over offered rate", note: "Requests per second answered within the SLO, against those offered. On the dotted line all are.",
    labelX: "offered, requests per second", x: { low: 0, high }, y: { low: 0, high }, formatX: (v) => format(v), formatY: (v) => format(v), marks: [{ diagonal: true }],
    lines: shown.map((policy) => ({ policy, points: points(policy), dots: true })),
    onHover: (x) => {
      const near = shown.map((policy) => [policy, points(policy).reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best))]);
      return `<b>${format(near[0][1][0])} offered per s</b>` + near.sort((a, b) => b[1][1] - a[1][1]).map(([policy, point]) => tipRow(policy, format(point[1]) + "/s")).join("");
    },
  });
}

// A bar for each policy, the best first, with a mark to compare with.
function bars(section, title, note, key, markKey, text, high) {
  const groups = shownGroups().filter((group) => number(group, key) !== null).sort((a, b) => number(b, key) - number(a, key));
  if (!groups.length) return empty(section, title, "No policy is shown.");
  const width = Math.max(280, section.clientWidth - 32), row = Math.max(28, Math.min(46, 240 / groups.length)), left = Math.min(170, width * 0.38), right = 66, height = groups.length * row + 10;
  const most = high || Math.max(...groups.flatMap((group) => [number(group, key), markKey ? number(group, markKey) : 0])) * 1.02 || 1;
  const xs = linear(0, most, left, width - right);
  const parts = groups.map((group, i) => {
    const y = i * row + 6, value = group.numbers[key], mark = markKey ? number(group, markKey) : null, middle = y + (row - 10) / 2;
    const whisker = value.deviation > 0 ? `<line x1="${xs.at(Math.max(0, value.mean - value.deviation))}" x2="${xs.at(Math.min(most, value.mean + value.deviation))}" y1="${middle}" y2="${middle}" stroke="var(--ink)" stroke-width="1.5"/>` : "";
    return `<g class="bar" data-policy="${group.policy}"><rect x="0" y="${y - 4}" width="${width}" height="${row - 2}" fill="transparent"/><text class="value" x="${left - 8}" y="${middle + 4}" text-anchor="end">${escape(data.policies[group.policy])}</text><rect x="${left}" y="${y}" width="${Math.max(0, xs.at(value.mean) - left)}" height="${row - 10}" rx="3" fill="${colour(group.policy)}"/>${whisker}${mark === null ? "" : `<line x1="${xs.at(mark)}" x2="${xs.at(mark)}" y1="${y - 3}" y2="${y + row - 7}" stroke="var(--ink)" stroke-width="2"/>`}<text class="value" x="${Math.max(xs.at(value.mean), mark === null ? 0 : xs.at(mark)) + 8}" y="${middle + 4}">${text(value.mean)}</text></g>`;
  });
  section.innerHTML = `<h2>${escape(title)}</h2><p class="note">${note}</p><svg role="img" aria-label="${escape(title)}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${parts.join("")}</svg>`;
  section.querySelectorAll(".bar").forEach((bar, i) => {
    const group = groups[i], value = group.numbers[key];
    const rows = [`<b>${escape(data.policies[group.policy])}</b>`, `<div><span>mean</span><b>${text(value.mean)}</b></div>`, `<div><span>least, most</span><b>${text(value.min)}, ${text(value.max)}</b></div>`];
    if (markKey) rows.push(`<div><span>${markKey}</span><b>${text(number(group, markKey))}</b></div>`);
    bar.addEventListener("pointermove", (event) => showTip(event, rows.join("")));
    bar.addEventListener("pointerleave", hideTip);
  });
}

// Heat maps. The colours are those of viridis, which rise in lightness alike for everybody.
const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];
function heat(share) {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(at)), part = at - i;
  return VIRIDIS[i].map((c, k) => Math.round(c + (VIRIDIS[i + 1][k] - c) * part));
}
function memory(section) {
  const title = "KV memory of each replica over time";
  const group = groupOf(state.map);
  const options = data.policies.map((name, policy) => `<option value="${policy}"${policy === state.map ? " selected" : ""}>${escape(name)}</option>`).join("");
  section.innerHTML = `<h2>${title} <select id="map" aria-label="Policy of the heat maps">${options}</select></h2><p class="note">A row is a replica, a column ${group && group.series ? format(group.series.column_seconds) : ""} s. Left: blocks that live requests hold. Right: blocks with content, cached prefixes included. Seed ${data.seeds[0]}.</p><div class="maps"></div><span class="scale">0 %<i></i>100 % of the blocks</span>`;
  section.querySelector(".scale i").style.background = `linear-gradient(90deg, ${VIRIDIS.map((c) => `rgb(${c})`).join(",")})`;
  section.querySelector("select").addEventListener("change", (event) => { state.map = Number(event.target.value); memory(section); });
  if (group && group.series) for (const [key, name] of [["in_use", "in use"], ["resident", "resident"]]) heatMap(section.querySelector(".maps"), group.series, key, name);
}
function heatMap(parent, series, key, name) {
  const rows = series[key], columns = rows.length ? rows[0].length : 0, box = document.createElement("div");
  const cell = rows.length > 40 ? 5 : rows.length > 16 ? 8 : rows.length > 8 ? 14 : 22;
  box.innerHTML = `<h3>${name}</h3><div class="box"><div class="pools"></div><canvas role="img" aria-label="KV ${name} of each replica over time" width="${columns}" height="${rows.length}" style="height:${rows.length * cell}px;image-rendering:pixelated"></canvas></div><div class="axis"><span>0 s</span><span>${format((columns * series.column_seconds) / 2)} s</span><span>${format(columns * series.column_seconds)} s</span></div>`;
  parent.append(box);
  const canvas = box.querySelector("canvas"), context = canvas.getContext("2d");
  if (!columns) return;
  const image = context.createImageData(columns, rows.length);
  rows.forEach((row, r) => [...row].forEach((letter, c) => {
    const step = LETTERS.indexOf(letter);
    image.data.set(step < 0 ? [0, 0, 0, 0] : [...heat(step / 63), 255], 4 * (r * columns + c));
  }));
  context.putImageData(image, 0, 0);
  let first = 0;
  const names = [];
  for (const pool of data.pools) {
    names.push({ name: pool.name, first, rows: pool.replicas });
    box.querySelector(".pools").innerHTML += `<span style="top:${(first + pool.replicas / 2) * cell}px" title="${escape(pool.name)}">${escape(pool.name)}</span>`;
    first += pool.replicas;
  }
  canvas.addEventListener("pointermove", (event) => {
    const area = canvas.getBoundingClientRect();
    const c = Math.min(columns - 1, Math.floor(((event.clientX - area.left) / area.width) * columns)), r = Math.min(rows.length - 1, Math.floor(((event.clientY - area.top) / area.height) * rows.length));
    const step = LETTERS.indexOf(rows[r][c]), pool = names.findLast((pool) => pool.first <= r);
    showTip(event, `<b>${escape(pool ? pool.name : "")} replica ${r - (pool ? pool.first : 0)}</b><div><span>at ${format(c * series.column_seconds)} s</span><b>${step < 0 ? "not there" : percent(step / 63)}</b></div>`);
  });
  canvas.addEventListener("pointerleave", hideTip);
}

function overTime(section, title, note, values, unit) {
  const groups = shownGroups().filter((group) => group.series);
  const length = Math.max(0, ...groups.map((group) => values(group.series).length));
  if (!length) return empty(section, title, "No policy is shown.");
  const seconds = groups[0].series.column_seconds, high = Math.max(1, ...groups.flatMap((group) => values(group.series)));
  const spare = groups.every((group) => values(group.series).every((value) => value === 0));
  const mark = { x: data.warm_up_seconds, text: "measured from here", soft: true };
  plot(section, {
    title, note: note + (spare ? " <b>There were none.</b>" : ""), labelX: "seconds", x: { low: 0, high: Math.max(seconds, (length - 1) * seconds) }, y: { low: 0, high: high * 1.05 }, formatX: (v) => format(v), formatY: (v) => format(v),
    marks: data.warm_up_seconds > 0 ? [mark] : [],
    lines: groups.map((group) => ({ policy: group.policy, points: values(group.series).map((value, i) => [i * seconds, value]) })),
    onHover: (x) => {
      const i = Math.max(0, Math.min(length - 1, Math.round(x / seconds)));
      return `<b>at ${format(i * seconds)} s</b>` + groups.map((group) => [group.policy, values(group.series)[i]]).sort((a, b) => (b[1] || 0) - (a[1] || 0)).map(([policy, value]) => tipRow(policy, value === undefined ? "over" : format(value) + unit)).join("");
    },
  });
}

const COLUMNS = [
  ["offered/s", "offered", format], ["answered/s", "answered", format], ["goodput/s", "goodput", format], ["TTFT ms p50", "ttft_p50", format], ["p90", "ttft_p90", format], ["p99", "ttft_p99", format], ["TPOT ms p50", "tpot_p50", format], ["p95", "tpot_p95", format],
  ["tokens/s", "output_tokens", format], ["hit % of ideal", "hit", (value) => format(value * 100)], ["refused", "refused", format], ["lost", "lost", format], ["preempted", "preemptions", format],
];
function table(section) {
  const order = ranking.map((policy) => groupOf(policy)).filter(Boolean).sort((a, b) => data.ceilings ? number(b, "ceiling") - number(a, "ceiling") : number(b, "goodput") - number(a, "goodput") || number(a, "ttft_p99") - number(b, "ttft_p99"));
  const columns = data.ceilings ? [["ceiling/s", "ceiling", format], ["per replica/s", "ceiling_per_replica", format], ...COLUMNS] : COLUMNS;
  const cell = (group, [, key, text]) => {
    const value = group.numbers[key];
    if (!value) return "<td>–</td>";
    const ideal = key === "hit" ? ` of ${text(number(group, "ideal"))}` : "";
    return `<td>${text(value.mean)}${ideal}${data.seeds.length > 1 && value.deviation > 0 ? `<small>±${text(value.deviation)}</small>` : ""}</td>`;
  };
  const verdict = (group) => group.sustained === group.seeds ? '<td class="good">met</td>' : group.sustained === 0 ? `<td class="bad" title="TTFT ${percent(number(group, "within_ttft"))}, TPOT ${percent(number(group, "within_tpot"))} within">missed</td>` : `<td class="warn">met by ${group.sustained} of ${group.seeds} seeds</td>`;
  section.innerHTML = `<h2>Results ${escape(loadName(data.loads[state.load]))}</h2><p class="note">${data.seeds.length > 1 ? `Means over ${data.seeds.length} seeds, ± their standard deviation.` : `One seed, ${data.seeds[0]}.`} SLO: TTFT within ${format(data.slo.ttft_ms)} ms for ${format(data.slo.ttft_share * 100)} % of prompts up to ${data.slo.prompt_tokens_max.toLocaleString("en")} tokens, TPOT within ${format(data.slo.tpot_ms)} ms for ${format(data.slo.tpot_share * 100)} % of answers.</p><div class="scroll"><table><thead><tr><th scope="col">policy</th>${columns.map(([head]) => `<th scope="col">${head}</th>`).join("")}<th scope="col">SLO</th></tr></thead><tbody>${order.map((group, i) => `<tr class="${i === 0 && order.length > 1 ? "best" : ""}${state.shown.has(group.policy) ? "" : " off"}"><td>${escape(data.policies[group.policy])}</td>${columns.map((column) => cell(group, column)).join("")}${verdict(group)}</tr>`).join("")}</tbody></table></div>`;
}

function headline() {
  const best = groupOf(ranking[0]), last = groupOf(ranking[ranking.length - 1]);
  if (!best) return;
  const name = (group) => `<b>${escape(data.policies[group.policy])}</b>`;
  const compared = ranking.length > 1 && last;
  if (data.ceilings) {
    $("headline").innerHTML = `${name(best)} sustains ${format(number(best, "ceiling"))} requests per second inside the SLO${compared ? `; ${escape(data.policies[last.policy])} ${format(number(last, "ceiling"))}` : ""}.`;
  } else if (!(number(best, "goodput") > 0)) {
    $("headline").textContent = "No request was answered within the SLO in the measured time.";
  } else {
    $("headline").innerHTML = `${name(best)} has the most goodput: ${format(number(best, "goodput"))} of ${format(number(best, "offered"))} requests per second, TTFT p99 ${milliseconds(number(best, "ttft_p99"))}${compared ? `; ${escape(data.policies[last.policy])} has ${format(number(last, "goodput"))}, ${milliseconds(number(last, "ttft_p99"))}` : ""}.`;
  }
}

function controls() {
  const mark = (policy) => `<svg width="18" height="8" aria-hidden="true"><line x1="0" x2="18" y1="4" y2="4" stroke="${colour(policy)}" stroke-width="3" stroke-dasharray="${dash(policy)}"/></svg>`;
  $("policies").innerHTML = data.policies.map((name, policy) => `<button type="button" data-policy="${policy}" aria-pressed="${state.shown.has(policy)}">${mark(policy)}${escape(name)}</button>`).join("");
  $("policies").querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
    const policy = Number(button.dataset.policy);
    if (!state.shown.delete(policy)) state.shown.add(policy);
    draw();
  }));
  $("loads").hidden = data.loads.length < 2;
  $("loads").innerHTML = `<span class="what">offered</span>` + data.loads.map((load, i) => `<button type="button" data-load="${i}" aria-pressed="${i === state.load}">${escape(loadName(load))}</button>`).join("");
  $("loads").querySelectorAll("button").forEach((button) => button.addEventListener("click", () => { state.load = Number(button.dataset.load); draw(); }));
}

function foot() {
  const rows = [["command", `<code>${escape(data.command)}</code>`], ["scenario", escape(data.name)], ["fleet", escape(data.fleet)], ["time", `${format(data.duration_seconds)} s of arrivals, the first ${format(data.warm_up_seconds)} s not measured; virtual time`], ["seeds", data.seeds.join(", ")], ["histories", `<details><summary>digests of the ${data.digests.length} runs</summary><code>${data.digests.map(escape).join(" ")}</code></details>`], ["version", `expediter ${escape(data.version)}`]];
  if (data.faults.length) rows.splice(3, 0, ["faults", data.faults.map(escape).join("; ")]);
  $("foot").innerHTML = `<dl>${rows.map(([term, text]) => `<dt>${term}</dt><dd>${text}</dd>`).join("")}</dl>`;
}

function draw() {
  hideTip();
  controls();
  table($("table"));
  const at = data.loads.length > 1 ? `, ${loadName(data.loads[state.load])} offered` : "";
  distribution($("ttft"), "ttft", "Time to first token" + at, `Share of requests with prompts up to ${data.slo.prompt_tokens_max.toLocaleString("en")} tokens whose first token came within a time, as the client sees it. What was not answered keeps a curve below 100 %.`, data.slo.ttft_ms, data.slo.ttft_share);
  distribution($("tpot"), "tpot", "Time per output token" + at, "Share of answers whose mean time per token after the first is within a time.", data.slo.tpot_ms, data.slo.tpot_share);
  goodput($("goodput"));
  bars($("hits"), "Prefix cache: hit ratio against the ideal", "Prompt tokens found in the cache ÷ prompt tokens. The mark is what one infinite cache for the whole pool would find.", "hit", "ideal", percent, 1);
  memory($("memory"));
  overTime($("queue"), "Queue", `Requests that wait, in gateways and in engines. Seed ${data.seeds[0]}.`, (series) => series.waiting, "");
  overTime($("refusals"), "Refusals", `Requests refused or given up, per second. Seed ${data.seeds[0]}.`, (series) => series.refused_per_second, "/s");
}

document.title = `${data.name}: expediter simulate`;
$("title").textContent = data.name;
$("description").textContent = data.description;
headline();
foot();
draw();
dark.addEventListener("change", draw);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
