//! L15: when the end of a connection is the end of its holder, and when it is not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use leasehold_api::stream::OWN_ADDRESS;
use leasehold_testkit::wait;
use serde_json::json;
use tokio::{net::TcpStream, time::Instant};
use tokio_tungstenite::{
    MaybeTlsStream, client_async, tungstenite::client::IntoClientRequest as _,
};

use crate::{
    streams::{Socket, hear, is_live, mortal},
    support::{LONG, Running, WRITER, options, start_with},
};

const LINGER: Duration = Duration::from_millis(400);

async fn lingering(linger: Duration) -> Running {
    let mut options = options();
    options.limits.death_linger =
        leasehold_api::config::Period::from_millis(u64::try_from(linger.as_millis()).unwrap());
    start_with(options).await
}

/// Connects as our client does, naming its own end of the connection, or another one; and whether the
/// server takes its end as proof.
async fn connect(server: &Running, holder: &str, own_port: impl Fn(u16) -> u16) -> (Socket, bool) {
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let mut own = tcp.local_addr().unwrap();
    own.set_port(own_port(own.port()));
    let url = format!(
        "ws://{}/api/v1/holders/{holder}/stream?incarnation=i1",
        server.address
    );
    let mut request = url.into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {WRITER}").parse().unwrap());
    headers.insert(OWN_ADDRESS, own.to_string().parse().unwrap());
    let (mut socket, _) = client_async(request, MaybeTlsStream::Plain(tcp))
        .await
        .unwrap();
    let welcome = hear(&mut socket).await;
    (socket, welcome["body"]["proves_death"] == json!(true))
}

async fn l15_a_holder_that_stays_away_is_dead_after_the_linger() {
    let server = lingering(LINGER).await;
    let (socket, proves) = connect(&server, "h", |own| own).await;
    assert!(proves);
    mortal(&server, "x", "h").await;
    let began = Instant::now();
    drop(socket);
    wait::until(LONG, "the key is free", async || {
        !is_live(&server, "x").await
    })
    .await;
    assert!(began.elapsed() >= LINGER, "{:?}", began.elapsed());
}

async fn l15_a_holder_that_comes_back_within_the_linger_is_not_dead() {
    let server = lingering(LINGER).await;
    let (socket, _) = connect(&server, "h", |own| own).await;
    mortal(&server, "x", "h").await;
    drop(socket);
    let (again, _) = connect(&server, "h", |own| own).await;
    // Nothing is to happen: that can only be waited for.
    tokio::time::sleep(LINGER * 2).await;
    assert!(is_live(&server, "x").await);
    drop(again);
    wait::until(LONG, "the key is free", async || {
        !is_live(&server, "x").await
    })
    .await;
}

async fn l15_without_a_linger_a_death_counts_at_once() {
    let server = lingering(Duration::ZERO).await;
    let (socket, _) = connect(&server, "h", |own| own).await;
    mortal(&server, "x", "h").await;
    drop(socket);
    wait::until(LONG, "the key is free", async || {
        !is_live(&server, "x").await
    })
    .await;
}

async fn l15_what_stands_between_holder_and_server_proves_nothing() {
    let server = lingering(Duration::ZERO).await;
    let (socket, proves) = connect(&server, "h", |own| own ^ 1).await;
    assert!(!proves);
    mortal(&server, "x", "h").await;
    drop(socket);
    // Another holder's death, which came later, is seen.
    let (other, _) = connect(&server, "other", |own| own).await;
    mortal(&server, "y", "other").await;
    drop(other);
    wait::until(LONG, "the other's key is free", async || {
        !is_live(&server, "y").await
    })
    .await;
    assert!(is_live(&server, "x").await);
}

on_every_backend!(
    l15_a_holder_that_stays_away_is_dead_after_the_linger,
    l15_a_holder_that_comes_back_within_the_linger_is_not_dead,
    l15_without_a_linger_a_death_counts_at_once,
    l15_what_stands_between_holder_and_server_proves_nothing,
);
