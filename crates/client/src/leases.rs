//! The control plane's calls, one method each.

use http::Method;
use leasehold_api::{
    AcquireRequest, EventList, FenceCheck, FenceVerdicts, HeartbeatAnswer, HeartbeatRequest,
    History, HolderList, HolderPresence, HolderRemoved, Lease, LeaseList, NodeList,
    PresenceRequest, RenewManyRequest, RenewRequest, RenewedList, RevokeRequest, Success,
    ValidateAnswer, ValidateRequest, paths,
};
use serde::de::DeserializeOwned;

use crate::{Client, Error, client::Call, pages::PAGE};

/// A bound on a server whose pages never end.
pub(crate) const MAX_PAGES: usize = 10_000;

/// Which leases a list shows.
#[derive(Clone, Debug, Default)]
pub struct LeaseFilter {
    /// Only this status; everything live when absent.
    pub status: Option<String>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this id.
    pub id: Option<String>,
    /// Only this holder.
    pub holder: Option<String>,
    /// At most this many.
    pub limit: Option<u32>,
    /// Continue after the page that gave this.
    pub cursor: Option<String>,
}

/// Which events a page shows.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only events after this revision.
    pub after: Option<u64>,
    /// Only this kind of key.
    pub kind: Option<String>,
    /// Only this key, `kind:id`.
    pub key: Option<String>,
    /// Only this sort of event.
    pub event_type: Option<String>,
    /// At most this many.
    pub limit: Option<u32>,
}

impl Client {
    /// Asks for one key, one slot of a pool, or one camera.
    pub async fn acquire(&self, request: &AcquireRequest) -> Result<Lease, Error> {
        self.call(self.acquire_call(request)?).await
    }

    /// Asks for several keys, all or none: a request with `keys`.
    pub async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>, Error> {
        let list: LeaseList = self.call(self.acquire_call(request)?).await?;
        Ok(list.leases)
    }

    fn acquire_call(&self, request: &AcquireRequest) -> Result<Call, Error> {
        let mut call = self.with_body(Method::POST, paths::ACQUIRE, request)?;
        // The same holder and incarnation gets the same lease again, of a pool with the same request id;
        // without an incarnation it is not the only one with that name.
        call.repeatable = request.incarnation.is_some()
            && (request.pool.is_none() || request.request_id.is_some());
        let wait = request.wait_seconds.unwrap_or_default();
        call.limit += std::time::Duration::from_millis(wait.millis());
        Ok(call)
    }

    /// Keeps one lease.
    pub async fn renew(&self, lease_id: &str, request: &RenewRequest) -> Result<Lease, Error> {
        let path = paths::fill(paths::RENEW, &[lease_id]);
        self.repeatable(Method::PUT, path, request).await
    }

    /// Keeps many leases of one holder, or all of them, with an answer per lease.
    pub async fn renew_many(&self, request: &RenewManyRequest) -> Result<RenewedList, Error> {
        self.repeatable(Method::POST, paths::RENEW_MANY.to_owned(), request)
            .await
    }

    /// A sign of life for one lease.
    pub async fn heartbeat(
        &self,
        lease_id: &str,
        request: &HeartbeatRequest,
    ) -> Result<HeartbeatAnswer, Error> {
        let path = paths::fill(paths::HEARTBEAT, &[lease_id]);
        self.repeatable(Method::POST, path, request).await
    }

    /// Whether a lease is still live.
    pub async fn validate(
        &self,
        lease_id: &str,
        request: &ValidateRequest,
    ) -> Result<ValidateAnswer, Error> {
        let path = paths::fill(paths::VALIDATE, &[lease_id]);
        self.repeatable(Method::POST, path, request).await
    }

    /// Gives a lease back. Twice is fine.
    pub async fn release(&self, lease_id: &str) -> Result<Success, Error> {
        let mut call = self.get(paths::fill(paths::RELEASE, &[lease_id]));
        call.method = Method::DELETE;
        self.call(call).await
    }

    /// Takes a lease away. Needs the admin scope.
    pub async fn revoke(&self, lease_id: &str, reason: &str) -> Result<Lease, Error> {
        let path = paths::fill(paths::REVOKE, &[lease_id]);
        let request = RevokeRequest {
            reason: reason.to_owned(),
        };
        self.call(self.with_body(Method::POST, path, &request)?)
            .await
    }

    /// One lease, also when it is over and the history still knows it.
    pub async fn lease(&self, lease_id: &str) -> Result<Lease, Error> {
        self.call(self.get(paths::fill(paths::LEASE, &[lease_id])))
            .await
    }

