//! One service, one credential, and how calls are made and repeated. A service may have several servers:
//! the next one is asked when it is *unknown* what one would say, never when it said *no*.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use leasehold_api::Problem;
use leasehold_clock::Backoff;
use secrecy::{ExposeSecret, SecretString};
use serde::{
    Serialize,
    de::{DeserializeOwned, DeserializeSeed},
};

use crate::{
    Error, Trust,
    stream::Lifeline,
    transport::{Body, Transport},
};

/// The largest answer that is read: a page of leases or a renewal of ten thousand, with room to spare.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Names a request in both logs.
const REQUEST_ID: &str = "x-request-id";

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the server is: `http://` or `https://`, host, port and perhaps a path before `/api`.
    /// Several servers of one service are separated by commas; they must share a store.
    pub url: String,
    /// The bearer token.
    pub token: Option<SecretString>,
    /// Which certificates are trusted.
    pub trust: Trust,
    /// How long one call may take, all attempts included; a wait comes on top.
    pub limit: Duration,
    /// How often a call is made at most, where a repeat is safe.
    pub attempts: u32,
    /// Who else holds the connection of a holder's stream: see [`Lifeline`].
    pub lifeline: Option<Arc<dyn Lifeline>>,
}

impl Options {
    /// A server, with everything else at its default: a second per call, three attempts.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: None,
            trust: Trust::default(),
            limit: Duration::from_secs(1),
            attempts: 3,
            lifeline: None,
        }
    }

    /// With this bearer token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(SecretString::from(token.into()));
        self
    }
}

/// A client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    /// The servers, at least one.
    bases: Vec<String>,
    /// Counts up whenever a server could not be asked; modulo their number, the one to ask.
    current: AtomicUsize,
    bearer: Option<HeaderValue>,
    options: Options,
}

/// One call to make.
pub(crate) struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub body: Option<Bytes>,
    /// What the body is.
    pub media: &'static str,
    /// Whether a second request does nothing that the first did not.
    pub repeatable: bool,
    pub limit: Duration,
}

