/* Conversations, one a key of the browser's storage (nothing else keeps them): {id, title, at: time of the last change, system,
   turns: [{role, content, thoughts}]}. What was stored by others is not trusted: an entry of another form is left out. Without
   storage (switched off, full) the page works for as long as it is open. */
"use strict";
const TALK = "nibble.talk.";

const new_talk = () => ({id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "", at: 0, system: "", turns: []});

function talk_of(text) {
  try {
    const {id, title, at, system, turns} = JSON.parse(text);
    const is_text = value => typeof value === "string";
    const good = [id, title, system].every(is_text) && Number.isFinite(at) && Array.isArray(turns) &&
      turns.every(t => t && ["user", "assistant"].includes(t.role) && is_text(t.content) && (t.thoughts === undefined || is_text(t.thoughts)));
    return good ? {id, title, at, system, turns} : null;
  } catch {
    return null;
  }
}

function load_talk(id) {
  try { return talk_of(localStorage.getItem(TALK + id)); } catch { return null; }
}

/* All conversations, the last changed first. */
function stored_talks() {
  try {
    return Object.keys(localStorage).filter(key => key.startsWith(TALK)).map(key => load_talk(key.slice(TALK.length)))
      .filter(Boolean).sort((a, b) => b.at - a.at);
  } catch {
    return [];
  }
}

/* Stores a conversation, under its first words if it has no title. Returns whether it is stored. */
function store_talk(talk) {
  const words = (talk.turns[0]?.content || "").trim().split(/\s+/).join(" ");
  talk.title = talk.title || (words.length > 48 ? words.slice(0, 47) + "…" : words);
  talk.at = Date.now();
  try {
    localStorage.setItem(TALK + talk.id, JSON.stringify({...talk, turns: talk.turns.filter(turn => turn.content)}));
    return true;
  } catch {
    return false;
  }
}

function remove_talk(id) {
  try { localStorage.removeItem(TALK + id); } catch { /* nothing is stored */ }
}
