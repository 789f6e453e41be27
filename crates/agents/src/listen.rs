//! A small HTTP surface: a few simultaneous callers, each with a bounded time to send its request.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};

/// How long a caller may take to send its request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How many callers are served simultaneously: a scraper or two, a manager, and some people.
const CALLERS: usize = 32;
/// The media type of metrics.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers every request with `handler` until it is dropped.
pub(crate) async fn serve<H>(listener: TcpListener, handler: H)
where
    H: AsyncHandler,
{
    let places = Arc::new(Semaphore::new(CALLERS));
    let handler = Arc::new(handler);
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor left, for instance: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let handler = handler.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(handler.answer(request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asked may be gone.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// What answers requests.
pub(crate) trait AsyncHandler: Send + Sync + 'static {
    /// Answers one.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// An answer in plain text.
pub(crate) fn plain(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    with(status, "text/plain; charset=utf-8", text.into())
}

/// An answer of this media type.
pub(crate) fn with(status: StatusCode, media: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
