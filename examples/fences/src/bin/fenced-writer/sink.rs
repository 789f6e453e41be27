//! Where documents are written.

use std::time::Duration;

use anyhow::bail;
use lease::{Key, Token};
use leasehold_fences::{FENCE_HEADER, KEY_HEADER, WriteError, postgres, redis as fenced_redis};
use reqwest::StatusCode;
use tokio_postgres::NoTls;

/// How long one HTTP request may take.
const HTTP_LIMIT: Duration = Duration::from_secs(10);

/// A place for documents, with or without a fence.
pub struct Sink {
    place: Place,
    fenced: bool,
}

enum Place {
    Postgres(String),
    Redis(Box<redis::Client>),
    Http(reqwest::Client, String),
}

impl Sink {
    pub fn new(url: &str, fenced: bool) -> anyhow::Result<Self> {
        let place = match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres") => Place::Postgres(url.to_owned()),
            Some("redis") => Place::Redis(Box::new(redis::Client::open(url)?)),
            Some("http") => Place::Http(
                reqwest::Client::builder().timeout(HTTP_LIMIT).build()?,
                url.to_owned(),
            ),
            _ => bail!("--sink must begin with postgres://, redis:// or http://"),
        };
        Ok(Self { place, fenced })
    }

    pub async fn write(&self, key: &Key, token: Token, value: &str) -> Result<(), WriteError> {
        match &self.place {
            Place::Postgres(url) => {
                let (mut client, connection) =
                    tokio_postgres::connect(url, NoTls).await.map_err(failed)?;
                tokio::spawn(connection);
                if self.fenced {
                    return postgres::write(&mut client, key, token, value).await;
                }
                let plain = "INSERT INTO documents VALUES ($1, $2)
                    ON CONFLICT (key) DO UPDATE SET value = excluded.value";
                let written = client.execute(plain, &[&key.as_str(), &value]).await;
                written.map(|_| ()).map_err(failed)
            }
            Place::Redis(client) if self.fenced => {
                fenced_redis::write(client, key, token, value).await
            }
            Place::Redis(client) => {
                let mut connection = client
                    .get_multiplexed_async_connection()
                    .await
                    .map_err(failed)?;
                redis::cmd("SET")
                    .arg(format!("document:{{{key}}}"))
                    .arg(value)
                    .exec_async(&mut connection)
                    .await
                    .map_err(failed)
            }
            // The fence of a service is on its side.
            Place::Http(client, url) => {
                let response = client
                    .put(url)
                    .header(KEY_HEADER, key.as_str())
                    .header(FENCE_HEADER, token.get())
                    .body(value.to_owned())
                    .send()
                    .await
                    .map_err(failed)?;
                let status = response.status();
                let text = response.text().await.map_err(failed)?;
                match status {
                    StatusCode::CONFLICT => Err(WriteError::Stale(text)),
                    status if status.is_success() => Ok(()),
                    status => Err(WriteError::Failed(format!("{status}: {text}").into())),
                }
            }
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> WriteError {
    WriteError::Failed(Box::new(error))
}
