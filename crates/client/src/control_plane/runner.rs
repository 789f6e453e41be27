//! The control plane as one runner uses it, and as the [`Authority`] of that runner's camera leases: a
//! [`Keeper`] over it renews, keeps deadlines and gives back, whatever kind of server answers.
//!
//! [`Keeper`]: crate::Keeper

use std::{
    collections::HashMap,
    future::{Future, ready},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Cause, Clock, Command, Departure,
    HandoffState, HandoffStep, Holder, Key, Lease, LeaseId, LeaseRef, Query, Refusal, Renew,
    Renewals, Renewed, Revision, Token, Ttl, UnixMillis, View, Want, Watch, Watching, answered,
};
use leasehold_api::{
    AcquireRequest, CAMERA, Camera, Code, OutagePolicy, RegisterRequest, RenewRequest, Runner,
    RunnerHeartbeatAnswer, RunnerHeartbeatRequest, RunnerRemoved, Seconds, SiteVersion, Success,
    Zone,
};
use secrecy::ExposeSecret as _;
use tokio::sync::broadcast;

use super::{ControlPlaneClient, Outcome};
use crate::{
    Client, Error, HolderStream, Options, Remote, convert,
    keeper::{LossNotice, Losses},
};

/// How many leases of a plain server are renewed concurrently.
const CONCURRENT_PLAIN: usize = 16;
/// How many losses may wait for a keeper that is slow to listen; beyond that it looks for itself.
const LOSSES: usize = 1_024;

/// Is notified of every call: the operation, `yes`, `no` or `unknown`, and how many milliseconds it took.
pub type Observer = Arc<dyn Fn(&'static str, &'static str, u64) + Send + Sync>;

/// The service and the three ways to talk to it.
struct Service {
    control: ControlPlaneClient,
    remote: Remote,
}

/// A lease of a server whose ids and tokens are not ours.
struct PlainLease {
    lease_id: String,
    lease: Lease,
}

