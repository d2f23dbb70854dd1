/* Markdown and the nodes that the page makes of it, for page-scripts.js (node) and page-checks.py (a browser). */
"use strict";
const code = (language, text) => `<div><div><span>${language}</span><button>Copy</button></div><pre><code>${text}</code></pre></div>`;
const table_of = (head, ...rows) => `<div><table><thead><tr>${head}</tr></thead><tbody>${rows.map(r => `<tr>${r}</tr>`).join("")}</tbody></table></div>`;

const CASES = [
  ["a paragraph keeps its line breaks", "one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"],
  ["headings", "# One\n## Two ##\n####### no", "<h1>One</h1><h2>Two</h2><p>####### no</p>"],
  ["underlined headings", "One\n===\nTwo\n---", "<h1>One</h1><h2>Two</h2>"],
  ["a rule", "a\n\n---\n* * *\nb", "<p>a</p><hr></hr><hr></hr><p>b</p>"],
  ["emphasis", "*a* **b** ***c*** _d_ __e__ ~~f~~",
    "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del></p>"],
  ["emphasis inside emphasis", "**a *b* c** *d **e***",
    "<p><strong>a <em>b</em> c</strong> <em>d <strong>e</strong></em></p>"],
  ["no emphasis", "2 * 3 * 4, snake_case_name, a*, **open", "<p>2 * 3 * 4, snake_case_name, a*, **open</p>"],
  ["escapes", "\\*a\\* \\[b\\](c) \\` \\q", "<p>*a* [b](c) ` \\q</p>"],
  ["code spans", "`a*b*` ``c`d`` `` ` `` `open", "<p><code>a*b*</code> <code>c`d</code> <code>`</code> `open</p>"],
  ["links", "[a *b*](https://x.org/y?z=1&q \"t\") <http://x.org> https://x.org/(a), (https://x.org/b).",
    '<p><a href="https://x.org/y?z=1&q">a <em>b</em></a> <a href="http://x.org/">http://x.org</a> ' +
    '<a href="https://x.org/(a)">https://x.org/(a)</a>, (<a href="https://x.org/b">https://x.org/b</a>).</p>'],
  ["a link with parentheses, one with an address as its text", "[a](https://x.org/b_(c)) [https://x.org](https://y.org)",
    '<p><a href="https://x.org/b_(c)">a</a> <a href="https://y.org/">https://x.org</a></p>'],
  ["an image is a link", "![alt](https://x.org/i.png)", '<p><a href="https://x.org/i.png">alt</a></p>'],
  ["other addresses stay text", "[a](javascript:alert(1)) [b](data:text/html,x) [c](/d) [e](//f) [g]( JAVASCRIPT:h) <javascript:i>",
    "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](/d) [e](//f) [g]( JAVASCRIPT:h) <javascript:i></p>"],
  ["HTML stays text", "<script>alert(1)</script>\n<img src=x onerror=alert(1)>\n\n<b>a</b> &lt;",
    "<p><script>alert(1)</script>\n<img src=x onerror=alert(1)></p><p><b>a</b> &lt;</p>"],
  ["HTML in code stays text", "`<b>`\n```html\"><script>\n</code></pre><script>x</script>\n```",
    "<p><code><b></code></p>" + code("html\"><script>", "</code></pre><script>x</script>")],
  ["a quotation mark ends no address", "[a](https://x.org/\"onclick=alert(1))", '<p><a href="https://x.org/%22onclick=alert(1)">a</a></p>'],
  ["lists", "- a\n- b\n\n* c\n1. d\n2. e\n\n4) f",
    "<ul><li><p>a</p></li><li><p>b</p></li></ul><ul><li><p>c</p></li></ul><ol><li><p>d</p></li><li><p>e</p></li></ol>" +
    '<ol start="4"><li><p>f</p></li></ol>'],
  ["nested lists", "1. a\n   - b\n     - c\n   - d\n2. e", "<ol><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li><li><p>d</p></li></ul></li>" +
    "<li><p>e</p></li></ol>"],
  ["a list nested by two columns, and by a tab", "1. a\n  - b\n2. c\n\t- d", "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li>" +
    "<li><p>c</p><ul><li><p>d</p></li></ul></li></ol>"],
  ["blocks in an item", "- a\n\n  b\n\n  ```c\n  d\n    e\n  ```\n- f\ng",
    `<ul><li><p>a</p><p>b</p>${code("c", "d\n  e")}</li><li><p>f\ng</p></li></ul>`],
  ["no list", "In the year\n1984. And\n-1 -a", "<p>In the year\n1984. And\n-1 -a</p>"],
  ["code fences", "a\n```python\nprint('*x*')\n\n# no heading\n```\nb\n~~~\n```\n~~~",
    `<p>a</p>${code("python", "print('*x*')\n\n# no heading")}<p>b</p>${code("", "```")}`],
  ["a fence that is still open", "````md\n```\na", code("md", "```\na")],
  ["indented code", "a\n\n    b\n      c\n\nd", `<p>a</p>${code("", "b\n  c")}<p>d</p>`],
  ["quotes", "> a\n> > b\nc\n\nd", "<blockquote><p>a</p><blockquote><p>b\nc</p></blockquote></blockquote><p>d</p>"],
  ["a list in a quote", "> - a\n>   1. b", "<blockquote><ul><li><p>a</p><ol><li><p>b</p></li></ol></li></ul></blockquote>"],
  ["tables", "Text\n| a | b |\n|---|:-:|\n| `x` \\| y | **z** |\n| 1 | 2 | 3 |\n| 4\n\nEnd",
    "<p>Text</p>" + table_of('<th>a</th><th align="center">b</th>',
      '<td><code>x</code> | y</td><td align="center"><strong>z</strong></td>', '<td>1</td><td align="center">2</td><td>3</td>',
      '<td>4</td><td align="center"></td>') + "<p>End</p>"],
  ["no table", "a | b\n--- | --- | ---", "<p>a | b\n--- | --- | ---</p>"],
  ["lines that end with CR LF", "# a\r\n\r\n- b\r\n- c\r\n", "<h1>a</h1><ul><li><p>b</p></li><li><p>c</p></li></ul>"],
  ["other scripts", "**你好**、世界 *мир* 🙂", "<p><strong>你好</strong>、世界 <em>мир</em> 🙂</p>"],
];

const TAGS = new Set(["a", "blockquote", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol",
  "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"]);

/* A node as text. A tag or an address that no Markdown may make is an error. */
function shape(node) {
  if (node.nodeType === 3) return node.data;
  const tag = node.tagName.toLowerCase(), href = tag === "a" ? ` href="${node.href}"` : "";
  if (!TAGS.has(tag) || (tag === "a" && !/^https?:\/\//.test(node.href))) throw new Error(`a node that must not be: ${tag} ${node.href}`);
  const start = tag === "ol" && node.start !== 1 && node.start !== undefined ? ` start="${node.start}"` : "";
  const align = node.style && node.style.textAlign ? ` align="${node.style.textAlign}"` : "";
  return `<${tag}${href}${start}${align}>${inside(node)}</${tag}>`;
}
const inside = node => [...node.childNodes].map(shape).join("");

function shown(text) {
  const box = document.createElement("div");
  markdown_in(box)(text);
  return box;
}

/* The shape of a text that arrives by n characters at a time. */
function streamed(text, n) {
  const box = document.createElement("div"), draw = markdown_in(box);
  for (let end = n; end < text.length; end += n) draw(text.slice(0, end));
  draw(text);
  return inside(box);
}

/* What is wrong with the cases: [name, what was seen]. */
function wrong_cases() {
  return CASES.filter(([, text, good]) => inside(shown(text)) !== good || [1, 2, 7].some(n => streamed(text, n) !== good))
    .map(([name, text]) => `${name}: ${inside(shown(text))}`);
}
