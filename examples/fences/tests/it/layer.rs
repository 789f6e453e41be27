//! The tower layer on its own: what it lets in, and in which order.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{convert::Infallible, sync::Arc};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use lease::{Key, Token};
use leasehold_fences::{FENCE_HEADER, Fence, FenceLayer, KEY_HEADER, Marks, Rejection};
use tokio::sync::{Notify, mpsc};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn request(headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn write(key: &str, token: u64) -> Request<Body> {
    request(&[(KEY_HEADER, key), (FENCE_HEADER, &token.to_string())])
}

type Answer = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A fence around a service that says yes to everything.
fn open(
    marks: &Marks,
) -> Fence<
    impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer>
    + Clone
    + Send
    + use<>,
> {
    FenceLayer::new(marks.clone()).layer(service_fn(|_: Request<Body>| -> Answer {
        Box::pin(async { Ok(Response::new(Body::from("done"))) })
    }))
}

async fn sent(marks: &Marks, request: Request<Body>) -> Result<(), Rejection> {
    let response = open(marks).oneshot(request).await.unwrap();
    let Some(rejection) = response.extensions().get::<Rejection>() else {
        assert_eq!(response.status(), StatusCode::OK);
        return Ok(());
    };
    assert_eq!(response.status(), rejection.status());
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    Err(rejection.clone())
}

#[tokio::test]
async fn equal_and_newer_tokens_pass_and_older_ones_are_told_the_newest() {
    let marks = Marks::default();
    sent(&marks, write("d:1", 5)).await.unwrap();
    sent(&marks, write("d:1", 5)).await.unwrap();
    sent(&marks, write("d:1", 7)).await.unwrap();
    sent(&marks, write("d:2", 1)).await.unwrap();
    let stale = sent(&marks, write("d:1", 6)).await.unwrap_err();
    let expected = Rejection::Stale {
        key: key("d:1"),
        token: token(6),
        newest: token(7),
    };
    assert_eq!(stale, expected);
    assert_eq!(stale.status(), StatusCode::CONFLICT);
}

#[tokio::test]
async fn what_is_missing_or_makes_no_sense_is_named() {
    let marks = Marks::default();
    let refused = async |headers: &[(&str, &str)]| {
        let rejection = sent(&marks, request(headers)).await.unwrap_err();
        assert_eq!(rejection.status(), StatusCode::BAD_REQUEST);
        rejection
    };
    assert_eq!(refused(&[]).await, Rejection::Missing(KEY_HEADER));
    let missing = refused(&[(KEY_HEADER, "d:1")]).await;
    assert_eq!(missing, Rejection::Missing(FENCE_HEADER));
    for wrong in ["", "0", "-1", "1.5", "9007199254740992", "x"] {
        let rejection = refused(&[(KEY_HEADER, "d:1"), (FENCE_HEADER, wrong)]).await;
        assert!(
            matches!(
                rejection,
                Rejection::Invalid {
                    header: FENCE_HEADER,
                    ..
                }
            ),
            "{wrong}: {rejection}"
        );
    }
    let rejection = refused(&[(KEY_HEADER, "nocolon"), (FENCE_HEADER, "1")]).await;
    assert!(matches!(
        rejection,
        Rejection::Invalid {
            header: KEY_HEADER,
            ..
        }
    ));
    assert!(marks.all().is_empty(), "nothing of this is remembered");
}

#[tokio::test]
async fn marks_survive_a_restart_when_they_are_restored_and_are_bounded() {
    let before = Marks::default();
    sent(&before, write("d:1", 9)).await.unwrap();
    let after = Marks::with_room_for(1);
    for (key, token) in before.all() {
        after.restore(key, token).unwrap();
    }
    // An older memory does not move the mark back.
    after.restore(key("d:1"), token(3)).unwrap();
    let stale = sent(&after, write("d:1", 8)).await.unwrap_err();
    assert!(matches!(stale, Rejection::Stale { .. }), "{stale}");
    assert_eq!(sent(&after, write("d:2", 1)).await, Err(Rejection::Full));
    sent(&after, write("d:1", 9)).await.unwrap();
}

#[tokio::test]
async fn a_newer_write_comes_after_an_older_one_that_was_let_in_already() {
    let (began, mut beginnings) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let slow = {
        let go = go.clone();
        service_fn(move |request: Request<Body>| {
            let (began, go) = (began.clone(), go.clone());
            async move {
                let _ = began.send(request.headers()[FENCE_HEADER].clone());
                go.notified().await;
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        })
    };
    let service = FenceLayer::default().layer(slow);
    let older = tokio::spawn(service.clone().oneshot(write("d:1", 5)));
    assert_eq!(beginnings.recv().await.unwrap(), "5");
    let newer = tokio::spawn(service.clone().oneshot(write("d:1", 6)));
    // Another key does not wait.
    let other = tokio::spawn(service.clone().oneshot(write("d:2", 4)));
    assert_eq!(beginnings.recv().await.unwrap(), "4");
    tokio::task::yield_now().await;
    assert!(
        beginnings.try_recv().is_err(),
        "the newer one waits for its turn"
    );
    go.notify_waiters();
    older.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    assert_eq!(beginnings.recv().await.unwrap(), "6");
    go.notify_one();
    newer.await.unwrap().unwrap();
}
