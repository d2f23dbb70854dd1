/* Questions and answers: sends a conversation to the server that has sent this page, and shows the answer as it comes. */
"use strict";
/* Shows a turn at the end. A user's text stands as it was written; an answer is Markdown. */
function show({role, content, thoughts}) {
  const turn = element("div");
  $("empty").hidden = true;
  turn.className = "turn " + role;
  if (role === "user") turn.textContent = content;
  else markdown_in(turn)(content);
  $("talk").append(turn);
  if (thoughts) thoughts_of(turn).textContent = thoughts;
  turn.scrollIntoView({block: "end"});
  return turn;
}

function body() {
  const turns = talk.turns.map(({role, content}) => ({role, content})), system = $("system").value;
  const out = {messages: system.trim() ? [{role: "system", content: system}, ...turns] : turns, stream: true,
    stream_options: {include_usage: true}};
  if ($("which").value) out.model = $("which").value;
  for (const name of ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"])
    if ($(name).value !== "") out[name] = Number($(name).value);
  return JSON.stringify(out);
}

/* Yields the data of each event as it arrives. */
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (left + value).split("\n\n");
    left = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

function note(turn, text) {
  const line = element("div", [text]);
  line.className = "note";
  turn.append(line);
}

/* Adds a closed box above the answer for the model's reasoning. */
function thoughts_of(turn) {
  const words = element("span"), box = element("details", [element("summary", ["Thoughts"]), words]);
  box.className = "turn note";
  turn.before(box);
  return words;
}

/* Draws at most once a frame, and follows the text while its end is in sight. */
function painter(box, turn) {
  const log = $("talk"), draw = markdown_in(box);
  let frame = 0, thoughts = null;
  const paint = () => {
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    cancelAnimationFrame(frame);
    frame = 0;
    if (turn.thoughts) {
      thoughts = thoughts || thoughts_of(box);
      thoughts.textContent = turn.thoughts;
    }
    draw(turn.content);
    if (follow) log.scrollTop = log.scrollHeight;
  };
  return {paint, later: () => { frame = frame || requestAnimationFrame(paint); }};
}

/* Reads an answer into the turn. Returns why it ended. */
async function read(reply, turn, later, begun) {
  let reason = null, first = 0, usage = null;
  for await (const event of events(reply)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) usage = event.usage;
    for (const choice of event.choices) {
      reason = choice.finish_reason || reason;
      const {content = "", reasoning_content = ""} = choice.delta;
      if (!content && !reasoning_content) continue;
      first = first || performance.now();
      turn.content += content || "";
      if (reasoning_content) turn.thoughts = (turn.thoughts || "") + reasoning_content;
      later();
    }
  }
  if (first) $("first").textContent = ((first - begun) / 1000).toFixed(2) + " s";
  if (usage && first && usage.completion_tokens > 1)
    $("speed").textContent = ((usage.completion_tokens - 1) * 1000 / (performance.now() - first)).toFixed(1);
  return reason;
}

function set_busy(controller) {
  busy = controller;
  $("send").textContent = busy ? "Stop" : "Send";
  $("again").disabled = Boolean(busy) || talk.turns.length === 0;
}

/* The answer belongs to the conversation that was asked, whichever is shown when it ends. */
async function answer() {
  const mine = talk, request = body(), turn = {role: "assistant", content: ""}, begun = performance.now();
  const controller = new AbortController(), box = show({role: "assistant", content: "…"}), {paint, later} = painter(box, turn);
  mine.turns.push(turn);
  set_busy(controller);
  keep(mine);
  try {
    const reply = await fetch("v1/chat/completions", {method: "POST", body: request, signal: controller.signal,
      headers: {"Content-Type": "application/json", ...headers()}});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reason = await read(reply, turn, later, begun);
    paint();
    if (!turn.content) note(box, "no text");
    if (reason === "length") note(box, "cut off: the limit of tokens, or the context, is reached");
  } catch (error) {
    paint();
    note(box, error.name === "AbortError" ? "stopped" : error.message);
    if (error.name !== "AbortError") box.lastChild.classList.add("error");
  }
  if (!turn.content) mine.turns.splice(mine.turns.indexOf(turn), 1);
  keep(mine);
  look();
  if (busy === controller) set_busy(null);
}

function send(event) {
  if (event) event.preventDefault();
  if (busy) { busy.abort(); return; }
  const content = $("text").value.trim();
  if (!content) return;
  $("text").value = "";
  $("text").focus();
  grow();
  talk.system = $("system").value;
  talk.turns.push({role: "user", content});
  show(talk.turns.at(-1));
  answer();
}

function again() {
  if (busy || !talk.turns.length) return;
  while (talk.turns.length && talk.turns.at(-1).role === "assistant") talk.turns.pop();
  while ($("talk").lastChild && !$("talk").lastChild.classList.contains("user")) $("talk").lastChild.remove();
  answer();
}

function grow() {
  $("text").style.height = "auto";
  $("text").style.height = $("text").scrollHeight + 2 + "px";
}

$("form").addEventListener("submit", send);
$("again").addEventListener("click", again);
$("which").addEventListener("change", look);
$("key").addEventListener("change", look);
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
document.addEventListener("keydown", event => { if (event.key === "Escape" && busy) busy.abort(); });
show_talk(load_talk(location.hash.slice(1)) || new_talk());
look();
setInterval(() => { if (!document.hidden) look(); }, 2000);
