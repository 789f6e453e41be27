//! A paused owner wakes up late and writes to a service: refused with the fence, and done without it.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::HeaderMap, routing::put};
use lease::{Key, Token};
use leasehold_fences::{FENCE_HEADER, FenceLayer, KEY_HEADER, Marks, batch};

use crate::support::{Course, Server};

/// What a service received: key, token and value.
type Message = (Key, Token, String);
type Received = Arc<Mutex<Vec<Message>>>;

async fn receive(State(received): State<Received>, headers: HeaderMap, value: String) {
    let text = |name| headers[name].to_str().unwrap().to_owned();
    let token = text(FENCE_HEADER).parse().unwrap();
    let message = (
        text(KEY_HEADER).parse().unwrap(),
        Token::new(token).unwrap(),
        value,
    );
    received.lock().unwrap().push(message);
}

/// A service on a free port, with a fence or without.
async fn serve(marks: Option<Marks>) -> (String, Received) {
    let received = Received::default();
    let mut app = Router::new().route("/document", put(receive));
    if let Some(marks) = marks {
        app = app.layer(FenceLayer::new(marks));
    }
    let app = app.with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/document", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, received)
}

fn values(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|(_, _, value)| &**value).collect()
}

#[tokio::test]
async fn the_tower_layer_refuses_a_paused_owner_and_without_it_its_write_gets_through() {
    let server = Server::start().await;
    let marks = Marks::default();
    let (fenced_url, fenced) = serve(Some(marks.clone())).await;
    let (control_url, control) = serve(None).await;
    let course = |key, sink| Course {
        key,
        sink,
        fenced: true,
    };
    let (fenced_course, control_course) = (
        course("document:fenced", &fenced_url),
        course("document:control", &control_url),
    );
    let (reported, past) = tokio::join!(
        fenced_course.late_write(&server),
        control_course.late_write(&server),
    );

    assert!(reported.starts_with("refused"), "{reported}");
    assert!(reported.contains("STALE_TOKEN"), "{reported}");
    assert_eq!(values(&fenced.lock().unwrap()), ["first", "second"]);
    let newest = fenced.lock().unwrap()[1].1;
    assert_eq!(marks.all(), [("document:fenced".parse().unwrap(), newest)]);
    assert_eq!(past, "written late");
    assert_eq!(
        values(&control.lock().unwrap()),
        ["first", "second", "late"]
    );
}

#[tokio::test]
async fn the_batch_endpoint_tells_a_paused_owners_message_from_its_successors() {
    let server = Server::start().await;
    // This receiver only collects: it asks before it applies.
    let (url, received) = serve(None).await;
    let course = Course {
        key: "document:report",
        sink: &url,
        fenced: true,
    };
    assert_eq!(course.late_write(&server).await, "written late");

    let messages = received.lock().unwrap().clone();
    // Without asking, the late one would have been the last to be applied.
    assert_eq!(values(&messages), ["first", "second", "late"]);
    let screened = batch::screen(&server.client(), messages, |(key, token, _)| {
        (key.clone(), *token)
    })
    .await
    .unwrap();
    assert_eq!(values(&screened.fresh), ["second"]);
    assert_eq!(values(&screened.stale), ["first", "late"]);
}
