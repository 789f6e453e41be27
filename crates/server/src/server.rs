//! The server: assembled, bound to its address, run until it is asked to stop.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::middleware;
use axum_server::{Handle, accept::NoDelayAcceptor, tls_rustls::RustlsAcceptor};
use hyper::body::Incoming;
use hyper_util::rt::TokioTimer;
use lease::{Authority, Clock};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer as _, util::MapRequestLayer};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    App, Options,
    app::Parts,
    auth::{self, CredentialStore, Credentials, Failures, Networks},
    connections::{Admission, Slots},
    frame,
    metrics::Metrics,
    openapi,
    options::RunnerOptions,
    outbox,
    pictures::Pictures,
    recent::Recent,
    registry, replicas, routes, sampler,
    shed::Shed,
    streams::{Hub, Rooms},
    tls::Certificate,
};

/// How long the server waits for its own watch before it serves without one.
const WATCH_FIRST: Duration = Duration::from_secs(1);

/// How long a caller may take to send the head of a request, or stay silent between two requests.
const MAX_HEADER_TIME: Duration = Duration::from_secs(60);

/// How many callers may connect at the same moment. The kernel drops the first packet of any more, and they try
/// again a second later.
const BACKLOG: u32 = 4096;

/// How often expired credentials are looked for, for the sake of open streams.
const EXPIRIES_EVERY: Duration = Duration::from_millis(500);
/// How long an HTTP/2 connection may be silent before it is asked whether it is there, and how long it
/// has to answer.
const HTTP2_KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A server that is started again gets its address although old connections linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Why a server could not be started or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No authority or no clock was given.
    #[error("a server needs {0}")]
    Missing(&'static str),
    /// A setting is wrong.
    #[error(transparent)]
    Invalid(#[from] lease::Invalid),
    /// The address would be open to others without encryption.
    #[error(
        "refusing to listen on {0} without TLS: configure tls, or set insecure_listen if something else encrypts"
    )]
    Unencrypted(SocketAddr),
    /// The tokens could not be used.
    #[error(transparent)]
    Tokens(#[from] auth::Error),
    /// The certificate could not be used.
    #[error("tls: {0}")]
    Tls(String),
    /// The address could not be used.
    #[error("{address}: {source}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// What happened.
        source: io::Error,
    },
    /// The server failed while it ran.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Puts a server together.
#[derive(Default)]
pub struct Builder {
    options: Options,
    authority: Option<Arc<dyn Authority>>,
    clock: Option<Arc<dyn Clock>>,
    routes: Option<OpenApiRouter<App>>,
    metrics: Metrics,
}

