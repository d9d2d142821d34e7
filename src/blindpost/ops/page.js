"use strict";
// Puts fresh parts of the page in place of old ones as they arrive, asks before an action, and copies.

const root = document.documentElement, icon = document.getElementById("icon"), live = document.getElementById("live");
const AGAIN_MS = 5000, TOLD_MS = 2000;
root.classList.add("scripted");

function show(level, title, text) {
  root.dataset.level = level;
  icon.href = icon.dataset[level];
  document.title = title;
  if (live.textContent !== text) live.textContent = text;
}

function update(seen) {
  if (seen.shape !== root.dataset.shape) {
    if (document.querySelector("dialog[open]") === null) location.reload();
    return;
  }
  for (const [id, html] of Object.entries(seen.parts)) document.getElementById(id).innerHTML = html;
  show(seen.level, seen.title, "live");
  live.title = seen.at;
}

function follow() {
  const events = new EventSource("/events");
  events.onmessage = (event) => update(JSON.parse(event.data));
  events.onerror = () => {
    show("lost", "Not live - Blindpost", "not live: the page's server does not answer");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN_MS);
  };
}

async function act(form) {
  const told = document.getElementById(form.dataset.told), fields = Object.fromEntries(new FormData(form));
  told.textContent = "working ...";
  try {
    const answer = await fetch(`/act/${form.dataset.act}`, { method: "POST", body: JSON.stringify(fields) });
    const type = answer.headers.get("content-type") ?? "";
    told.textContent = type.startsWith("application/json") ? (await answer.json()).told : await answer.text();
  } catch {
    told.textContent = "The page's server does not answer.";
  }
}

async function copy(button) {
  const place = document.getElementById(button.dataset.copy), label = button.textContent;
  try {
    await navigator.clipboard.writeText(place.textContent);
    button.textContent = "Copied";
  } catch {
    for (let around = place.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
    getSelection().selectAllChildren(place);
    button.textContent = "Selected: copy it now";
  }
  setTimeout(() => { button.textContent = label; }, TOLD_MS);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button === null) return;
  if (button.dataset.open) document.getElementById(button.dataset.open).showModal();
  if ("close" in button.dataset) button.closest("dialog").close();
  if (button.dataset.copy) copy(button);
});
for (const form of document.querySelectorAll("form[data-act]")) {
  form.addEventListener("submit", () => { act(form); });
  form.closest("dialog").addEventListener("close", () => form.reset());
}
follow();
