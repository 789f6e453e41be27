//! Credentials, as their administrator sees them.

use http::Method;
use leasehold_api::{
    CredentialList, CredentialRequest, CredentialSecret, RotateRequest, Success, paths,
};

use crate::{Client, Error};

impl Client {
    /// The credentials that were made.
    pub async fn credentials(&self) -> Result<CredentialList, Error> {
        self.call(self.get(paths::CREDENTIALS)).await
    }

    /// Makes a credential.
    pub async fn create_credential(
        &self,
        request: &CredentialRequest,
    ) -> Result<CredentialSecret, Error> {
        let call = self.with_body(Method::POST, paths::CREDENTIALS, request)?;
        self.call(call).await
    }

    /// Replaces a credential's secret.
    pub async fn rotate_credential(
        &self,
        id: &str,
        request: &RotateRequest,
    ) -> Result<CredentialSecret, Error> {
        let path = paths::fill(paths::CREDENTIAL_ROTATE, &[id]);
        self.call(self.with_body(Method::POST, path, request)?)
            .await
    }

    /// Revokes a credential.
    pub async fn revoke_credential(&self, id: &str) -> Result<(), Error> {
        let mut call = self.get(paths::fill(paths::CREDENTIAL, &[id]));
        call.method = Method::DELETE;
        self.call::<Success>(call).await.map(drop)
    }
}
