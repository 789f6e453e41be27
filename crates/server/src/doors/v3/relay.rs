//! Streams of workers on other machines: fetched from the address that the session's own worker announces,
//! and from nowhere else.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use lease::{Key, session::Session};
use leasehold_api::{
    Code, paths,
    sessions::{MAX_STREAM_BYTES, STREAMS, WORKER_STREAM},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

use crate::{App, Reject, problem::RETRY_SOON};

/// How long a worker may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection is kept for the next file.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Fetches what workers serve.
pub(super) struct Relay {
    client: Client<HttpConnector, Empty<Bytes>>,
    secret: Option<SecretString>,
}

impl Relay {
    pub fn new(secret: Option<SecretString>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_timer(TokioTimer::new())
            .build(tcp);
        Self { client, secret }
    }

    /// A file of the session; `None` when its worker has none, or serves nothing.
    pub async fn fetch(
        &self,
        app: &App,
        session: &Session,
        file: &str,
    ) -> Result<Option<Bytes>, Reject> {
        let Some(uri) = address(app, session, file).await? else {
            return Ok(None);
        };
        let mut request = Request::get(uri);
        if let Some(secret) = &self.secret {
            let bearer = format!("Bearer {}", secret.expose_secret());
            request = request.header(header::AUTHORIZATION, bearer);
        }
        let request = request.body(Empty::new()).map_err(|_| no_answer())?;
        let fetched = timeout(app.parts().limits.request_timeout(), async {
            let answer = self.client.request(request).await.ok()?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_STREAM_BYTES).collect();
            Some((status, body.await.ok()?.to_bytes()))
        });
        match fetched.await.ok().flatten() {
            Some((StatusCode::OK, bytes)) => Ok(Some(bytes)),
            Some((StatusCode::NOT_FOUND, _)) => Ok(None),
            _ => Err(no_answer()),
        }
    }
}

/// Where the session's own worker serves the file: the one that claimed it, and no successor of its name.
async fn address(app: &App, session: &Session, file: &str) -> Result<Option<Uri>, Reject> {
    let Some(worker) = &session.worker else {
        return Ok(None);
    };
    let key = Key::new("worker", worker.name.as_str())?;
    let presence = app.authority().lease(key).await?;
    let uri = presence
        .filter(|presence| presence.holder == *worker)
        .and_then(|presence| {
            let base = presence.labels.get(STREAMS)?;
            let path = paths::fill(WORKER_STREAM, &[&session.session_id.to_string(), file]);
            format!("{base}{path}").parse::<Uri>().ok()
        });
    Ok(uri.filter(|uri| uri.scheme() == Some(&Scheme::HTTP)))
}

fn no_answer() -> Reject {
    Reject::new(
        Code::Overloaded,
        "the worker that makes this stream gives no answer",
    )
    .retry_after(RETRY_SOON)
}
