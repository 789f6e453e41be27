//! The web page in a real browser: log in, watch, be kept alive by heartbeats, and leave.

use leasehold_testkit::wait;
use serde_json::json;

use crate::cli_support::SOON;
use crate::sessions::{api::Api, browser::Browser};

const SETTINGS: [(&str, &str); 2] = [
    ("LEASEHOLD_SESSIONS_LEASE_TTL", "6s"),
    ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "1s"),
];

async fn logged_in(api: &Api) -> Browser {
    let browser = Browser::start().await;
    browser.open(&api.url).await;
    browser
        .until("the form is there", "!!document.getElementById('token')")
        .await;
    browser.write("token", "not-a-token").await;
    browser.click("login button").await;
    browser
        .until(
            "a wrong token is refused",
            "document.getElementById('problem').textContent.includes('not known')",
        )
        .await;
    browser.write("token", &api.token).await;
    browser.click("login button").await;
    browser
        .until(
            "the player is there",
            "!document.getElementById('player').hidden",
        )
        .await;
    browser
}

async fn watch(browser: &Browser, profile: &str) -> String {
    browser.write("service", "channel").await;
    browser.write("profile", profile).await;
    browser.click("start-button").await;
    browser
        .until(
            "it runs",
            "document.getElementById('state').dataset.state === 'running'",
        )
        .await;
    browser
        .until(
            "the picture moves",
            "document.getElementById('video').currentTime > 0.5 && document.getElementById('video').videoWidth > 0",
        )
        .await;
    let id = browser
        .ask("document.getElementById('session-id').textContent")
        .await;
    id.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn heavy_a_viewer_watches_and_leaves() {
    let api = Api::start(None, &SETTINGS).await;
    let browser = logged_in(&api).await;
    let id = watch(&browser, "virtual").await;
    // The server sees heartbeats, and the session outlives its ttl by them.
    let first = api.session(&id).await["last_heartbeat"].clone();
    wait::until(SOON, "heartbeats arrive", async || {
        let session = api.session(&id).await;
        assert_eq!(session["state"], "running", "{session}");
        !session["last_heartbeat"].is_null() && session["last_heartbeat"] != first
    })
    .await;
    browser
        .until(
            "it counts them",
            "Number(document.getElementById('beats').textContent) >= 2",
        )
        .await;
    // The tables show the same, live.
    browser
        .until(
            "the leases are shown",
            "document.getElementById('leases').textContent.includes('tuner:0')",
        )
        .await;
    browser
        .until(
            "the sessions are shown",
            "document.getElementById('sessions').textContent.includes('running')",
        )
        .await;
    // The window is closed: the session ends at once, not by its ttl.
    browser.close_window().await;
    let over = api.reaches(&id, "stopped", SOON).await;
    assert_eq!(over["reason"], "R_CLIENT_STOP", "{over}");
    api.is_clean(SOON).await;
}

#[tokio::test]
async fn heavy_a_viewer_sees_ffmpeg_and_its_end() {
    let api = Api::start(None, &SETTINGS).await;
    let browser = logged_in(&api).await;
    let id = watch(&browser, "low").await;
    // Somebody else ends it: the page stops and says why.
    api.stop(&id).await;
    browser
        .until(
            "the page stops",
            "document.getElementById('state').textContent.includes('R_CLIENT_STOP') && !document.getElementById('start-button').disabled",
        )
        .await;
    browser
        .until(
            "its lease is gone from the table",
            "!document.getElementById('leases').textContent.includes('tuner:0')",
        )
        .await;
    // Refused before it ran: that is shown too.
    let busy = api.start_session("channel", "virtual").await;
    api.reaches(&busy, "running", SOON).await;
    browser.click("start-button").await;
    browser
        .until(
            "it is told",
            "document.getElementById('state').textContent.includes('R_LEASE_BUSY')",
        )
        .await;
    assert_eq!(
        browser.ask("document.getElementById('lease').hidden").await,
        json!(true)
    );
}
