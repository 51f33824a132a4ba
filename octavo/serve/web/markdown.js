"use strict";
// A little Markdown: fences, headings, lists, quotes, tables, links, `code`, **bold**, *italics*.
// All of it is set as text, never as HTML.

const MARKS = /(`[^`\n]+`|\*\*[^*\n]+\*\*|(?<![\w*])\*[^*\s](?:[^*\n]*[^*\s])?\*(?![\w*])|\[[^\]\n]+\]\(https?:\/\/[^\s)]+\))/;

function inline(text) {
  return text.split(MARKS).map((part, index) => {
    if (index % 2 === 0) return part;
    if (part[0] === "`") return make("code", part.slice(1, -1));
    if (part[0] === "[") return link(...part.slice(1, -1).split("]("));
    return part[1] === "*" ? make("strong", part.slice(2, -2)) : make("em", part.slice(1, -1));
  });
}

function link(text, address) {
  const node = make("a", text);
  node.href = address; node.target = "_blank"; node.rel = "noopener noreferrer nofollow";
  return node;
}

const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());
const ruled = line => line !== undefined && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/.test(line);

function sheet(lines) {
  const row = (kind, line) => make("tr", ...cells(line).map(cell => make(kind, ...inline(cell))));
  return styled("div", "sheet", make("table", make("thead", row("th", lines[0])), make("tbody", ...lines.slice(2).map(line => row("td", line)))));
}

function prose(node, text) {
  let list = null, lines = [];
  const paragraph = () => { if (lines.length) node.append(make("p", ...inline(lines.join("\n")))); lines = []; };
  const all = text.split("\n");
  for (let at = 0; at < all.length; at++) {
    const line = all[at];
    const heading = /^#{1,6} +(.*)/.exec(line), item = /^ {0,6}(?:[-*+]|(\d{1,9})[.)]) +(.*)/.exec(line);
    if (line.includes("|") && ruled(all[at + 1])) {
      paragraph(); list = null;
      let end = at + 2;
      while (end < all.length && all[end].includes("|")) end++;
      node.append(sheet(all.slice(at, end)));
      at = end - 1;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) { paragraph(); list = null; node.append(make("hr")); }
    else if (item) {
      paragraph();
      const kind = item[1] ? "OL" : "UL";
      if (list?.nodeName !== kind) { list = make(kind); if (item[1]) list.start = Number(item[1]); node.append(list); }
      list.append(make("li", ...inline(item[2])));
    } else if (list && /^ {2,}\S/.test(line)) list.lastChild.append("\n", ...inline(line.trim()));
    else if (heading) { paragraph(); list = null; node.append(make("h3", ...inline(heading[1]))); }
    else if (/^ {0,3}>/.test(line)) {
      paragraph(); list = null;
      const said = inline(line.replace(/^ {0,3}> ?/, ""));
      if (node.lastChild?.nodeName === "BLOCKQUOTE") node.lastChild.append("\n", ...said); else node.append(make("blockquote", ...said));
    } else if (line.trim()) { list = null; lines.push(line); }
    else paragraph();
  }
  paragraph();
}

function block(text) {
  const copy = press("Copy", () => navigator.clipboard?.writeText(text).then(() => { copy.textContent = "Copied"; }));
  copy.className = "copy";
  return make("figure", make("pre", make("code", text)), copy);
}

function show(node, text) {
  node.replaceChildren();
  text.split(/^ {0,3}```[^\n]*(?:\n|$)/m).forEach((part, index) => {
    if (index % 2) node.append(block(part.replace(/\n$/, "")));
    else prose(node, part);
  });
}
