// Replaces the parts of the page that have changed, as the server sends them. Without it the page is whole, and is
// loaded anew every ten seconds.
"use strict";
const state = document.getElementById("live");
const source = new EventSource(document.body.dataset.events);
source.onopen = () => { state.textContent = "Live."; };
source.onerror = () => {
	const ended = source.readyState === EventSource.CLOSED;
	state.textContent = ended ? "Ended: load the page again." : "Not connected, trying again.";
};
source.onmessage = (message) => {
	const part = JSON.parse(message.data);
	const place = document.getElementById(part.id);
	if (!place || place.dataset.sum === part.sum) return;
	const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
	const open = [...place.querySelectorAll("details[open]")].map((d) => d.id);
	place.innerHTML = part.html;
	place.dataset.sum = part.sum;
	for (const id of open) document.getElementById(id)?.setAttribute("open", "");
	if (focused) document.getElementById(focused)?.focus();
};
