//! Streams of workers on other machines: fetched from the address that the session's own worker announces,
//! and from nowhere else.

use std::{sync::OnceLock, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use lease::{Key, session::Session};
use leasehold_api::{
    Code, paths,
    sessions::{MAX_STREAM_BYTES, STREAMS, WORKER_STREAM},
};
use leasehold_client::Trust;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

use crate::{App, Reject, problem::RETRY_SOON};

/// How long a worker may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection is kept for the next file.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Over plain connections, or encrypted ones.
type Plain = Client<HttpConnector, Empty<Bytes>>;
type Encrypted = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Fetches what workers serve.
pub(super) struct Relay {
    plain: Plain,
    /// Made for the first worker that wants it: reading the machine's certificates takes a while.
    encrypted: OnceLock<Option<Encrypted>>,
    trust: Trust,
    secret: Option<SecretString>,
}

impl Relay {
    pub fn new(secret: Option<SecretString>, trust: Trust) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_nodelay(true);
        Self {
            plain: client(tcp),
            encrypted: OnceLock::new(),
            trust,
            secret,
        }
    }

    fn encrypted(&self) -> Option<&Encrypted> {
        let made = self.encrypted.get_or_init(|| {
            let connector = self.trust.connector(CONNECT_LIMIT);
            connector
                .inspect_err(
                    |error| tracing::error!(%error, "streams cannot be fetched over HTTPS"),
                )
                .ok()
                .map(client)
        });
        made.as_ref()
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
        let encrypted = uri.scheme() == Some(&Scheme::HTTPS);
        let mut request = Request::get(uri);
        if let Some(secret) = &self.secret {
            let bearer = format!("Bearer {}", secret.expose_secret());
            request = request.header(header::AUTHORIZATION, bearer);
        }
        let request = request.body(Empty::new()).map_err(|_| no_answer())?;
        let fetched = timeout(app.parts().limits.request_timeout(), async {
            if encrypted {
                get(self.encrypted()?, request).await
            } else {
                get(&self.plain, request).await
            }
        });
        match fetched.await.ok().flatten() {
            Some((StatusCode::OK, bytes)) => Ok(Some(bytes)),
            Some((StatusCode::NOT_FOUND, _)) => Ok(None),
            _ => Err(no_answer()),
        }
    }
}

fn client<C: Connect + Clone>(connector: C) -> Client<C, Empty<Bytes>> {
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_LIMIT)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

async fn get<C: Connect + Clone + Send + Sync + 'static>(
    client: &Client<C, Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
) -> Option<(StatusCode, Bytes)> {
    let answer = client.request(request).await;
    let answer = answer
        .inspect_err(|error| tracing::debug!(%error, "a worker's stream was not fetched"))
        .ok()?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_STREAM_BYTES).collect();
    Some((status, body.await.ok()?.to_bytes()))
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
    let spoken = |uri: &Uri| [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&uri.scheme());
    Ok(uri.filter(spoken))
}

fn no_answer() -> Reject {
    Reject::new(
        Code::Overloaded,
        "the worker that makes this stream gives no answer",
    )
    .retry_after(RETRY_SOON)
}
