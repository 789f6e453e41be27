//! One HTTP poll: conditional, bounded in time and size, with the fencing token in its headers.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use leasehold_client::Trust;

use super::gate::{Gate, Gated};

/// The header that carries the token, so that whoever is polled can refuse a late owner.
pub const FENCE: &str = "x-leasehold-fence";
/// The header that names what the token belongs to.
pub const KEY: &str = "x-leasehold-key";

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Idle connections are closed before most servers do it, which would race with a request.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

pub(super) type HttpClient = Client<Gated<HttpsConnector<HttpConnector>>, Full<Bytes>>;

/// A client for HTTP and HTTPS, with the machine's certificates, that sends nothing while the gate is shut.
pub(super) fn client(gate: &Gate) -> Result<HttpClient, String> {
    let connector = Trust::Machine
        .connector(CONNECT_LIMIT)
        .map_err(|error| error.to_string())?;
    Ok(Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_LIMIT)
        .pool_timer(TokioTimer::new())
        // A request that fails on a pooled connection is not sent a second time behind our back.
        .retry_canceled_requests(false)
        .build(Gated {
            inner: connector,
            gate: gate.clone(),
        }))
}

/// What makes the next request of a target conditional.
#[derive(Clone, Default, Debug)]
pub(super) struct Validators {
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub content_type: Option<String>,
    pub body: Bytes,
}

impl Answer {
    /// Whether the target is well: it answered with what was asked for, or that nothing changed.
    pub fn is_success(&self) -> bool {
        self.status.is_success() || self.status == StatusCode::NOT_MODIFIED
    }
}

/// A request to make.
pub(super) struct Poll<'a> {
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub target: &'a str,
    pub token: lease::Token,
    /// Only whether the target answers, without its content.
    pub probe: bool,
    pub max_body_bytes: usize,
}

impl Poll<'_> {
    fn request(&self, validators: &Validators) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        if self.probe {
            *request.method_mut() = Method::HEAD;
        }
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(FENCE, HeaderValue::from(self.token.get()));
        let key = format!("{}:{}", lease::polling::POLL, self.target);
        if let Ok(key) = HeaderValue::from_str(&key) {
            headers.insert(KEY, key);
        }
        if !self.probe {
            let conditions = [
                (header::IF_NONE_MATCH, &validators.etag),
                (header::IF_MODIFIED_SINCE, &validators.last_modified),
            ];
            for (name, value) in conditions {
                if let Some(value) = value {
                    headers.insert(name, value.clone());
                }
            }
        }
        request
    }

    /// Sends it. The caller bounds the time.
    pub async fn send(
        &self,
        client: &HttpClient,
        validators: &mut Validators,
    ) -> Result<Answer, String> {
        let request = self.request(validators);
        let response = client
            .request(request)
            .await
            .map_err(|error| chain(&error))?;
        let status = response.status();
        let text = |name: HeaderName| response.headers().get(name).cloned();
        if status.is_success() && !self.probe {
            *validators = Validators {
                etag: text(header::ETAG),
                last_modified: text(header::LAST_MODIFIED),
            };
        }
        let content_type =
            text(header::CONTENT_TYPE).and_then(|value| value.to_str().map(str::to_owned).ok());
        let body = Limited::new(response.into_body(), self.max_body_bytes)
            .collect()
            .await
            .map_err(|error| format!("the answer: {error}"))?
            .to_bytes();
        Ok(Answer {
            status,
            content_type,
            body,
        })
    }
}

/// An error and what caused it, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The configured headers, checked.
pub(super) fn headers(
    configured: &std::collections::BTreeMap<String, String>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("leasehold/", env!("CARGO_PKG_VERSION"))),
    );
    for (name, value) in configured {
        let parsed = HeaderName::try_from(name)
            .map_err(|_| format!("headers: {name:?} is not a header's name"))?;
        // The value may be a secret: it is not repeated.
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("headers: the value of {name} is not valid"))?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}
