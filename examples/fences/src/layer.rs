//! The fence in front of an HTTP service.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, StatusCode, header};
use lease::{Key, Token};
use tower::{Layer, Service};

use crate::Marks;

/// The header that carries the token; `leasehold poll` sends it too.
pub const FENCE_HEADER: &str = "x-leasehold-fence";
/// The header that names the key that the token belongs to.
pub const KEY_HEADER: &str = "x-leasehold-key";

/// Puts a [`Fence`] around a service.
///
/// ```
/// use axum::{Router, routing::put};
/// use leasehold_fences::{FenceLayer, Marks};
///
/// let marks = Marks::default();
/// let app: Router = Router::new()
///     .route("/documents/{name}", put(async || "written"))
///     .layer(FenceLayer::new(marks));
/// ```
#[derive(Clone, Debug, Default)]
pub struct FenceLayer {
    marks: Marks,
}

impl FenceLayer {
    /// A layer with these marks. Several services that write the same things share them.
    pub fn new(marks: Marks) -> Self {
        Self { marks }
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fence<S>;

    fn layer(&self, inner: S) -> Fence<S> {
        Fence {
            inner,
            marks: self.marks.clone(),
        }
    }
}

/// Lets a request in when its token is not older than the newest that was seen of its key, and one at
/// a time per key. Everything else is answered with a [`Rejection`].
#[derive(Clone, Debug)]
pub struct Fence<S> {
    inner: S,
    marks: Marks,
}

/// Why a request was not let in. Also in the extensions of the response, for layers further out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// 400: a header is missing.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// 400: a header makes no sense.
    #[error("the header {header} must be {expected}")]
    Invalid {
        /// The header.
        header: &'static str,
        /// What it should have been.
        expected: &'static str,
    },
    /// 409: a newer owner has been here.
    #[error("the token {token} of {key} is stale: {newest} has been seen")]
    Stale {
        /// What was to be written.
        key: Key,
        /// The token of the request.
        token: Token,
        /// The newest token.
        newest: Token,
    },
    /// 503: no room to remember another key.
    #[error("too many keys are remembered already")]
    Full,
}

impl Rejection {
    /// The status of the response.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Missing(_) | Self::Invalid { .. } => StatusCode::BAD_REQUEST,
            Self::Stale { .. } => StatusCode::CONFLICT,
            Self::Full => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// A word for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Missing(_) | Self::Invalid { .. } => "FENCE_INVALID",
            Self::Stale { .. } => "STALE_TOKEN",
            Self::Full => "FENCE_FULL",
        }
    }

    fn into_response<B: From<String>>(self) -> Response<B> {
        let status = self.status();
        let problem = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.to_string(),
            "code": self.code(),
        });
        let mut response = Response::new(B::from(problem.to_string()));
        *response.status_mut() = status;
        let media_type = header::HeaderValue::from_static("application/problem+json");
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, media_type);
        response.extensions_mut().insert(self);
        response
    }
}

/// Key and token of a request.
fn presented(headers: &HeaderMap) -> Result<(Key, Token), Rejection> {
    let read = |header: &'static str, expected: &'static str| {
        let value = headers.get(header).ok_or(Rejection::Missing(header))?;
        let wrong = Rejection::Invalid { header, expected };
        value
            .to_str()
            .map_err(|_| wrong.clone())
            .map(|text| (text, wrong))
    };
    let (text, wrong) = read(KEY_HEADER, "a key: kind:id")?;
    let key = text.parse().map_err(|_| wrong)?;
    let (text, wrong) = read(FENCE_HEADER, "a whole number from 1 to 2^53 - 1")?;
    let token = text
        .parse()
        .ok()
        .and_then(|number| Token::new(number).ok())
        .filter(|token| *token > Token::ZERO)
        .ok_or(wrong)?;
    Ok((key, token))
}

impl<S, B, R> Service<Request<B>> for Fence<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that said it is ready is the one that must be called.
        let other = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, other);
        let found = presented(request.headers())
            .and_then(|(key, token)| Ok((self.marks.place(key.clone())?, key, token)));
        Box::pin(async move {
            let (place, key, token) = match found {
                Ok(found) => found,
                Err(rejection) => return Ok(rejection.into_response()),
            };
            let _turn = place.turn.lock().await;
            if let Err(newest) = place.pass(token) {
                return Ok(Rejection::Stale { key, token, newest }.into_response());
            }
            inner.call(request).await
        })
    }
}
