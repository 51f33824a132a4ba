"use strict";
const $ = id => document.getElementById(id);
const make = (kind, ...inside) => { const node = document.createElement(kind); node.append(...inside); return node; };
const styled = (kind, name, ...inside) => { const node = make(kind, ...inside); node.className = name; return node; };
const headers = () => ({ "Content-Type": "application/json", ...($("key").value && { Authorization: "Bearer " + $("key").value }) });

function press(text, action) {
  const button = make("button", text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

// The browser may forbid storage; the page works without it.
function keep(store, name, value) { try { store().setItem("octavo-" + name, value); } catch { /* not kept */ } }
function kept(store, name) { try { return store().getItem("octavo-" + name) || ""; } catch { return ""; } }
const local = () => localStorage, session = () => sessionStorage;

// Light, dark, or what the system has.
const THEMES = ["auto", "light", "dark"], night = matchMedia("(prefers-color-scheme: dark)");
let theme = kept(local, "theme") || "auto";
function paint() {
  document.documentElement.dataset.theme = theme === "auto" ? (night.matches ? "dark" : "light") : theme;
  $("theme").textContent = { auto: "◐", light: "○", dark: "●" }[theme];
}
$("theme").addEventListener("click", () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % 3]; keep(local, "theme", theme); paint(); });
night.addEventListener("change", paint);
paint();

// Two panels share one place at the side.
let panel = "";
const opened = new Map();  // what a panel does when it is shown
function open(name) {
  panel = panel === name ? "" : name;
  $("panel").hidden = !panel;
  for (const each of ["settings", "live"]) {
    $(each).hidden = each !== panel;
    $("open-" + each).setAttribute("aria-expanded", String(each === panel));
  }
  opened.get(panel)?.();
}
for (const each of ["settings", "live"]) $("open-" + each).addEventListener("click", () => open(each));
