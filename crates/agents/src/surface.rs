//! The small HTTP surface of an agent: bounded in callers, time and size.

use std::{convert::Infallible, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold_api::{
    exposition,
    sessions::{MAX_STREAM_BYTES, stream_file},
};
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use crate::process;

/// How long a caller may take to send its request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How many callers are served at the same time.
const CALLERS: usize = 64;
/// The largest body that is read: more than the largest shard with its zones.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

pub(crate) type Answer = Response<Full<Bytes>>;

/// What the next connection is encrypted with: a certificate may be renewed while it is served. For HTTP/1.1,
/// which is all that is spoken here.
pub type Tls = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// Binds an address, with it in the error.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
}

/// Serves until it is dropped.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    serve_with(listener, None, answer).await;
}

async fn serve_with<F>(
    listener: TcpListener,
    tls: Option<Tls>,
    answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    let answer = Arc::new(answer);
    let permits = Arc::new(Semaphore::new(CALLERS));
    loop {
        // Never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor left, for instance: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        let tls = tls.as_ref().map(|current| TlsAcceptor::from(current()));
        tokio::spawn(async move {
            match tls {
                None => converse(stream, &*answer).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(PATIENCE, tls.accept(stream)).await {
                        converse(stream, &*answer).await;
                    }
                }
            }
            drop(permit);
        });
    }
}

/// Answers the requests of one caller until it is gone.
async fn converse<F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &(impl Fn(Request<Bytes>) -> F + Sync),
) where
    F: Future<Output = Answer> + Send,
{
    let service = service_fn(async |request: Request<hyper::body::Incoming>| {
        let (head, body) = request.into_parts();
        let body = Limited::new(body, MAX_BODY_BYTES).collect();
        let answered = match timeout(PATIENCE, body).await {
            Ok(Ok(body)) => answer(Request::from_parts(head, body.to_bytes())).await,
            Ok(Err(_)) => plain(StatusCode::PAYLOAD_TOO_LARGE, "too large\n"),
            Err(_) => plain(StatusCode::REQUEST_TIMEOUT, "too slow\n"),
        };
        Ok::<_, Infallible>(answered)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    // The caller may be gone.
    let _ = connection.await;
}

/// The figures of registries and of this process, in the format that the caller asks for.
pub(crate) fn metrics(request: &Request<Bytes>, registries: &[&Registry]) -> Answer {
    let accept = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let (media, text) = exposition::answer(accept, process::text(registries));
    with(StatusCode::OK, media, text)
}

/// The streams of a worker, for servers on other machines.
#[derive(Debug)]
pub struct Streams {
    /// Where sessions write.
    pub output_dir: PathBuf,
    /// What a server must send as its bearer; nothing where only this machine can ask.
    pub secret: Option<SecretString>,
}

impl Streams {
    /// The file that a path below `/streams/` names, for whoever may have it.
    async fn answer(&self, request: &Request<Bytes>, path: &str) -> Answer {
        if !self.admits(request) {
            return plain(StatusCode::UNAUTHORIZED, "the secret is wrong\n");
        }
        let named = path.split_once('/').and_then(|(session, file)| {
            Some((Uuid::parse_str(session).ok()?, stream_file(file)?.0, file))
        });
        let Some((session, media, file)) = named else {
            return plain(StatusCode::NOT_FOUND, "no such file\n");
        };
        let path = self.output_dir.join(session.to_string()).join(file);
        let length = tokio::fs::metadata(&path).await.map(|it| it.len());
        if !length.is_ok_and(|length| length <= MAX_STREAM_BYTES as u64) {
            return plain(StatusCode::NOT_FOUND, "no such file\n");
        }
        match tokio::fs::read(path).await {
            Ok(bytes) => with(StatusCode::OK, media, bytes),
            Err(_) => plain(StatusCode::NOT_FOUND, "no such file\n"),
        }
    }

    fn admits(&self, request: &Request<Bytes>) -> bool {
        let Some(secret) = &self.secret else {
            return true;
        };
        let expected = format!("Bearer {}", secret.expose_secret());
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.map_or(&[][..], HeaderValue::as_bytes);
        // In the same time however much of it is right.
        let differs = |(one, other): (&u8, &u8)| one ^ other;
        given.len() == expected.len()
            && given
                .iter()
                .zip(expected.as_bytes())
                .map(differs)
                .fold(0, |all, it| all | it)
                == 0
    }
}

/// Serves a worker's `/metrics`, `/healthz` and, where there are some, its streams until it is dropped.
pub async fn serve_worker(
    address: SocketAddr,
    registry: Registry,
    streams: Option<Streams>,
    tls: Option<Tls>,
) -> io::Result<()> {
    let listener = bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, encrypted = tls.is_some(), "metrics are served");
    let served = Arc::new((registry, streams));
    serve_with(listener, tls, move |request| {
        let served = served.clone();
        async move {
            let (registry, streams) = &*served;
            let path = request.uri().path().trim_end_matches('/');
            if let (Some(streams), Some(path)) = (streams, path.strip_prefix("/streams/")) {
                return streams.answer(&request, path).await;
            }
            match path {
                "" | "/metrics" => metrics(&request, &[registry]),
                "/healthz" => plain(StatusCode::OK, "ok\n"),
                _ => plain(StatusCode::NOT_FOUND, "here are /metrics and /healthz\n"),
            }
        }
    })
    .await;
    Ok(())
}

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => with(status, "application/json", text),
        Err(_) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not to be written down\n",
        ),
    }
}

/// A sentence for people.
pub(crate) fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    with(status, "text/plain; charset=utf-8", text.into())
}

fn with(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