impl Client {
    /// A client over TCP, with TLS where the address says so.
    pub fn new(options: Options) -> Result<Self, Error> {
        let transport = Transport::new(&options.trust)?;
        let bases = options
            .url
            .split(',')
            .map(|url| check_url(url.trim()))
            .collect::<Result<Vec<_>, _>>()?;
        let bearer = match &options.token {
            Some(token) => Some(bearer(token)?),
            None => None,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                transport,
                bases,
                current: AtomicUsize::new(0),
                bearer,
                options,
            }),
        })
    }

    /// The address of the server that is asked now.
    pub fn url(&self) -> &str {
        self.base(self.current())
    }

    fn current(&self) -> usize {
        self.inner.current.load(Ordering::Relaxed)
    }

    fn base(&self, current: usize) -> &str {
        &self.inner.bases[current % self.inner.bases.len()]
    }

    /// The server that was asked gave no answer: the next call goes to the next one, unless another
    /// caller has moved on already.
    fn move_on(&self, current: usize) {
        let moved = self.inner.current.compare_exchange(
            current,
            current.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if moved.is_ok() && self.inner.bases.len() > 1 {
            let (from, to) = (self.base(current), self.base(current.wrapping_add(1)));
            tracing::info!(from, to, "server does not answer; trying the next");
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn bearer(&self) -> Option<&HeaderValue> {
        self.inner.bearer.as_ref()
    }

    /// A call without a body.
    pub(crate) fn get(&self, path: impl Into<String>) -> Call {
        Call {
            method: Method::GET,
            path: path.into(),
            body: None,
            media: "application/json",
            repeatable: true,
            limit: self.inner.options.limit,
        }
    }

    /// A call with a JSON body.
    pub(crate) fn with_body(
        &self,
        method: Method,
        path: impl Into<String>,
        body: &impl Serialize,
    ) -> Result<Call, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::Invalid(format!("cannot be written as JSON: {error}")))?;
        Ok(Call {
            body: Some(body.into()),
            repeatable: false,
            method,
            ..self.get(path)
        })
    }

    /// Makes a call, again where that is safe, and reads its answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        self.call_as(call, PhantomData::<T>).await
    }

    /// The same, with an answer that is read as `seed` says.
    pub(crate) async fn call_as<T, S>(&self, call: Call, seed: S) -> Result<T, Error>
    where
        S: for<'de> DeserializeSeed<'de, Value = T> + Copy,
    {
        let limit = call.limit;
        let current = self.current();
        if let Ok(outcome) = tokio::time::timeout(limit, self.attempts(&call, seed)).await {
            return outcome;
        }
        self.move_on(current);
        let server = self.base(current);
        Err(Error::Unknown(format!(
            "{server}: nothing within {limit:?}"
        )))
    }

    async fn attempts<T, S>(&self, call: &Call, seed: S) -> Result<T, Error>
    where
        S: for<'de> DeserializeSeed<'de, Value = T> + Copy,
    {
        let mut backoff = Backoff::new(30, 500);
        let servers = u32::try_from(self.inner.bases.len()).unwrap_or(u32::MAX);
        let mut left = self.inner.options.attempts.max(1).max(servers);
        loop {
            left -= 1;
            let error = match self.once(call, seed).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A definite no, such as a key that is held, is an answer and not a failure.
            let again = left > 0
                && error.is_retryable()
                && !error.is_definite()
                && (call.repeatable || error.has_no_side_effects());
            if !again {
                return Err(error);
            }
            tracing::debug!(path = call.path, %error, "trying again");
            tokio::time::sleep(Duration::from_millis(backoff.next_ms())).await;
        }
    }

    async fn once<T, S>(&self, call: &Call, seed: S) -> Result<T, Error>
    where
        S: for<'de> DeserializeSeed<'de, Value = T>,
    {
        let response = self.open(call).await?;
        let body = read(response.into_body()).await?;
        let reader = &mut serde_json::Deserializer::from_slice(&body);
        seed.deserialize(&mut *reader)
            .and_then(|value| reader.end().map(|()| value))
            .map_err(|error| Error::Unknown(format!("an answer that cannot be read: {error}")))
    }

    /// Makes a call once, up to the head of its answer. Anything but success is an error.
    pub(crate) async fn open(&self, call: &Call) -> Result<Response<Body>, Error> {
        let current = self.current();
        let request = self.request(self.base(current), call)?;
        let sending = self.inner.transport.send(request);
        let response = match sending.await {
            Ok(response) => response,
            Err(failure) => {
                self.move_on(current);
                let error = if failure.sent {
                    Error::Unknown
                } else {
                    Error::Unavailable
                };
                return Err(error(format!("{}: {}", self.base(current), failure.text)));
            }
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = read(response.into_body()).await?;
        let mut problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        problem.status = status.as_u16();
        let error = Error::Problem(Box::new(problem));
        if !error.is_definite() && error.is_retryable() {
            self.move_on(current);
        }
        Err(error)
    }

    fn request(&self, base: &str, call: &Call) -> Result<Request<Full<Bytes>>, Error> {
        let uri: Uri = format!("{base}{}", call.path)
            .parse()
            .map_err(|error| Error::Invalid(format!("path {}: {error}", call.path)))?;
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(uri)
            .header(ACCEPT, "application/json")
            .header(REQUEST_ID, uuid::Uuid::new_v4().to_string());
        if let Some(bearer) = &self.inner.bearer {
            request = request.header(AUTHORIZATION, bearer.clone());
        }
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, call.media);
        }
        request
            .body(Full::new(call.body.clone().unwrap_or_default()))
            .map_err(|error| Error::Invalid(error.to_string()))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("servers", &self.inner.bases)
            .finish_non_exhaustive()
    }
}

async fn read(body: Body) -> Result<Bytes, Error> {
    match Limited::new(body, MAX_ANSWER_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(Error::Unknown(format!("the answer broke off: {error}"))),
    }
}

/// One server's address, as people write it: `https://leases.example`, `localhost:8740`, `:8740`.
fn check_url(url: &str) -> Result<String, Error> {
    let expected = || {
        Error::Invalid(
            "url: expected http:// or https://, a host and no credentials or query".into(),
        )
    };
    let url = match url.split_once("://") {
        Some(_) => url.to_owned(),
        None if url.starts_with(':') => format!("http://127.0.0.1{url}"),
        None if url.is_empty() => return Err(expected()),
        None => format!("http://{url}"),
    };
    let uri: Uri = url.parse().map_err(|_| expected())?;
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
    if !http || !host || uri.query().is_some() {
        return Err(expected());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn bearer(token: &SecretString) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))
        .map_err(|_| Error::Invalid("token: expected visible characters".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_is_refused_before_anything_is_sent() {
        for url in ["", "http://a,", "ftp://a", "http://u:p@a", "http://a/?q=1"] {
            assert!(Client::new(Options::new(url)).is_err(), "{url}");
        }
        for (typed, meant) in [
            ("http://a:1/x/", "http://a:1/x"),
            ("localhost:8740", "http://localhost:8740"),
            (":8740", "http://127.0.0.1:8740"),
        ] {
            assert_eq!(check_url(typed).unwrap(), meant);
        }
    }

    #[test]
    fn the_token_shows_nowhere() {
        let options = Options::new("http://localhost:1").token("secret-token");
        let shown = format!("{options:?} {:?}", Client::new(options.clone()).unwrap());
        assert!(!shown.contains("secret-token"), "{shown}");
        assert!(Client::new(options.token("new\nline")).is_err());
    }
}
