// Watch a service: start, play, keep alive, and see what everybody watches.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, may } from "../api/client";
import { useLoad } from "../lib/load";
import { clock, count, duration, now, plural } from "../lib/time";
import { sessionSentence, sessionTone } from "../lib/words";
import { warning } from "../session/machine";
import { play, type Mood } from "../session/player";
import { idle, session, start, stay, stop } from "../session/session";
import { Badge, Card, Copy, Empty, Field, Missing, PageHead, Table, isStale } from "../ui/parts";

/** A paused video keeps its tuner this long, in ms; then its viewer is asked. */
const PAUSED_MS = 5 * 60_000;
/** How many sessions are listed. */
const LISTED = 100;
const LAST = "leasehold.service";

function remembered(): string {
  try {
    return localStorage.getItem(LAST) ?? "";
  } catch {
    return "";
  }
}

export function Sessions() {
  return (
    <>
      <PageHead title="Sessions" />
      <Watch />
      {may("v3:admin") && <List />}
    </>
  );
}

function Watch() {
  const offer = useLoad("profiles", (signal) => get("/api/v3/profiles", { signal }), { every: 60_000 });
  const known = useLoad(
    "services",
    async (signal) => {
      if (!may("v3:admin")) return [];
      const list = await get("/api/v3/sessions", { query: { limit: 200 }, signal });
      return [...new Set(list.sessions.map((it) => it.service_ref))];
    },
    { every: 30_000 },
  );
  const model = session.value;
  const [service, setService] = useState(model.service || remembered());
  const [profile, setProfile] = useState(model.profile || "auto");
  const alive = model.phase === "alive" || model.phase === "asking";
  const profiles = offer.data?.profiles ?? ["auto"];
  const wrong = /^[\x21-\x7e]{1,256}$/.test(service.trim()) ? undefined : service === "" ? undefined : "1 to 256 characters without spaces.";
  const begin = () => {
    try {
      localStorage.setItem(LAST, service.trim());
    } catch {
      // Only a convenience.
    }
    void start(service.trim(), profiles.includes(profile) ? profile : (profiles[0] ?? "auto"));
  };
  const tone = sessionTone(model.phase === "asking" ? "new" : model.state);
  return (
    <div class="columns watch">
      <Card title="Watch">
        <form
          class="form"
          onSubmit={(event) => {
            event.preventDefault();
            if (!alive && service.trim() && !wrong) begin();
          }}
        >
          <Field label="Service" hint="The service reference of a channel, or any name for the test picture." fault={wrong}>
            {(id, described) => (
              <>
                <input id={id} name="service" aria-describedby={described} class="mono" required maxlength={256} list="services" disabled={alive} value={service} onInput={(event) => setService(event.currentTarget.value)} spellcheck={false} autocomplete="off" />
                <datalist id="services">
                  {(known.data ?? []).map((it) => (
                    <option key={it} value={it} />
                  ))}
                </datalist>
              </>
            )}
          </Field>
          <Field label="Profile">
            {(id) => (
              <select id={id} name="profile" disabled={alive} value={profile} onChange={(event) => setProfile(event.currentTarget.value)}>
                {profiles.map((it) => (
                  <option key={it} value={it}>
                    {it}
                  </option>
                ))}
              </select>
            )}
          </Field>
          {may("v3:write") ? (
            <div class="with-badge">
              <button class="button primary" disabled={alive || !service.trim() || Boolean(wrong)}>
                {model.phase === "over" ? "Start again" : "Start"}
              </button>
              <button type="button" class="button" disabled={model.phase !== "alive" || model.stopping} onClick={() => void stop()}>
                Stop
              </button>
            </div>
          ) : (
            <p class="notice">Your API key can look at sessions, but not start one.</p>
          )}
        </form>
        <div class="session-state" data-phase={model.phase} data-state={model.state}>
          <p class="with-badge">
            <Badge tone={model.phase === "idle" ? "quiet" : model.phase === "over" && !model.state ? "bad" : tone.tone}>{model.phase === "over" && !model.state ? "Not started" : tone.word}</Badge>
            {model.id && (
              <span class="mono note session-id" data-session={model.id}>
                {model.id.slice(0, 13)}… <Copy text={model.id} label="the session id" />
              </span>
            )}
          </p>
          <p class="sentence" role="status">
            {model.sentence || "Choose a service and start. The stream is kept alive while this page is open and stopped when you leave."}
          </p>
          {model.phase === "alive" && <Keeping />}
        </div>
      </Card>
      <Card class="player-card">
        <Player />
      </Card>
    </div>
  );
}

