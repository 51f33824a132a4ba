"use strict";
// Charts from the server's own /metrics, a look a second while somebody sees them.

const LOOK_MS = 1000, LENGTH = 120, SVG = "http://www.w3.org/2000/svg";

function drawn(kind, attributes) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Samples by name: [{labels, value}].
function readMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^octavo:(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(each => [each[1], each[2]]));
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}

const total = (samples, name) => (samples.get(name) || []).reduce((sum, each) => sum + each.value, 0);

// A quantile of what a histogram gained between two looks, by Prometheus' rule; null for nothing.
function quantile(share, name, now, before) {
  const bounds = new Map();
  const add = (samples, sign) => { for (const each of samples.get(name + "_bucket") || []) bounds.set(each.labels.le, (bounds.get(each.labels.le) || 0) + sign * each.value); };
  add(now, 1); add(before, -1);
  const sorted = [...bounds].map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count]).sort((a, b) => a[0] - b[0]);
  const all = sorted.at(-1)?.[1] || 0;
  if (all <= 0) return null;
  let low = 0, below = 0;
  for (const [bound, count] of sorted) {
    if (count >= share * all && count > below) return bound === Infinity ? low : low + (bound - low) * (share * all - below) / (count - below);
    low = bound; below = count;
  }
  return low;
}

const time = value => value === null ? "–" : value < 1 ? `${(value * 1000).toFixed(value < .01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
const count = value => value === null ? "–" : value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(value % 1 ? 1 : 0);
const percent = value => value === null ? "–" : `${(100 * value).toFixed(1)}%`;

// One card: a value, its course, and what its lines are.
class Chart {
  constructor(title, write, names, top) {
    this.write = write; this.names = names; this.top = top; this.points = [];
    this.value = make("span", "–");
    this.svg = drawn("svg", { viewBox: `0 0 ${LENGTH} 40`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.legend = make("ul", ...names.map((name, index) => { const item = make("li", name); item.style.setProperty("--tone", Chart.tones[index]); return item; }));
    this.legend.hidden = names.length < 2;
    $("charts").append(styled("section", "card", make("h3", title, this.value), this.svg, this.legend));
  }
  push(...values) {
    this.points.push(values);
    if (this.points.length > LENGTH) this.points.shift();
    this.value.textContent = this.write(values[0]);
    [...this.legend.children].forEach((item, index) => { item.textContent = `${this.names[index]} ${this.write(values[index])}`; });
    this.draw();
  }
  draw() {
    const known = this.points.flat().filter(value => value !== null);
    const top = this.top || Math.max(...known, 1e-9) * 1.1;
    const left = LENGTH - this.points.length;
    this.svg.replaceChildren(drawn("line", { x1: 0, x2: LENGTH, y1: 40, y2: 40, stroke: "var(--line)", "vector-effect": "non-scaling-stroke" }));
    this.names.forEach((_, index) => {
      const path = [];
      let pen = false;
      this.points.forEach((values, at) => {
        const value = values[index];
        if (value === null) { pen = false; return; }
        path.push(`${pen ? "L" : "M"}${left + at} ${(40 - 38 * Math.min(1, value / top)).toFixed(2)}`);
        pen = true;
      });
      if (index === 0 && path.length > 1 && !this.points.some(values => values[0] === null))
        this.svg.append(drawn("path", { d: `${path.join("")}L${LENGTH - 1} 40L${left} 40Z`, fill: Chart.tones[0], opacity: .12 }));
      this.svg.append(drawn("path", { d: path.join(""), fill: "none", stroke: Chart.tones[index], "stroke-width": 1.6, "stroke-linejoin": "round", "stroke-linecap": "round", "vector-effect": "non-scaling-stroke" }));
    });
  }
}
Chart.tones = ["var(--mark)", "var(--two)", "var(--three)"];

const charts = {
  made: new Chart("Generated tokens a second", count, ["generated"]),
  read: new Chart("Prompt tokens a second", count, ["read"]),
  line: new Chart("Requests", count, ["running", "waiting"]),
  first: new Chart("First token", time, ["p50", "p95"]),
  gap: new Chart("Between tokens", time, ["p50", "p95"]),
  cache: new Chart("KV cache in use", percent, ["in use", "prefix hits"], 1),
};

// Rates are of the last second; latencies of the last ten, in which more than one request has come.
const WINDOW = 10;
let looks = [], timer = 0;

async function look() {
  clearTimeout(timer);
  if (panel !== "live") return;
  timer = setTimeout(look, LOOK_MS);
  if (document.hidden) { looks = []; return; }
  const answer = await fetch("/metrics", { headers: headers() }).catch(() => null);
  if (!answer?.ok) {
    looks = [];
    $("live_note").textContent = !answer ? "No connection." : answer.status === 401 ? "Figures need an API key: see Settings." : answer.status === 403 ? "This key may not read figures." : "No figures now.";
    return;
  }
  $("live_note").textContent = "";
  const now = { at: performance.now(), samples: readMetrics(await answer.text()) };
  const last = looks.at(-1);
  if (last) step(now.samples, last.samples, looks[0].samples, (now.at - last.at) / 1000);
  looks = [...looks.slice(1 - WINDOW), now];
}

function step(now, old, older, seconds) {
  const rate = name => Math.max(0, total(now, name) - total(old, name)) / seconds;
  charts.made.push(rate("generation_tokens_total"));
  charts.read.push(rate("prompt_tokens_total"));
  charts.line.push(total(now, "num_requests_running"), total(now, "num_requests_waiting"));
  charts.first.push(quantile(.5, "time_to_first_token_seconds", now, older), quantile(.95, "time_to_first_token_seconds", now, older));
  charts.gap.push(quantile(.5, "inter_token_latency_seconds", now, older), quantile(.95, "inter_token_latency_seconds", now, older));
  const asked = total(now, "prefix_cache_queries_total");
  charts.cache.push(total(now, "kv_cache_usage_perc"), asked ? total(now, "prefix_cache_hits_total") / asked : null);
}

async function plan() {
  const answer = await fetch("/plan", { headers: headers() }).catch(() => null);
  if (!answer?.ok) return void $("plan").replaceChildren();
  const facts = await answer.json();
  const rows = [
    ["Context", `${facts.max_model_len.toLocaleString("en")} tokens`],
    ["KV cache", `${facts.kv_tokens.toLocaleString("en")} tokens`],
    ["At once", `${facts.max_num_seqs} sequences`],
    ["Started in", `${facts.startup_seconds.total?.toFixed(1) ?? "–"} s`],
    ["Version", facts.version],
  ];
  $("plan").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  $("plan").title = facts.notes.join("\n");
}

opened.set("live", () => { look(); plan(); });
