//! Requests from where the test runs, or from inside a network that the test itself is not in.

use std::sync::Arc;

use leasehold_testkit::{Namespace, Namespaces};
use serde_json::Value;

use crate::cli_support::SOON;

/// Which side of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// That of the control plane.
    Near,
    /// The other one.
    Far,
}

/// Asks over HTTP.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    http: reqwest::Client,
    inside: Option<(Arc<Namespaces>, Side)>,
}

impl Ask {
    pub fn here() -> Self {
        Self {
            http: reqwest::Client::new(),
            inside: None,
        }
    }

    pub fn inside(network: Arc<Namespaces>) -> Self {
        Self {
            inside: Some((network, Side::Near)),
            ..Self::here()
        }
    }

    /// The same from this side.
    pub fn on(&self, side: Side) -> Self {
        let inside = self.inside.as_ref();
        Self {
            http: self.http.clone(),
            inside: inside.map(|(network, _)| (network.clone(), side)),
        }
    }

    /// Where it asks from, when that is a network of its own.
    pub fn network(&self) -> Option<&Namespace> {
        self.inside.as_ref().map(|(network, side)| match side {
            Side::Near => network.a(),
            Side::Far => network.b(),
        })
    }

    /// The status and the body, JSON or nothing; `None` without an answer.
    pub async fn send(
        &self,
        method: &str,
        url: &str,
        credential: Option<&str>,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        if let Some(network) = self.network() {
            return curl(network, method, url, credential, body).await;
        }
        let method = method.parse().expect("a method");
        let mut request = self.http.request(method, url).timeout(SOON);
        if let Some(credential) = credential {
            request = request.bearer_auth(credential);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.unwrap_or(Value::Null)))
    }
}

async fn curl(
    network: &Namespace,
    method: &str,
    url: &str,
    credential: Option<&str>,
    body: Option<&Value>,
) -> Option<(u16, Value)> {
    let limit = SOON.as_secs().to_string();
    let mut curl = network
        .program("curl")
        .args(["--silent", "--max-time", &limit, "--request", method, url])
        .args(["--write-out", "\n%{http_code}"]);
    if let Some(credential) = credential {
        let header = format!("Authorization: Bearer {credential}");
        curl = curl.args(["--header", &header]);
    }
    if let Some(body) = body {
        let header = "Content-Type: application/json";
        curl = curl.args(["--header", header, "--data", &body.to_string()]);
    }
    let answer = curl.run().await.ok()?;
    let (body, status) = answer.trim_end().rsplit_once('\n')?;
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    Some((status.parse().ok()?, body))
}