/** How long the session lives, and the heartbeats that keep it. */
function Keeping() {
  const model = session.value;
  const left = Math.max(0, model.expires - now.value);
  const share = Math.max(0, Math.min(1, left / model.ttl));
  return (
    <div class="keeping">
      <span class={`load-track ${share < 1 / 2 ? "full" : ""}`} aria-hidden="true">
        <span style={{ width: `${share * 100}%` }} />
      </span>
      <p class="hint">
        Kept for {duration(left)} more. <span data-beats={model.beats}>{plural(model.beats, "heartbeat")}</span>, one every <span class="nowrap">{Math.round(model.interval / 1000)} s</span>
        {model.missed > 0 ? `; the last ${model.missed === 1 ? "one" : count(model.missed)} got no answer` : ""}.
      </p>
    </div>
  );
}

function Player() {
  const video = useRef<HTMLVideoElement>(null);
  const [mood, setMood] = useState<Mood>("loading");
  const [problem, setProblem] = useState("");
  const { playback, id, phase } = session.value;

  useEffect(() => {
    const element = video.current;
    if (!playback || !element || phase !== "alive") return undefined;
    const controller = new AbortController();
    setProblem("");
    play(element, playback, controller.signal, setMood).catch((error: Error) => setProblem(error.message));
    return () => controller.abort();
  }, [id, playback, phase]);

  // A video that is paused for long holds a tuner for nobody.
  useEffect(() => {
    const element = video.current;
    if (!element) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const paused = () => (timer = setTimeout(idle, PAUSED_MS));
    const played = () => {
      clearTimeout(timer);
      if (session.value.idle) void stay();
    };
    element.addEventListener("pause", paused);
    element.addEventListener("play", played);
    return () => {
      clearTimeout(timer);
      element.removeEventListener("pause", paused);
      element.removeEventListener("play", played);
    };
  }, []);

  const warn = warning(session.value, now.value);
  const shown = session.value.phase === "alive";
  return (
    <div class="player">
      <div class="screen">
        <video ref={video} id="video" controls={shown} muted playsInline aria-label="Stream" />
        {!shown && (
          <div class="screen-words">
            <p>{session.value.phase === "over" ? session.value.sentence : session.value.phase === "asking" ? "Asking for a session …" : "Nothing is playing"}</p>
          </div>
        )}
        {shown && !playback && (
          <div class="screen-words">
            <p>{session.value.sentence}</p>
          </div>
        )}
        {shown && playback && mood !== "playing" && !problem && <p class="screen-note">{mood === "waiting" ? "No new pictures are coming; trying again …" : "Loading …"}</p>}
        {problem && (
          <div class="screen-words">
            <p>{problem}</p>
          </div>
        )}
      </div>
      {warn.level !== "none" && (
        <div class={`session-warning ${warn.level}`} role="alert">
          <p>
            {warn.why === "idle"
              ? `Nobody seems to be watching. The session ends in ${duration(warn.left)} so that others can have the tuner.`
              : warn.level === "soon"
                ? `Heartbeats are not getting through. The session ends in ${duration(warn.left)}.`
                : "Heartbeats are not getting through, and the session's time is over. It has ended unless the server was down too; this is tried until the server answers."}
          </p>
          <button type="button" class="button primary" onClick={() => void stay()}>
            {warn.why === "idle" ? "Stay" : "Stay: try now"}
          </button>
        </div>
      )}
      {session.value.phase === "over" && session.value.service && may("v3:write") && (
        <div class="session-over">
          <button type="button" class="button primary" onClick={() => void start(session.value.service, session.value.profile)}>
            Start again
          </button>
        </div>
      )}
    </div>
  );
}

function List() {
  const loaded = useLoad("sessions", (signal) => get("/api/v3/sessions", { query: { limit: LISTED }, signal }), {
    every: 4000,
    gap: 400,
    on: (batch) => batch.events.some((event) => event.kind === "session" && event.event_type !== "lease_renewed"),
  });
  const { data } = loaded;
  const live = data?.sessions.filter((it) => !["stopped", "failed", "ended"].includes(it.state)).length ?? 0;
  return (
    <Card title="Everybody's sessions" stale={isStale(loaded, 4000)} action={data && <span class="note">{`${count(live)} live; ${data.next_cursor ? `the newest ${count(data.sessions.length)}` : `${count(data.sessions.length)} of ${count(data.sessions.length)}`} shown`}</span>}>
      {!data ? (
        <Missing of={loaded} />
      ) : data.sessions.length === 0 ? (
        <Empty title="Nobody has watched anything yet" />
      ) : (
        <Table label="Sessions" columns={["Service", "State", "Profile", "#Tuner", "Started", "What happened"]} id="sessions">
          {data.sessions.map((it) => {
            const tone = sessionTone(it.state);
            return (
              <tr key={it.session_id} data-session={it.session_id}>
                <th scope="row" class="mono source" title={it.service_ref}>
                  {it.service_ref}
                </th>
                <td>
                  <Badge tone={tone.tone}>{tone.word}</Badge>
                </td>
                <td>{it.profile}</td>
                <td class="number">{it.tuner_slot ?? "–"}</td>
                <td class="nowrap">{clock(it.created_at)}</td>
                <td class="hint">{sessionSentence(it)}</td>
              </tr>
            );
          })}
        </Table>
      )}
    </Card>
  );
}
