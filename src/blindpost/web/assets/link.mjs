// Shows the link that this page was opened with. The part behind # holds its key and is never sent anywhere.
import { renderSVG } from "/assets/qr.mjs";

const kind = document.documentElement.dataset.link;
const fragment = location.hash.slice(1);
const part = (id) => document.getElementById(id);

// The same link for the app itself: there the first host stands among the others, in the query.
function appLink() {
  const [key, query = ""] = fragment.split("?", 2);
  const others = query.split("&").filter((pair) => pair && !pair.startsWith("h="));
  const more = query.split("&").find((pair) => pair.startsWith("h="));
  const hosts = [location.hostname, ...(more ? [more.slice(2)] : [])].join(encodeURIComponent(","));
  return `simplex:/${kind}#${key}?${[`h=${hosts}`, ...others].join("&")}`;
}

function show() {
  const link = `https://${location.host}/${kind}#${fragment}`;
  part("qr").innerHTML = renderSVG(link, { ecc: link.length > 300 ? "L" : "M", border: 2 });
  part("qr").firstElementChild.setAttribute("aria-hidden", "true");
  part("qr").setAttribute("aria-label", "QR code of this link");
  part("open").href = appLink();
  part("link").textContent = link;
  part("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(link);
    part("copied").textContent = "Copied.";
  });
}

const whole = /^[A-Za-z0-9_\-\/=]+(\?[A-Za-z0-9_\-.,:;&=%~\[\]]*)?$/.test(fragment) && fragment.length < 2000;
part("incomplete").hidden = whole;
part("whole").hidden = !whole;
if (whole) show();
addEventListener("hashchange", () => location.reload());