    /// A page of leases in the order of their keys.
    pub async fn leases(&self, filter: &LeaseFilter) -> Result<LeaseList, Error> {
        let path = query(
            paths::LEASES,
            &[
                ("status", filter.status.clone()),
                ("kind", filter.kind.clone()),
                ("id", filter.id.clone()),
                ("holder", filter.holder.clone()),
                ("limit", filter.limit.map(|limit| limit.to_string())),
                ("cursor", filter.cursor.clone()),
            ],
        );
        self.call(self.get(path)).await
    }

    /// All live leases of a kind, in the order of their keys.
    pub async fn leases_of(&self, kind: &str) -> Result<Vec<Lease>, Error> {
        let values = vec![("kind", Some(kind.to_owned()))];
        self.every(paths::LEASES, values, |page: LeaseList| {
            (page.leases, page.next_cursor)
        })
        .await
    }

    /// Everything on a list that comes in pages.
    pub(crate) async fn every<P: DeserializeOwned, T>(
        &self,
        path: &str,
        values: Vec<(&'static str, Option<String>)>,
        split: fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Error> {
        let mut values = values;
        values.push(("limit", Some(PAGE.to_string())));
        let mut found = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = self.call(self.get(query(path, &values))).await?;
            let (items, cursor) = split(page);
            found.extend(items);
            if cursor.is_none() {
                return Ok(found);
            }
            values.retain(|(name, _)| *name != "cursor");
            values.push(("cursor", cursor));
        }
        Err(Error::Unknown(format!(
            "a list of more than {MAX_PAGES} pages"
        )))
    }

    /// A page of the history, oldest first.
    pub async fn events(&self, filter: &EventFilter) -> Result<EventList<'static>, Error> {
        let path = query(
            paths::EVENTS,
            &[
                ("after", filter.after.map(|after| after.to_string())),
                ("kind", filter.kind.clone()),
                ("key", filter.key.clone()),
                ("type", filter.event_type.clone()),
                ("limit", filter.limit.map(|limit| limit.to_string())),
            ],
        );
        self.call(self.get(path)).await
    }

    /// Who owned a key, or who did at the time `at`.
    pub async fn history(
        &self,
        key: &lease::Key,
        at: Option<leasehold_api::Time>,
    ) -> Result<History, Error> {
        let path = query(
            paths::HISTORY,
            &[
                ("key", Some(key.to_string())),
                ("at", at.map(|at| at.to_string())),
            ],
        );
        self.call(self.get(path)).await
    }

    /// Whether tokens still count.
    pub async fn check_fences(&self, request: &FenceCheck) -> Result<FenceVerdicts, Error> {
        self.repeatable(Method::POST, paths::FENCES_CHECK.to_owned(), request)
            .await
    }

    /// Says that a holder is there.
    pub async fn announce(
        &self,
        name: &str,
        request: &PresenceRequest,
    ) -> Result<HolderPresence, Error> {
        let path = paths::fill(paths::HOLDER, &[name]);
        self.repeatable(Method::PUT, path, request).await
    }

    /// A holder leaves gracefully: everything it has is released. A process names its incarnation,
    /// so that it can never end the presence of its successor; without one, whoever is there leaves.
    pub async fn leave(
        &self,
        name: &str,
        incarnation: Option<&str>,
    ) -> Result<HolderRemoved, Error> {
        let incarnation = incarnation.map(ToOwned::to_owned);
        let path = paths::fill(paths::HOLDER, &[name]);
        let mut call = self.get(query(&path, &[("incarnation", incarnation)]));
        call.method = Method::DELETE;
        self.call(call).await
    }

    /// A page of the holders that are there.
    pub async fn holders(&self, cursor: Option<&str>) -> Result<HolderList, Error> {
        let path = query(paths::HOLDERS, &[("cursor", cursor.map(ToOwned::to_owned))]);
        self.call(self.get(path)).await
    }

    /// Who polls what, and what nobody polls.
    pub async fn nodes(&self) -> Result<NodeList, Error> {
        self.call(self.get(paths::NODES)).await
    }

    async fn repeatable<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: &impl serde::Serialize,
    ) -> Result<T, Error> {
        let mut call = self.with_body(method, path, body)?;
        call.repeatable = true;
        self.call(call).await
    }
}

pub(crate) fn query(path: &str, values: &[(&str, Option<String>)]) -> String {
    let given: Vec<_> = values
        .iter()
        .filter_map(|(name, value)| {
            let value = paths::encode(value.as_deref()?);
            Some(format!("{name}={value}"))
        })
        .collect();
    if given.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", given.join("&"))
    }
}
