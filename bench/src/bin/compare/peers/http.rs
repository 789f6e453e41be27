//! HTTP/1.1 with as little as a driver needs: a kept connection, one request after the other.

use std::{io::Write as _, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::time::Instant;

use super::wire::Wire;

/// After how long without a request a connection is opened anew: between two rounds of a side the others take
/// longer than a server keeps an idle connection.
const IDLE: Duration = Duration::from_secs(10);

/// A kept connection to an HTTP server.
pub struct Http {
    pub wire: Wire,
    address: SocketAddr,
    used: Instant,
    /// The end of every request's head.
    head: String,
    out: Vec<u8>,
}

impl Http {
    pub async fn open(address: SocketAddr, token: &str) -> Result<Self> {
        Ok(Self {
            wire: Wire::open(address).await?,
            address,
            used: Instant::now(),
            head: format!("host: {address}\r\nauthorization: Bearer {token}\r\n"),
            out: Vec::with_capacity(1024),
        })
    }

    /// Sends a request and gives the body of its answer to `read`.
    pub async fn call<T>(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        read: impl FnOnce(&str) -> T,
    ) -> Result<T> {
        if self.used.elapsed() > IDLE {
            let counted = self.wire.counted.take();
            self.wire = Wire::open(self.address).await?;
            self.wire.counted = counted;
        }
        self.out.clear();
        write!(self.out, "{method} {path} HTTP/1.1\r\n{}", self.head)?;
        if !body.is_empty() {
            write!(
                self.out,
                "content-type: application/json\r\ncontent-length: {}\r\n",
                body.len()
            )?;
        }
        self.out.extend_from_slice(b"\r\n");
        self.out.extend_from_slice(body.as_bytes());
        self.wire.send(&self.out).await?;
        let head = loop {
            if let Some(end) = find(self.wire.input(), b"\r\n\r\n") {
                break end + 4;
            }
            self.wire.fill().await?;
        };
        let text = std::str::from_utf8(&self.wire.input()[..head])?;
        let good = text.as_bytes().get(9) == Some(&b'2');
        let length: usize = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .with_context(|| format!("an answer without its length: {text}"))?
            .1
            .trim()
            .parse()?;
        while self.wire.input().len() < head + length {
            self.wire.fill().await?;
        }
        let body = std::str::from_utf8(&self.wire.input()[head..head + length])?;
        if !good {
            bail!("{method} {path}: {body}");
        }
        let read = read(body);
        self.wire.advance(head + length);
        self.used = Instant::now();
        Ok(read)
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The value of a field of a flat JSON object, without reading the rest.
pub fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = json.split_once(&format!("\"{name}\":"))?;
    let value = after.split([',', '}']).next()?;
    Some(value.trim_matches('"'))
}
