"use strict";
// Keeps the page as live as its stream of events; the numbers come from the server, formatted the same way.

const WIDTH = 240, HEIGHT = 48;

function shown(value) {
  if (value === null) return "-";
  if (typeof value === "string") return value;
  const places = Number.isInteger(value) ? 0 : 1;
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function curve(points) {
  const top = Math.max(1, ...points), step = WIDTH / 59, first = WIDTH - step * (points.length - 1);
  return points
    .map((value, n) => `${(first + step * n).toFixed(1)},${(HEIGHT - 2 - ((HEIGHT - 4) * value) / top).toFixed(1)}`)
    .join(" ");
}

function find(kind, name) {
  return document.querySelector(`[data-${kind}="${CSS.escape(String(name))}"]`);
}

function update(snapshot) {
  document.getElementById("at").textContent = snapshot.at;
  const rebuild = snapshot.cards.some(
    (card, n) => card.tiles.some((tile) => find("tile", `${n}/${tile.name}`) === null));
  if (rebuild) { location.reload(); return; }
  snapshot.cards.forEach((card, n) => {
    find("card", n).dataset.health = card.health;
    find("state", n).textContent = card.health;
    find("note", n).textContent = card.note;
    for (const tile of card.tiles) {
      const place = find("tile", `${n}/${tile.name}`);
      place.textContent = shown(tile.value);
      place.className = tile.bad ? "bad" : "";
    }
    for (const line of card.lines) {
      const name = `${n}/${line.name}`;
      find("figure", name).hidden = line.points.length < 2;
      find("most", name).textContent = shown(Math.max(0, ...line.points));
      find("line", name).setAttribute("points", curve(line.points));
    }
  });
  const made = document.getElementById("made");
  if (made !== null && snapshot.report !== null) made.textContent = snapshot.report.made;
}

const live = document.getElementById("live");
const events = new EventSource("/events");
events.onmessage = (event) => {
  live.textContent = "live";
  live.className = "";
  update(JSON.parse(event.data));
};
events.onerror = () => { live.textContent = "not live: the page's server does not answer"; live.className = "lost"; };

for (const button of document.querySelectorAll("[data-audit]")) {
  button.addEventListener("click", async () => {
    const told = find("told", button.dataset.audit);
    button.disabled = true;
    told.textContent = "comparing every queue with the services' sums ...";
    try {
      const answer = await fetch(`/audit/${button.dataset.audit}`, { method: "POST" });
      told.textContent = (await answer.json()).told;
    } catch {
      told.textContent = "the page's server does not answer";
    }
    button.disabled = false;
  });
}