impl Builder {
    /// The settings.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Who decides.
    pub fn authority(mut self, authority: Arc<dyn Authority>) -> Self {
        self.authority = Some(authority);
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// One more route, beside those that every server has.
    pub fn route(mut self, route: OpenApiRouter<App>) -> Self {
        self.routes = Some(self.routes.unwrap_or_default().merge(route));
        self
    }

    /// The registry that routes from outside count in.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Checks the settings and binds the address. Nothing is served yet.
    pub async fn bind(self) -> Result<Server, Error> {
        let options = self.options;
        let authority = self.authority.ok_or(Error::Missing("an authority"))?;
        let clock = self.clock.ok_or(Error::Missing("a clock"))?;
        options.limits.check()?;
        let guard = Networks::new(options.lan_guard.as_ref(), &options.trusted_proxies)?;
        if options.tls.is_none() && !options.insecure_listen && !options.listen.ip().is_loopback() {
            return Err(Error::Unencrypted(options.listen));
        }
        let data_dir = options.data_dir.as_deref();
        let tls = options
            .tls
            .as_ref()
            .map(|options| Certificate::load(options, data_dir))
            .transpose()?;
        let sessions = routes::v3::router(options.sessions, &self.metrics)?;
        let credentials = Credentials::open(
            data_dir,
            &options.tokens,
            CredentialStore::new(authority.clone()),
            clock.clone(),
        )
        .await?;
        let listen = |source| Error::Listen {
            address: options.listen,
            source,
        };
        let listener = listener(options.listen).map_err(listen)?;
        let local_addr = listener.local_addr().map_err(listen)?;
        let prepared = options
            .amqp
            .map(|url| outbox::prepare(url, &self.metrics))
            .transpose()?;
        let (outbox, pending) = prepared.unzip();
        let (sites, following) = registry::view::Sites::new();
        let app = App::new(Parts {
            authority,
            clock,
            credentials,
            failures: Failures::default(),
            guard,
            metrics: self.metrics,
            shed: Shed::new(&options.limits),
            hub: Hub::default(),
            rooms: Rooms::default(),
            sites,
            recent: Recent::default(),
            pictures: Pictures::default(),
            limits: options.limits,
            outbox: outbox.unwrap_or_default(),
            encrypted: tls.is_some(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let routes = routes::all()
            .merge(sessions)
            .merge(self.routes.unwrap_or_default());
        Ok(Server {
            app,
            listener: listener.into_std().map_err(listen)?,
            local_addr,
            tls,
            routes,
            pending,
            following,
            runners: options.runners,
            replica: options.replica,
        })
    }
}

/// A server that is bound to its address.
pub struct Server {
    app: App,
    listener: std::net::TcpListener,
    local_addr: SocketAddr,
    tls: Option<Certificate>,
    routes: OpenApiRouter<App>,
    pending: Option<outbox::Pending>,
    following: registry::view::Pending,
    runners: RunnerOptions,
    replica: Option<String>,
}

impl Server {
    /// Begins to put a server together.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The address it listens on, with the port that was found when none was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The certificate it shows, if connections are encrypted: to read it again when it was renewed.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls.clone()
    }

    /// Where to reach it, for people on this machine.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.local_addr)
    }

    /// Serves until `shutdown` resolves, then stops gracefully: no new connections, a goodbye on
    /// every stream, open requests finished, all within a bounded time.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let address = self.url();
        let app = self.app;
        let parts = app.parts();
        let (router, _) = openapi::with_spec(self.routes);
        let router = router
            .layer(middleware::from_fn_with_state(app.clone(), frame::frame))
            .with_state(app.clone());
        let service = MapRequestLayer::new(frame::without_trailing_slash::<Incoming>).layer(router);
        let make = axum::ServiceExt::<http::Request<Incoming>>::into_make_service_with_connect_info::<
            SocketAddr,
        >(service);

        let begun = CancellationToken::new();
        let hub = tokio::spawn(parts.hub.clone().run(
            parts.authority.clone(),
            parts.clock.clone(),
            parts.metrics.clone(),
            parts.closing.clone(),
            begun.clone(),
        ));
        // The first request should find the watch open; a store that is away must not hold the server up.
        let _ = tokio::time::timeout(WATCH_FIRST, begun.cancelled()).await;
        let housekeeping = registry::housekeeping::run(app.clone(), self.runners);
        let until_closing = parts.closing.clone();
        parts
            .tasks
            .spawn(until_closing.run_until_cancelled_owned(housekeeping));
        let following = registry::view::run(app.clone(), self.following);
        let until_closing = parts.closing.clone();
        parts
            .tasks
            .spawn(until_closing.run_until_cancelled_owned(following));
        let until_closing = parts.closing.clone();
        parts
            .tasks
            .spawn(until_closing.run_until_cancelled_owned(sampler::run(app.clone())));
        let deployments = registry::deployments::run(app.clone());
        let until_closing = parts.closing.clone();
        parts
            .tasks
            .spawn(until_closing.run_until_cancelled_owned(deployments));
        if let Some(pending) = self.pending {
            pending.start(
                parts.authority.clone(),
                parts.clock.clone(),
                &parts.closing,
                &parts.tasks,
            )?;
        }
        let following = parts.credentials.clone();
        let until_closing = parts.closing.clone();
        parts
            .tasks
            .spawn(async move { following.follow(until_closing).await });
        if let Some(host) = self.replica {
            let name = format!("{host}:{}", self.local_addr.port());
            parts.tasks.spawn(replicas::run(app.clone(), name, address));
        }
        let expiring = parts.credentials.clone();
        let expiries = tokio::spawn(async move {
            loop {
                tokio::time::sleep(EXPIRIES_EVERY).await;
                expiring.sweep();
            }
        });
        let handle = Handle::new();
        let limit = parts.limits.shutdown();
        let stopper = tokio::spawn({
            let (handle, closing) = (handle.clone(), parts.closing.clone());
            async move {
                shutdown.await;
                tracing::info!("stopping");
                // First no new connections, then the end of what would stay open by itself.
                handle.graceful_shutdown(Some(limit));
                closing.cancel();
            }
        });
        tracing::info!(address = %self.local_addr, tls = self.tls.is_some(), "listening");
        let mut server = axum_server::from_tcp(self.listener)?.handle(handle);
        server
            .http_builder()
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(MAX_HEADER_TIME);
        server
            .http_builder()
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(HTTP2_KEEP_ALIVE.0)
            .keep_alive_timeout(HTTP2_KEEP_ALIVE.1);
        let slots = Slots::new(&parts.limits, parts.guard.clone(), parts.metrics.clone());
        let served = if let Some(certificate) = self.tls {
            let acceptor =
                RustlsAcceptor::new(certificate.config()).acceptor(NoDelayAcceptor::new());
            let acceptor = Admission::new(acceptor, slots);
            server.acceptor(acceptor).serve(make).await
        } else {
            let acceptor = Admission::new(NoDelayAcceptor::new(), slots);
            server.acceptor(acceptor).serve(make).await
        };
        stopper.abort();
        parts.closing.cancel();
        parts.tasks.close();
        if tokio::time::timeout(limit, parts.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("some work did not finish in time");
        }
        hub.abort();
        expiries.abort();
        Ok(served?)
    }
}
