/* The page's scripts in node, without a browser: page-scripts.js FOLDER-OF-THE-PAGE. A document of a few lines stands in. */
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");

class Node {
  constructor(tag) {
    Object.assign(this, {nodeType: 1, tagName: tag.toUpperCase(), childNodes: [], style: {}});
  }
  append(...children) {
    for (const child of children) {
      const node = typeof child === "string" ? {nodeType: 3, data: child} : child;
      this.childNodes.push(node);
      node.remove = () => { this.childNodes.splice(this.childNodes.indexOf(node), 1); };
    }
  }
  get lastChild() { return this.childNodes.at(-1); }
  addEventListener() {}
}

/* Storage of the browser's form: keys are its own properties. */
const methods = {
  getItem(key) { return Object.hasOwn(this, key) ? this[key] : null; },
  setItem(key, value) {
    if (value.length > 10000) throw new Error("QuotaExceededError");
    this[key] = String(value);
  },
  removeItem(key) { delete this[key]; },
};
const localStorage = Object.create(methods);
const context = vm.createContext({document: {createElement: tag => new Node(tag)}, localStorage, URL, console});
const load = file => vm.runInContext(fs.readFileSync(file, "utf8"), context, {filename: file});
const run = text => vm.runInContext(text, context);

function check(name, good, seen = "") {
  console.log(good ? `ok ${name}` : `not ok ${name}\n    ${String(seen).slice(0, 2000)}`);
  if (!good) process.exitCode = 1;
}

/* Texts of random pieces: no node that must not be, the same nodes however the text arrives, and no letter is lost. */
function random_texts() {
  const pieces = ["a", "b ", "word", " ", "  ", "\n", "\n\n", "\n", "\t", "*", "**", "_", "~~", "`", "```", "[", "](", ")", "]", "!", "<b>", ">", "> ",
    "- ", "+ ", "1. ", "2) ", "# ", "|", "|-|", "---", "===", "\\", "\r\n", "    ", ":", "é", "漢", "🙂", "\0"];
  let seed = 1, wrong = [];
  const next = n => { seed = (seed * 48271) % 2147483647; return seed % n; };
  const letters = text => text.replace(/[^a-zé漢🙂]/gu, "");
  const words = node => node.nodeType === 3 ? node.data : node.tagName === "BUTTON" ? "" : node.childNodes.map(words).join("");
  const {shown, streamed, inside} = run("({shown, streamed, inside})");
  for (let i = 0; i < 4000; i++) {
    const text = Array.from({length: 1 + next(40)}, () => pieces[next(pieces.length)]).join(""), box = shown(text);
    if (letters(words(box)) !== letters(text) || streamed(text, 1 + next(3)) !== inside(box)) wrong.push(JSON.stringify([text, inside(box)]));
  }
  check("random texts lose nothing, and are the same however they arrive", !wrong.length, wrong.slice(0, 4).join("\n    "));
}

/* Would not end, or would overflow the stack, if the work or the nesting grew faster than the text. */
function long_texts() {
  const n = 8000, {shown} = run("({shown})");
  const depth = node => node.nodeType === 3 ? 0 : 1 + Math.max(0, ...node.childNodes.slice(0, 1000).map(depth));
  const wrong = ["[", "]", "![", "*", "_a", "*a ", "a**", "**a _b ", "a* ", "`", "``a`", "`a``b", "> ", ">", "- ", "1. ", "- a\n",
    "a\n", "|", "|a", "|a|\n|-|\n", "[a](", "[a](b \"", "[a](<", "[a](https://x.org) ", "https://x.org) ", "https://x.org?",
    "<https://", "(", ")", "\\", " ", "\t", "#", "# ", "```\n", "~~~a\n", "~~", "~~a", "<b>", "=\n", "-", "- - ", "* * a", "    a\n"]
    .flatMap(piece => [piece.repeat(n), "https://x.org" + piece.repeat(n) + " b"])
    .filter(text => depth(shown(text)) > 64);
  check("long texts of one piece end, and are not deep", !wrong.length, wrong.map(text => text.slice(0, 20)).join(", "));
  const nested = Array.from({length: 300}, (_, i) => " ".repeat(2 * i) + "- a").join("\n");
  check("deep lists end", depth(shown(nested)) < 64);
}

function storage() {
  const {new_talk, store_talk, load_talk, stored_talks, remove_talk} = run("({new_talk, store_talk, load_talk, stored_talks, remove_talk})");
  const first = new_talk(), second = new_talk(), ids = () => stored_talks().map(t => t.id).join();
  check("nothing is stored at first", stored_talks().length === 0);
  first.turns.push({role: "user", content: "  Why is\nthe sky blue? "}, {role: "assistant", content: "**Air.**", thoughts: "hm"},
    {role: "assistant", content: ""});
  check("a conversation is stored under its first words", store_talk(first) && first.title === "Why is the sky blue?", first.title);
  check("and is the same when it is read, but for empty answers", JSON.stringify(load_talk(first.id).turns) === JSON.stringify(first.turns.slice(0, 2)));
  second.turns.push({role: "user", content: "x".repeat(100)});
  store_talk(second);
  localStorage.setItem("nibble.talk." + first.id, JSON.stringify({...first, at: second.at + 1}));
  check("a long title is cut", second.title.length === 48 && second.title.endsWith("…"), second.title);
  check("the last changed is the first of the list", ids() === `${first.id},${second.id}`, ids());
  second.title = "Another";
  store_talk(second);
  check("a title that was given stays", load_talk(second.id).title === "Another");
  for (const bad of ["", "null", "{", "[]", "{\"id\": 1}", JSON.stringify({...first, turns: [{role: "system", content: "a"}]}),
    JSON.stringify({...first, turns: [null]}), JSON.stringify({...first, turns: [{role: "user", content: {}}]})])
    localStorage.setItem("nibble.talk.bad" + bad.length, bad);
  localStorage.setItem("of another page", "x");
  check("what has another form is left out", stored_talks().length === 2 && load_talk("bad0") === null);
  second.turns.push({role: "user", content: "y".repeat(20000)});
  check("a full storage is said, and keeps what it has", store_talk(second) === false && load_talk(second.id).turns.length === 1);
  remove_talk(first.id);
  check("what is removed is gone", load_talk(first.id) === null && ids() === second.id, ids());
  run("localStorage = undefined");
  check("without storage nothing fails", store_talk(first) === false && stored_talks().length === 0 && load_talk(first.id) === null);
}

const folder = process.argv[2];
for (const file of ["markdown.js", "talks.js"]) load(path.join(folder, file));
load(path.join(__dirname, "page-cases.js"));
const wrong = run("wrong_cases()");
check("Markdown becomes nodes, as a whole and while it arrives", !wrong.length, wrong.join("\n    "));
random_texts();
long_texts();
storage();
const all = fs.readdirSync(folder).map(file => fs.readFileSync(path.join(folder, file), "utf8")).join("\n");
check("no text becomes HTML or a script", !/innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|DOMParser|srcdoc/.test(all));
