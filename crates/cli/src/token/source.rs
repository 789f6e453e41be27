//! Where credentials are: behind a server, or in a store that no server on this machine has open.

use std::sync::Arc;

use leasehold_api::{Credential, CredentialRequest, CredentialSecret, RotateRequest, Seconds};
use leasehold_client::{Client, Error};
use leasehold_clock::{Clock, System};
use leasehold_server::auth::{self, Created, CredentialStore, NewCredential};
use leasehold_store::{Options, Store};
use secrecy::ExposeSecret;

use crate::{
    config::Config,
    connect::{self, refused},
    data_dir,
    exit::{Exit, Failure},
    serve,
};

/// Who made it, where nobody logged in.
const BY: &str = "command line";

/// Where credentials are.
pub enum Source {
    /// Behind a server.
    Server(Client),
    /// In a store.
    Store(Store),
}

impl Source {
    /// The configured server, the local one, or, when none is there, the store that one would open.
    pub async fn find(config: &Config) -> Result<Self, Failure> {
        let client = connect::client(config)?;
        match client.credentials().await {
            Ok(_) => Ok(Self::Server(client)),
            Err(Error::Unavailable(_)) if config.client.url.is_none() => {
                let folder = data_dir::find(config);
                let url = serve::store_url(config, folder.as_ref())?;
                let opened = leasehold_store::open(&url, Options::default(), Arc::new(System));
                let store = opened.await.map_err(|error| {
                    Failure::new(Exit::Failed, format!("cannot open {url}: {error}"))
                        .hint("name the server that has it open with --server")
                })?;
                Ok(Self::Store(store))
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Every credential, oldest first.
    pub async fn list(&self) -> Result<Vec<Credential>, Failure> {
        match self {
            Self::Server(client) => {
                let found = client.credentials().await.map_err(refused)?;
                Ok(found.credentials)
            }
            Self::Store(store) => {
                let found = credentials(store).list().await.map_err(failed)?;
                Ok(found.iter().map(|it| it.shown(System.unix())).collect())
            }
        }
    }

    /// The one credential with this id or name that is not revoked.
    pub async fn one(&self, id_or_name: &str) -> Result<Credential, Failure> {
        let all = self.list().await?;
        let mut found = all
            .into_iter()
            .filter(|it| it.state != "revoked" && (it.id == id_or_name || it.name == id_or_name));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(
                Failure::new(Exit::NotFound, format!("no credential {id_or_name}"))
                    .hint("`leasehold credential ls` lists them"),
            ),
            (Some(_), Some(_)) => Err(Failure::new(
                Exit::Usage,
                format!("several credentials have the name {id_or_name}"),
            )
            .hint("give the id, from `leasehold credential ls`")),
        }
    }

    pub async fn create(&self, request: CredentialRequest) -> Result<CredentialSecret, Failure> {
        match self {
            Self::Server(client) => client.create_credential(&request).await.map_err(refused),
            Self::Store(store) => {
                let scopes = request.scopes.iter().filter_map(|it| it.parse().ok());
                let wanted = NewCredential {
                    name: request.name,
                    scopes: scopes.collect(),
                    tenant: request.tenant_id,
                    expires_in_ms: request.expires_in_seconds.map(Seconds::millis),
                };
                let made = credentials(store).create(wanted, BY, System.unix()).await;
                made.map(|it| shown(&it)).map_err(failed)
            }
        }
    }

    pub async fn rotate(&self, id: &str, grace_ms: u64) -> Result<CredentialSecret, Failure> {
        match self {
            Self::Server(client) => {
                let request = RotateRequest {
                    grace_seconds: Some(Seconds::from_millis(grace_ms)),
                };
                let rotated = client.rotate_credential(id, &request).await;
                rotated.map_err(refused)
            }
            Self::Store(store) => {
                let store = credentials(store);
                let rotated = store.rotate(id, grace_ms, BY, System.unix()).await;
                let rotated = rotated.map_err(failed)?;
                rotated.as_ref().map(shown).ok_or_else(|| gone(id))
            }
        }
    }

    pub async fn revoke(&self, id: &str) -> Result<(), Failure> {
        match self {
            Self::Server(client) => client.revoke_credential(id).await.map_err(refused),
            Self::Store(store) => {
                let revoked = credentials(store).revoke(id, BY, System.unix()).await;
                revoked.map_err(failed)?.map(drop).ok_or_else(|| gone(id))
            }
        }
    }

    /// A store is closed gracefully.
    pub async fn close(&self) -> Result<(), Failure> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Store(store) => serve::close(store).await,
        }
    }
}

fn credentials(store: &Store) -> CredentialStore {
    CredentialStore::new(store.authority())
}

fn shown(created: &Created) -> CredentialSecret {
    CredentialSecret {
        credential: created.credential.shown(System.unix()),
        secret: created.secret.expose_secret().to_owned(),
    }
}

fn gone(id: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("no credential {id}"))
}

fn failed(error: auth::Error) -> Failure {
    match error {
        auth::Error::Store(error) => error.into(),
        error => Failure::new(Exit::Failed, error),
    }
}
