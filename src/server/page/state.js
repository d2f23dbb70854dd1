/* What the server reports: the model, memory by tier and owner, the queue. */
"use strict";
const $ = id => document.getElementById(id);
let busy = null; /* the controller of the answer that is coming */

const headers = () => $("key").value ? {Authorization: "Bearer " + $("key").value} : {};
async function get(path) {
  const reply = await fetch(path, {headers: headers()});
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  return reply.json();
}

const size = n => n === null ? "no cap" : n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB";
function rows(list, pairs) {
  list.replaceChildren();
  for (const [name, value, share] of pairs) {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    list.append(dt, dd);
    if (share === undefined) continue;
    const bar = document.createElement("div"), part = document.createElement("i");
    bar.className = "bar";
    part.style.width = Math.min(100, 100 * share) + "%";
    bar.append(part);
    list.append(bar);
  }
}

async function look() {
  await name_model();
  try {
    const [memory, slots] = await Promise.all([get("memory"), get("slots")]);
    if (!memory.tiers) throw new Error("No model is loaded");
    const ram = memory.tiers.ram, max = ram.cap || Math.max(ram.planned, memory.rss_peak);
    rows($("tiers"), [["RAM, measured peak", size(memory.rss_peak), memory.rss_peak / max],
      ["RAM, planned", size(ram.planned), ram.planned / max], ["RAM, cap", size(ram.cap)],
      ...["vram", "disk"].filter(t => memory.tiers[t].peak).map(t => [t.toUpperCase(), size(memory.tiers[t].peak)])]);
    const models = Object.entries(memory.models).map(([name, owners]) => [name, Object.values(owners).reduce((a, b) => a + b, 0)])
      .filter(([, n]) => n);
    $("by_model").hidden = models.length < 2;
    rows($("models"), models.length < 2 ? [] : models.map(([name, n]) => [name, size(n)]));
    rows($("owners"), Object.entries(memory.owners).filter(([, n]) => n).map(([name, n]) => [name, size(n)]));
    const running = slots.filter(s => s.is_processing).length;
    $("running").textContent = running;
    $("waiting").textContent = slots.length - running;
  } catch (error) {
    rows($("tiers"), [[error.message, ""]]);
  }
}

async function name_model() {
  try {
    const models = (await get("v1/models")).data, which = $("which");
    if (which.options.length !== models.length) which.replaceChildren(...models.map(m => new Option(m.id)));
    $("choice").hidden = models.length < 2;
    const model = models[Math.max(which.selectedIndex, 0)];
    $("model").textContent = model.id + (model.meta.n_ctx ? `, ${model.meta.n_ctx} tokens of context` :
      `, ${model.status.value}`);
    document.title = "nibble: " + model.id;
  } catch (error) {
    $("model").textContent = error.message;
  }
}