/// The control plane for one runner.
pub struct RunnerClient {
    service: ArcSwap<Service>,
    holder: Holder,
    /// `tenant/name`, once it is registered.
    full_name: OnceLock<String>,
    clock: Arc<dyn Clock>,
    losses: broadcast::Sender<LossNotice>,
    // Both held for a few instructions, never over a call.
    stream: Mutex<Option<HolderStream>>,
    plain: Mutex<HashMap<Key, PlainLease>>,
    observer: Observer,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunnerClient {
    /// The control plane for this runner: its name, and an incarnation of this process start. Needs a
    /// tokio runtime once it is registered.
    pub fn new(
        server: Options,
        holder: Holder,
        clock: Arc<dyn Clock>,
        observer: Observer,
    ) -> Result<Self, Error> {
        let service = open(server, &clock)?;
        let (losses, _) = broadcast::channel(LOSSES);
        Ok(Self {
            service: ArcSwap::from_pointee(service),
            holder,
            full_name: OnceLock::new(),
            clock,
            losses,
            stream: Mutex::default(),
            plain: Mutex::default(),
            observer,
        })
    }

    /// Whether it talks to this server, with this credential and these certificates.
    pub fn uses(&self, server: &Options) -> bool {
        let service = self.service.load();
        let own = service.control.client.options();
        let secret = |it: &Options| it.token.as_ref().map(|it| it.expose_secret().to_owned());
        own.url == server.url && own.trust == server.trust && secret(own) == secret(server)
    }

    /// Talks to another server, or with another credential, from now on.
    pub fn replace(&self, server: Options) -> Result<(), Error> {
        let service = open(server, &self.clock)?;
        self.service.store(Arc::new(service));
        // Closes the old one with a goodbye.
        let streamed = lock(&self.stream).take().is_some();
        if streamed {
            self.keep_stream();
        }
        Ok(())
    }

    /// Whose leases these are.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whether the server was found to know only the document's endpoints.
    pub fn is_plain(&self) -> bool {
        self.service.load().control.is_plain()
    }

    /// Whether the holder's stream is up.
    pub fn is_streaming(&self) -> bool {
        lock(&self.stream).as_ref().is_some_and(HolderStream::is_up)
    }

    /// The id under which the server knows a lease.
    pub fn lease_id(&self, lease: &Lease) -> String {
        let plain = lock(&self.plain);
        match plain.get(&lease.key) {
            Some(known) if known.lease.token == lease.token => known.lease_id.clone(),
            _ => lease.id.to_string(),
        }
    }

    /// Passes losses on that a runner heartbeat reported.
    pub fn lost(&self, reported: LossNotice) {
        // Nobody listening is fine.
        drop(self.losses.send(reported));
    }

    /// Registers this runner, and opens its stream where the server has one.
    pub async fn register(&self, request: &RegisterRequest) -> Outcome<Runner> {
        let outcome = self
            .outcome("register", |at| async move {
                at.control.register_runner(request).await
            })
            .await;
        if matches!(outcome, Outcome::Yes(_)) {
            let name = format!("{}/{}", request.tenant_id, request.runner_id);
            drop(self.full_name.set(name));
            self.keep_stream();
        }
        outcome
    }

    /// What the server knows this runner by.
    fn name(&self) -> &str {
        let own = self.full_name.get().map(String::as_str);
        own.unwrap_or(self.holder.name.as_str())
    }

    /// Renews everything this runner has, and learns what it lost and should do.
    pub async fn heartbeat(
        &self,
        request: &RunnerHeartbeatRequest,
        leases: &[Lease],
    ) -> Outcome<RunnerHeartbeatAnswer> {
        let name = self.name();
        self.outcome("heartbeat", |at| async move {
            // A plain server's leases are renewed one by one, which the keeper does already.
            let leases: Vec<_> = if at.control.is_plain() {
                Vec::new()
            } else {
                leases.iter().map(leasehold_api::Lease::from).collect()
            };
            at.control.heartbeat(name, request, &leases).await
        })
        .await
    }

    /// Takes this runner off the list.
    pub async fn deregister(&self) -> Outcome<RunnerRemoved> {
        let name = self.name();
        self.outcome("deregister", |at| async move {
            at.control.remove_runner(name).await
        })
        .await
    }

    /// All cameras of a site.
    pub async fn cameras(&self, tenant: &str, site: &str) -> Outcome<Vec<Camera>> {
        self.outcome("cameras", |at| async move {
            at.control.cameras(tenant, site).await
        })
        .await
    }

    /// All zones of a site.
    pub async fn zones(&self, tenant: &str, site: &str) -> Outcome<Vec<Zone>> {
        self.outcome(
            "zones",
            |at| async move { at.control.zones(tenant, site).await },
        )
        .await
    }

    /// The versions of a site's configuration.
    pub async fn version(&self, tenant: &str, site: &str) -> Outcome<SiteVersion> {
        self.outcome("version", |at| async move {
            at.control.version(tenant, site).await
        })
        .await
    }

    /// Cameras that nobody holds.
    pub async fn available(&self, tenant: &str, site: &str) -> Outcome<Vec<String>> {
        self.outcome("available", |at| async move {
            at.control.available_cameras(tenant, site).await
        })
        .await
    }

    /// The runners of a site.
    pub async fn runners(&self, tenant: &str, site: &str) -> Outcome<Vec<Runner>> {
        self.outcome("runners", |at| async move {
            at.control.runners(tenant, site).await
        })
        .await
    }

    /// Sends the newest still of a camera. Not observed: a still that gets lost is no trouble.
    pub async fn picture(
        &self,
        camera_uuid: &str,
        token: u64,
        size: (u32, u32),
        picture: Bytes,
    ) -> Outcome<Success> {
        let service = self.service.load_full();
        service
            .control
            .picture(camera_uuid, token, size, picture)
            .await
    }

    /// Closes the stream: what follows is not this process's death.
    pub async fn close(&self) {
        let stream = lock(&self.stream).take();
        if let Some(stream) = stream {
            stream.close().await;
        }
    }

    async fn outcome<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Service>) -> F,
    ) -> Outcome<T>
    where
        F: Future<Output = Outcome<T>>,
    {
        let result = self
            .ask(operation, Error::is_definite, |at| {
                let outcome = call(at);
                async move { outcome.await.into_result() }
            })
            .await;
        result.into()
    }

    /// The kernel's own interface of whichever server answers.
    async fn remote<T, F>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Arc<Service>) -> F,
    ) -> Result<T, lease::Error>
    where
        F: Future<Output = Result<T, lease::Error>>,
    {
        let definite = |error: &lease::Error| !error.is_retryable();
        self.ask(operation, definite, call).await
    }

    async fn ask<T, E, F>(
        &self,
        operation: &'static str,
        definite: impl Fn(&E) -> bool,
        call: impl FnOnce(Arc<Service>) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let began = self.clock.boot();
        let result = call(self.service.load_full()).await;
        let word = match &result {
            Ok(_) => "yes",
            Err(error) if definite(error) => "no",
            Err(_) => "unknown",
        };
        (self.observer)(operation, word, self.clock.boot().since(began));
        result
    }

    /// Opens this runner's stream, where the server has one.
    fn keep_stream(&self) {
        let service = self.service.load();
        let mut slot = lock(&self.stream);
        if service.control.is_plain() || slot.is_some() {
            return;
        }
        let stream = service.remote.stream(&self.holder);
        let (mut from, to) = (stream.subscribe(), self.losses.clone());
        tokio::spawn(async move {
            loop {
                match from.recv().await {
                    Ok(reported) => drop(to.send(reported)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        drop(to.send(LossNotice::Missed));
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        *slot = Some(stream);
    }

    async fn acquire_camera(&self, request: Acquire) -> Result<Acquired, lease::Error> {
        let Want::All(keys) = &request.want else {
            return Err(lease::Error::Unsupported("a pool of cameras"));
        };
        let [key] = keys.as_slice() else {
            return Err(lease::Error::Unsupported("several cameras in one step"));
        };
        if key.kind() != CAMERA {
            return Err(lease::Error::Unsupported("leases of anything but cameras"));
        }
        if self.is_streaming() {
            let asked = request.clone();
            let answer = self.remote(
                "acquire",
                |at| async move { at.remote.acquire(asked).await },
            );
            match answer.await {
                // Why it is a no, the plain call says in the words of runners and cameras.
                Err(error) if !error.is_retryable() => {}
                answer => return answer,
            }
        }
        let label = |name: &str| request.labels.get(name).map(str::to_owned);
        let wire = AcquireRequest {
            camera_uuid: Some(key.id().to_owned()),
            runner_id: Some(request.holder.name.as_str().to_owned()),
            incarnation: Some(request.holder.incarnation.as_str().to_owned()),
            shard_id: label("shard"),
            tenant_id: label(lease::TENANT),
            site_id: label(lease::SITE),
            config_version: label("config_version"),
            zone_version: label("zone_version"),
            ttl_seconds: Some(Seconds::from_millis(request.ttl.millis())),
            on_outage: Some(OutagePolicy::from(request.on_outage)),
            release_on_death: Some(request.release_on_death),
            ..AcquireRequest::default()
        };
        let wire = &wire;
        let outcome = self
            .outcome(
                "acquire",
                |at| async move { at.control.acquire(wire).await },
            )
            .await;
        let granted = match outcome {
            Outcome::Yes(granted) => granted,
            Outcome::No(error) => return refused(key, error),
            Outcome::Unknown(error) => return Err(error.into()),
        };
        let lease = match granted.incarnation {
            Some(_) => convert::lease(&granted).map_err(|invalid| unreadable(&invalid))?,
            None => self.plain_lease(key, &granted, &request)?,
        };
        Ok(Acquired::Granted {
            leases: vec![lease],
            fresh: true,
        })
    }

    /// What a server said that has no incarnations, and perhaps no tokens: its grants are fenced by when
    /// they were made, and never trusted for longer than was asked for.
    fn plain_lease(
        &self,
        key: &Key,
        granted: &leasehold_api::Lease,
        request: &Acquire,
    ) -> Result<Lease, lease::Error> {
        let acquired_at = granted.acquired_at.0;
        let lasts = granted.expires_at.0.since(acquired_at);
        let ttl_ms = request.ttl.millis().min(lasts).max(1);
        let token = match granted.token {
            0 => acquired_at.get(),
            token => token,
        };
        let lease = Lease {
            id: LeaseId::from_grant(acquired_at, Revision::new(0)),
            key: key.clone(),
            holder: request.holder.clone(),
            token: Token::new(token).map_err(|invalid| unreadable(&invalid))?,
            ttl: Ttl::from_millis(ttl_ms).map_err(|invalid| unreadable(&invalid))?,
            on_outage: request.on_outage,
            release_on_death: false,
            acquired_at,
            expires_at: granted.expires_at.0,
            renewed_at: None,
            status: lease::Status::Active,
            labels: request.labels.clone(),
            stats: None,
            handoff: None,
        };
        let known = PlainLease {
            lease_id: granted.lease_id.clone(),
            lease: lease.clone(),
        };
        lock(&self.plain).insert(key.clone(), known);
        Ok(lease)
    }

    async fn renew_all(&self, request: Renew) -> Result<Vec<Renewed>, lease::Error> {
        let Renewals::These(wanted) = &request.leases else {
            return Err(lease::Error::Unsupported(
                "renewing leases that are not named",
            ));
        };
        let plain: Vec<(String, Lease)> = {
            let known = lock(&self.plain);
            wanted
                .iter()
                .filter_map(|one| {
                    let it = known.get(&one.key)?;
                    (it.lease.token == one.token).then(|| (it.lease_id.clone(), it.lease.clone()))
                })
                .collect()
        };
        if !plain.is_empty() {
            return self.renew_plain(plain).await;
        }
        // What goes through the remote authority takes the stream while it is up.
        self.keep_stream();
        self.remote("renew", |at| async move { at.remote.renew(request).await })
            .await
    }

    /// Lease by lease. One that the server did not answer for is left out: it is neither kept nor lost.
    async fn renew_plain(
        &self,
        leases: Vec<(String, Lease)>,
    ) -> Result<Vec<Renewed>, lease::Error> {
        let renewals = leases.into_iter().map(|(id, lease)| async move {
            let id = id.as_str();
            let outcome = self
                .outcome("renew", |at| async move {
                    at.control.renew(id, &RenewRequest::default()).await
                })
                .await;
            let outcome = match outcome {
                Outcome::Yes(kept) => Ok(Lease {
                    expires_at: kept.expires_at.0,
                    ..lease.clone()
                }),
                Outcome::No(error) => Err(error.loss()),
                Outcome::Unknown(_) => return None,
            };
            Some(Renewed {
                key: lease.key,
                token: lease.token,
                outcome,
            })
        });
        let renewed: Vec<_> = stream::iter(renewals)
            .buffer_unordered(CONCURRENT_PLAIN)
            .filter_map(|one| async move { one })
            .collect()
            .await;
        if renewed.is_empty() {
            return Err(lease::Error::Unavailable("nothing was renewed".into()));
        }
        Ok(renewed)
    }

    async fn give_back(&self, lease: LeaseRef) -> Result<bool, lease::Error> {
        let plain = lock(&self.plain)
            .get(&lease.key)
            .filter(|known| known.lease.token == lease.token)
            .map(|known| known.lease_id.clone());
        let Some(id) = plain else {
            return self
                .remote(
                    "release",
                    |at| async move { at.remote.release(lease).await },
                )
                .await;
        };
        let id = id.as_str();
        self.outcome("release", |at| async move { at.control.release(id).await })
            .await
            .into_result()?;
        lock(&self.plain).remove(&lease.key);
        Ok(true)
    }

    async fn leave(&self, departure: Departure) -> Result<Vec<Lease>, lease::Error> {
        let plain: Vec<Lease> = lock(&self.plain)
            .values()
            .map(|known| known.lease.clone())
            .collect();
        if plain.is_empty() && !self.is_plain() {
            return self
                .remote(
                    "depart",
                    |at| async move { at.remote.depart(departure).await },
                )
                .await;
        }
        for lease in &plain {
            self.give_back(LeaseRef::from(lease)).await?;
        }
        Ok(plain)
    }

    async fn step(&self, step: HandoffStep) -> Result<HandoffState, lease::Error> {
        if self.is_plain() {
            return Err(unsupported());
        }
        self.remote("handoff", |at| async move { at.remote.handoff(step).await })
            .await
    }

    async fn live(&self, key: Key) -> Result<Option<Lease>, lease::Error> {
        if self.is_plain() {
            return Ok(lock(&self.plain).get(&key).map(|it| it.lease.clone()));
        }
        self.remote("lease", |at| async move { at.remote.lease(key).await })
            .await
    }

    async fn reach(&self) -> Result<UnixMillis, lease::Error> {
        if !self.is_plain() {
            return self
                .remote("reach", |at| async move { at.remote.now().await })
                .await;
        }
        let name = self.name();
        match self
            .outcome("reach", |at| async move { at.control.runner(name).await })
            .await
        {
            Outcome::Yes(_) | Outcome::No(_) => Ok(self.clock.unix()),
            Outcome::Unknown(error) => Err(error.into()),
        }
    }
}

fn open(server: Options, clock: &Arc<dyn Clock>) -> Result<Service, Error> {
    let client = Client::new(server)?;
    Ok(Service {
        control: ControlPlaneClient::over(client.clone(), clock.clone()),
        remote: Remote::new(client),
    })
}

fn unreadable(invalid: &lease::Invalid) -> lease::Error {
    lease::Error::Unknown(format!("an answer that cannot be read: {invalid}"))
}

/// A definite no is a refusal where the kernel has a word for it.
fn refused(key: &Key, error: Error) -> Result<Acquired, lease::Error> {
    let cause = match (&error, error.code()) {
        (Error::Problem(problem), Some(Code::LeaseAlreadyHeld)) => {
            let name = problem.holder.as_deref().unwrap_or("unknown");
            let holder = leasehold_api::holder(name, None)
                .or_else(|_| leasehold_api::holder("unknown", None))?;
            Cause::Held {
                holder,
                token: Token::ZERO,
                left_ms: problem.retry_after_seconds.map_or(0, Seconds::millis),
                labels: lease::Labels::default(),
            }
        }
        (_, Some(Code::RunnerAtCapacity)) => Cause::Limit { limit: 0 },
        _ => return Err(error.into()),
    };
    Ok(Acquired::Refused(Refusal {
        key: key.clone(),
        cause,
    }))
}

impl Losses for RunnerClient {
    fn subscribe(&self) -> broadcast::Receiver<LossNotice> {
        self.losses.subscribe()
    }
}

/// Leases of cameras, as a keeper needs them; nothing else.
impl Authority for RunnerClient {
    fn capabilities(&self) -> Capabilities {
        self.service.load().remote.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, lease::Outcome> {
        match command {
            Command::Acquire(request) => {
                answered(self.acquire_camera(request), lease::Outcome::Acquired)
            }
            Command::Renew(request) => answered(self.renew_all(request), lease::Outcome::Renewed),
            Command::Release(lease) => answered(self.give_back(lease), lease::Outcome::Released),
            Command::Depart(departure) => answered(self.leave(departure), lease::Outcome::Departed),
            Command::Handoff(step) => answered(self.step(step), lease::Outcome::Handoff),
            _ => Box::pin(ready(Err(unsupported()))),
        }
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        match query {
            Query::Now(()) => answered(self.reach(), View::Now),
            Query::Lease(key) => answered(self.live(key), View::Lease),
            _ => Box::pin(ready(Err(unsupported()))),
        }
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async move {
            if self.is_plain() {
                return Err(unsupported());
            }
            self.remote("watch", |at| async move { at.remote.watch(watching).await })
                .await
        })
    }
}

fn unsupported() -> lease::Error {
    lease::Error::Unsupported("only camera leases over a control plane")
}
