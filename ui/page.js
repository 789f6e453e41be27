"use strict";

const element = (id) => document.getElementById(id);

async function showHealth() {
  try {
    const answer = await fetch("/readyz");
    const body = await answer.json();
    element("health").textContent = answer.ok ? `Ready, store: ${body.store}` : `Not ready: ${body.detail}`;
  } catch {
    element("health").textContent = "The server cannot be reached";
  }
}

async function showLeases() {
  const answer = await fetch("/api/v1/leases/?limit=1000");
  if (!answer.ok) return answer.status;
  const { leases } = await answer.json();
  element("leases").replaceChildren(...leases.map((lease) => {
    const row = document.createElement("tr");
    for (const text of [`${lease.kind}:${lease.id}`, lease.holder, lease.token, lease.status, lease.expires_at]) {
      row.insertCell().textContent = text;
    }
    return row;
  }));
  element("login").hidden = true;
  return 200;
}

element("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = element("token").value.trim();
  element("token").value = "";
  const answer = await fetch("/api/v3/auth/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  element("problem").textContent = answer.ok ? "" : "This token is not known here";
  if (answer.ok && (await showLeases()) === 403) element("problem").textContent = "This token may not read leases";
});

showHealth();
showLeases();
setInterval(() => { showHealth(); if (element("login").hidden) showLeases(); }, 5000);
