/* Shows Markdown as DOM nodes: CommonMark's blocks and spans with GFM's tables, strikethrough and bare addresses. A model's text
   is hostile: every character of it becomes a text node, the only attribute made from it is the href of an http(s) link, HTML
   stays text, images are links. Work grows with the text's length, and nesting is bounded, whatever the text is. */
"use strict";
const MAX_DEPTH = 12;

function element(tag, children = []) {
  const node = document.createElement(tag);
  for (const child of children) node.append(child);
  return node;
}

/* ---- spans ---- */

const SPAN = new RegExp([/\\([!-/:-@[-`{-~])/, /(`+)/, /(\*+|_+|~~)/, /(!?\[)/, /(\])/, /<(https?:\/\/[^\s<>]+)>/,
  /\b(https?:\/\/[^\s<>[\]`"]+)/].map(r => r.source).join("|"), "gi");
const TARGET = /\(\s{0,3}(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s{1,3}(?:"[^"]*"|'[^']*'))?\s{0,3}\)/y;

const is_space = c => !c || /\s/.test(c);
const is_mark = c => /[\p{P}\p{S}]/u.test(c);

/* The address of a link, or null if it is none of http and https. */
function address(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try { return new URL(text).href; } catch { return null; }
}

/* A run of emphasis marks in text[at, end), with what CommonMark's rules let it do. */
function run(text, at, end) {
  const before = text[at - 1] || "", after = text[end] || "", mark = text[at];
  const left = !is_space(after) && (!is_mark(after) || is_space(before) || is_mark(before));
  const right = !is_space(before) && (!is_mark(before) || is_space(after) || is_mark(after));
  const inside = mark === "_" && left && right;
  return {mark, n: end - at, total: end - at, opens: left && (!inside || is_mark(before)),
    closes: right && (!inside || is_mark(after))};
}

const pairs = (a, b) => a.mark === b.mark && (!(a.closes || b.opens) || (a.total + b.total) % 3 !== 0 ||
  (a.total % 3 === 0 && b.total % 3 === 0));
const depth_of = items => items.reduce((most, item) => Math.max(most, item.depth || 0), 0);

/* Joins what stands between two runs that pair. `open` has the runs of `out` that may open; below `floor` none pairs with a
   closing run of that key. */
function emphasise(items) {
  const out = [], open = [], floor = {};
  for (const item of items) {
    while (item.closes && item.n) {
      const key = item.mark + item.opens + item.total % 3, end = floor[key] || 0;
      let i = open.length - 1;
      while (i >= end && !pairs(open[i], item)) i--;
      const opener = open[i], depth = i < end ? 0 : 1 + depth_of(out.slice(opener.at + 1));
      if (i < end || depth > MAX_DEPTH) {
        floor[key] = open.length;
        break;
      }
      const n = item.mark === "~" || (opener.n > 1 && item.n > 1) ? 2 : 1;
      const children = out.splice(opener.at + 1);
      out.push({tag: item.mark === "~" ? "del" : n === 2 ? "strong" : "em", children, depth});
      opener.n -= n;
      item.n -= n;
      open.length = opener.n ? i + 1 : i;
      for (const name in floor) floor[name] = Math.min(floor[name], open.length);
    }
    if (item.opens && item.n) {
      item.at = out.length;
      open.push(item);
    }
    out.push(item);
  }
  return out;
}

/* The nodes of spans. A link inside a link is its text alone. */
function nodes(items, in_link = false) {
  const out = [];
  for (const item of items) {
    if (item.mark) out.push(item.mark.repeat(item.n));
    else if (!item.tag) out.push(item);
    else if (item.tag === "a" && in_link) out.push(...nodes(item.children, true));
    else {
      const node = element(item.tag, nodes(item.children, in_link || item.tag === "a"));
      if (item.href) Object.assign(node, {href: item.href, target: "_blank", rel: "noopener noreferrer"});
      out.push(node);
    }
  }
  return out;
}

const link = (href, children) => ({tag: "a", href, children, depth: 1 + depth_of(children)});

/* A bare address without the punctuation of the sentence around it. */
function bare(text) {
  let end = text.length, extra = text.split(")").length - text.split("(").length;
  for (; /[.,;:!?'*_~]/.test(text[end - 1]) || (text[end - 1] === ")" && extra > 0); end--)
    extra -= text[end - 1] === ")";
  return text.slice(0, end);
}

/* Where the runs of backticks of each length begin, the last first. */
function backticks(text) {
  const found = new Map();
  for (const {0: ticks, index} of text.matchAll(/`+/g)) {
    if (!found.has(ticks.length)) found.set(ticks.length, []);
    found.get(ticks.length).push(index);
  }
  found.forEach(list => list.reverse());
  return found;
}

function code_span(text) {
  const line = text.replace(/\n/g, " ");
  return {tag: "code", children: [/^ .*[^ ].* $/.test(line) ? line.slice(1, -1) : line], depth: 1};
}

/* Closes a bracket before text[end]: the spans since it become a link if an address follows. Returns where to go on. */
function close_bracket(items, brackets, text, end) {
  const begun = brackets.pop();
  TARGET.lastIndex = end;
  const target = begun === undefined ? null : TARGET.exec(text);
  const href = target && address((target[1] ?? target[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1"));
  const children = href ? emphasise(items.slice(begun + 1)) : [];
  if (!href || depth_of(children) >= MAX_DEPTH) {
    items.push("]");
    return end;
  }
  items.splice(begun);
  items.push(link(href, children.length ? children : [href]));
  return TARGET.lastIndex;
}

function spans(text) {
  const items = [], brackets = [], ticks = backticks(text);
  let at = 0;
  for (let found; SPAN.lastIndex = at, found = SPAN.exec(text);) {
    const [all, escaped, tick, marks, bracket, closing, angled, plain] = found;
    if (found.index > at) items.push(text.slice(at, found.index));
    at = found.index + all.length;
    if (escaped) items.push(escaped);
    else if (tick) {
      const ends = ticks.get(all.length) || [];
      while (ends.length && ends.at(-1) < at) ends.pop();
      items.push(ends.length ? code_span(text.slice(at, ends.at(-1))) : all);
      if (ends.length) at = ends.at(-1) + all.length;
    } else if (marks) items.push(run(text, found.index, at));
    else if (bracket) {
      brackets.push(items.length);
      items.push(bracket);
    } else if (closing) at = close_bracket(items, brackets, text, at);
    else {
      const shown = angled || bare(plain), href = address(shown);
      if (!angled) at = found.index + shown.length;
      items.push(href ? link(href, [shown]) : shown);
    }
  }
  if (at < text.length) items.push(text.slice(at));
  return nodes(emphasise(items));
}

/* ---- blocks ---- */

const is_blank = line => !line.trim();
const indent = line => line.length - line.trimStart().length;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const cells = line => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/)
  .map(cell => cell.trim().replace(/\\\|/g, "|"));

function marker(line) {
  const found = RULE.test(line) ? null : /^( {0,3})([-*+]|\d{1,9}[.)])(?= |$)/.exec(line);
  if (!found) return null;
  const [all, before, mark] = found, rest = line.slice(all.length), spaces = indent(rest);
  return {kind: mark.at(-1), number: parseInt(mark, 10), empty: is_blank(rest),
    width: all.length + (is_blank(rest) || spaces > 4 ? 1 : spaces), indent: before.length};
}

function begins_table(line, next) {
  if (!line.includes("|") || next === undefined || !next.includes("-")) return false;
  const rule = cells(next);
  return rule.every(cell => /^:?-+:?$/.test(cell)) && rule.length === cells(line).length;
}

/* Each kind of block: whether it begins with a line (and the one after it), whether it may end a paragraph, and how it is read
   from lines[at] on: its node, and the line after it. */
const KINDS = [
  {begins: line => FENCE.test(line), read: fence},
  {begins: line => HEADING.test(line), read: (lines, at) => {
    const [, level, text = ""] = HEADING.exec(lines[at]);
    return [element("h" + level.length, spans(text.trim().replace(/(^| )#+$/, "").trim())), at + 1];
  }},
  {begins: line => RULE.test(line), read: (lines, at) => [element("hr"), at + 1]},
  {begins: line => /^ {0,3}>/.test(line), nests: true, read: quote},
  {begins: line => marker(line), ends: line => { const m = marker(line); return !m.empty && !(m.number > 1); }, nests: true, read: list},
  {begins: begins_table, read: table},
  {begins: line => indent(line) > 3, ends: () => false, read: indented},
];

const kind_of = (lines, at, depth) => KINDS.find(kind => !(kind.nests && depth >= MAX_DEPTH) && kind.begins(lines[at], lines[at + 1]));
/* Whether a line is no part of the paragraph before it. */
function ends(lines, at, depth) {
  const kind = is_blank(lines[at]) || kind_of(lines, at, depth);
  return kind && (!kind.ends || kind.ends(lines[at]));
}

function code_block(language, text) {
  const name = element("span", [language]), copy = element("button", ["Copy"]), code = element("code", [text]);
  const head = element("div", [name, copy]), box = element("div", [head, element("pre", [code])]);
  copy.type = "button";
  copy.addEventListener("click", () => copy_text(copy, text));
  head.className = "head";
  box.className = "code";
  return box;
}

function fence(lines, at) {
  const [, before, marks, info] = FENCE.exec(lines[at]), text = [];
  const is_end = line => indent(line) < 4 && line.trim().length >= marks.length && !line.trim().split(marks[0]).join("");
  for (at++; at < lines.length && !is_end(lines[at]); at++)
    text.push(lines[at].slice(Math.min(before.length, indent(lines[at]))));
  return [code_block(info.trim(), text.join("\n")), at + 1];
}

function indented(lines, at) {
  const text = [];
  for (; at < lines.length && (is_blank(lines[at]) || indent(lines[at]) > 3); at++) text.push(lines[at].slice(4));
  return [code_block("", text.join("\n").trimEnd()), at];
}

function quote(lines, at, depth) {
  const inner = [];
  for (; at < lines.length; at++) {
    if (/^ {0,3}>/.test(lines[at])) inner.push(lines[at].replace(/^ *> ?/, ""));
    else if (is_blank(inner.at(-1)) || ends(lines, at, depth)) break;
    else inner.push(lines[at]);
  }
  return [element("blockquote", blocks(inner, depth + 1).map(b => b.node)), at];
}

/* An item goes on with lines that are indented to its text, or by two columns, as many models write them. */
function list(lines, at, depth) {
  const first = marker(lines[at]), items = [];
  for (let item = null; at < lines.length; at++) {
    const line = lines[at], next = marker(line), columns = indent(line);
    if (is_blank(line)) items.at(-1).push("");
    else if (item && columns >= Math.min(item.width, item.indent + 2)) items.at(-1).push(line.slice(Math.min(columns, item.width)));
    else if (next && next.kind === first.kind) {
      item = next;
      items.push([line.slice(item.width)]);
    } else if (is_blank(items.at(-1).at(-1)) || ends(lines, at, depth)) break;
    else items.at(-1).push(line.trimStart());
  }
  const node = element(isNaN(first.number) ? "ul" : "ol", items.map(item => element("li", blocks(item, depth + 1).map(b => b.node))));
  if (first.number >= 0 && first.number !== 1) node.start = first.number;
  return [node, at];
}

function table(lines, at) {
  const sides = cells(lines[at + 1]).map(c => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "");
  const row = (tag, line) => { /* cells without a heading are shown, too */
    const texts = cells(line);
    while (texts.length < sides.length) texts.push("");
    return element("tr", texts.map((text, i) => {
      const cell = element(tag, spans(text));
      cell.style.textAlign = sides[i] || "";
      return cell;
    }));
  };
  const head = row("th", lines[at]), body = [];
  for (at += 2; at < lines.length && !ends(lines, at, MAX_DEPTH); at++) body.push(row("td", lines[at]));
  const box = element("div", [element("table", [element("thead", [head]), element("tbody", body)])]);
  box.className = "wide";
  return [box, at];
}

function paragraph(lines, at, depth) {
  const text = [lines[at].trim()], joined = () => spans(text.join("\n").replace(/\\\n/g, "\n"));
  for (at++; at < lines.length; at++) {
    const under = /^ {0,3}(=+|-+) *$/.exec(lines[at]);
    if (under) return [element(under[1][0] === "=" ? "h1" : "h2", joined()), at + 1];
    if (ends(lines, at, depth)) break;
    text.push(lines[at].trim());
  }
  return [element("p", joined()), at];
}

/* The blocks of lines: each node, and the line where it begins. */
function blocks(lines, depth = 0) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (is_blank(lines[at])) { at++; continue; }
    const kind = kind_of(lines, at, depth), [node, end] = (kind ? kind.read : paragraph)(lines, at, depth);
    found.push({node, at});
    at = end;
  }
  return found;
}

const plain_line = line => line.replace(/\r$/, "").replace(/^[ \t]+/, s => s.replace(/\t/g, "    "));

/* Returns a function that shows a text that grows. Blocks that more text can't change are left alone, so that what the reader
   has selected stays: the next one has begun with two complete lines (a table's beginning needs both). */
function markdown_in(box) {
  let from = 0, kept = 0;
  return text => {
    const lines = text.slice(from).split("\n"), found = blocks(lines.map(plain_line));
    while (box.childNodes.length > kept) box.lastChild.remove();
    for (const {node} of found) box.append(node);
    let last = found.length - 1;
    while (last > 0 && found[last].at + 2 >= lines.length) last--;
    if (last <= 0) return;
    kept += last;
    from += lines.slice(0, found[last].at).reduce((n, line) => n + line.length + 1, 0);
  };
}

/* Copies a text and says so on the button. Browsers offer the clipboard to secure addresses only; else a selection is copied. */
async function copy_text(button, text) {
  let good = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    good = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = good ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
