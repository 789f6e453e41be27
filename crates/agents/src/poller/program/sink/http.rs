//! A POST per result.

use ::http::{HeaderValue, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};

use super::{
    super::{
        fetch::{FENCE, HttpClient, KEY, chain},
        report::Report,
    },
    Delivery,
};

/// Sends results to a server, which answers 409 or 412 when it knows a newer token.
pub(in super::super) struct HttpSink {
    uri: Uri,
    client: HttpClient,
}

impl HttpSink {
    pub fn new(url: &str, client: HttpClient) -> Result<Self, String> {
        let uri: Uri = url
            .parse()
            .map_err(|_| "poll.sinks: the url of an HTTP sink is not a URL".to_owned())?;
        if uri.host().is_none() {
            return Err("poll.sinks: the url of an HTTP sink names no host".to_owned());
        }
        Ok(Self { uri, client })
    }

    pub async fn deliver(&self, report: &Report, text: String) -> Result<Delivery, String> {
        let mut request = Request::post(self.uri.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(FENCE, report.token.get())
            .body(Full::new(Bytes::from(text)))
            .map_err(|error| error.to_string())?;
        let key = format!("{}:{}", lease::polling::POLL, report.target);
        if let Ok(key) = HeaderValue::from_str(&key) {
            request.headers_mut().insert(KEY, key);
        }
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| chain(&error))?;
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let _ = response.into_body().collect().await;
        match status {
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Ok(Delivery::Stale),
            status if status.is_success() => Ok(Delivery::Accepted),
            status => Err(format!("the sink answered {status}")),
        }
    }
}
