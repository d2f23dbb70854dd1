/* The list of conversations: open, begin, rename, delete. `talk` is the one that is shown; the address's fragment names it. */
"use strict";
let talk = new_talk();

function keep(which) {
  if (which.gone) return;
  const good = store_talk(which);
  $("kept").textContent = good ? "Kept in this browser only." : "Not kept: the browser's storage is full or switched off.";
  show_talks();
}

function show_talk(next) {
  if (busy) busy.abort();
  talk = next;
  history.replaceState(null, "", "#" + talk.id);
  $("system").value = talk.system;
  $("talk").querySelectorAll(".turn").forEach(turn => turn.remove());
  $("empty").hidden = talk.turns.length > 0;
  talk.turns.forEach(show);
  set_busy(null);
  show_talks();
  flip("left", "close", false);
}

function begin() {
  const next = new_talk();
  next.system = $("system").value;
  show_talk(next);
  $("text").focus();
}

function remove() {
  talk.gone = true;
  remove_talk(talk.id);
  begin();
}

/* Puts a field in the place of the title. */
function rename(title) {
  const field = element("input");
  field.value = talk.title;
  field.maxLength = 200;
  field.ariaLabel = "Title";
  const done = good => {
    field.onblur = null;
    field.remove();
    if (good && field.value.trim()) talk.title = field.value.trim();
    keep(talk);
    $("talks").querySelector("[aria-current]")?.focus();
  };
  field.onblur = () => done(true);
  field.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    done(event.key === "Enter");
  });
  title.replaceWith(field);
  field.select();
}

function button(text, action) {
  const node = element("button", [text]);
  node.type = "button";
  node.addEventListener("click", () => action(node));
  return node;
}

function delete_button() {
  const node = button("Delete", () => {
    if (node.textContent !== "Delete") return remove();
    node.textContent = "Really delete";
    node.onblur = () => { node.textContent = "Delete"; };
  });
  return node;
}

/* Not while a title is edited: what is typed would be lost. */
function show_talks() {
  const list = $("talks");
  if (list.querySelector("input")) return;
  list.replaceChildren(...stored_talks().map(one => {
    const open = button(one.title || "(no text)", () => show_talk(load_talk(one.id) || new_talk())), row = element("li", [open]);
    if (one.id !== talk.id) return row;
    open.setAttribute("aria-current", "true");
    row.append(element("div", [button("Rename", () => rename(open)), delete_button()]));
    return row;
  }));
}

/* On narrow windows the list and the settings cover the conversation while they are open. */
function flip(name, back, on) {
  $(back).hidden = !document.body.classList.toggle(name, on);
}

$("fresh").addEventListener("click", begin);
$("open").addEventListener("click", () => flip("left", "close"));
$("close").addEventListener("click", () => flip("left", "close"));
for (const id of ["more", "back"]) $(id).addEventListener("click", () => flip("side", "back"));
$("system").addEventListener("change", () => {
  talk.system = $("system").value;
  if (talk.turns.length) keep(talk);
});
addEventListener("storage", () => { /* another window has changed something */
  const now = load_talk(talk.id);
  if (now && now.at > talk.at && !busy) show_talk(now);
  else show_talks();
});
addEventListener("pagehide", () => { if (busy) keep(talk); });
