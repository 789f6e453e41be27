//! The life of one session in a worker: claimed, given its leases, streamed, and ended in one step.

use lease::{
    Acquire, Key, LeaseRef, Want,
    session::{self, Declined, Ending, Reason, Session, State, Unclaimed},
};
use leasehold_client::{
    Guard, Keeper, keeper,
    sessions::{self, Changed},
};
use tokio::sync::watch;

use super::{
    Context,
    metrics::Start,
    output,
    pipeline::{self, Failure, Job, Pipeline},
};

/// What a session's task is notified of from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Go on.
    Go,
    /// Somebody wants it to stop.
    Stop,
    /// Its lease ran out.
    Expired,
    /// Somebody else ended it already.
    Gone,
    /// The worker stops.
    Shutdown,
}

impl Order {
    /// How a session ends by it.
    fn ending(self) -> Option<Ending> {
        match self {
            Self::Go => None,
            Self::Stop | Self::Gone => Some(Ending::Stopped),
            Self::Expired => Some(Ending::Expired),
            Self::Shutdown => Some(Ending::Shutdown),
        }
    }
}

/// What a session has while it runs.
#[derive(Default)]
struct Held {
    service: Option<Guard>,
    tuner: Option<Guard>,
    pipeline: Option<Pipeline>,
}

/// What a worker finds when it reaches for a session.
enum Claim {
    /// It is this worker's, and it is to be started. Whether its own lease was still there.
    Ours(Box<Session>, bool),
    /// It is this worker's and was at work, but nothing of it runs here: only its end is missing.
    Stray(Ending),
    /// It is somebody else's, or over.
    No,
}

/// Runs a session to its end. A session that another worker claimed is left alone.
pub(super) async fn run(context: &Context, key: &Key, mut orders: watch::Receiver<Order>) {
    let mut held = Held::default();
    let ending = match claim(context, key).await {
        Ok(Claim::Ours(session, kept)) => {
            match start(context, &session, kept, &mut held, &mut orders).await {
                Ok(()) => stream(context, &mut held, &mut orders).await,
                Err(ending) => ending,
            }
        }
        Ok(Claim::Stray(ending)) => ending,
        Ok(Claim::No) => return,
        Err(error) => {
            tracing::info!(%key, %error, "cannot claim a session; the next scan retries");
            return;
        }
    };
    finish(context, key, held, ending).await;
}

/// `new → starting` in one atomic step; whoever is second loses quietly. Without an answer it is asked
/// again: a claim that was made and not noticed would leave the session to nobody.
async fn claim(context: &Context, key: &Key) -> Result<Claim, lease::Error> {
    let mut backoff = super::retries();
    loop {
        match try_claim(context, key).await {
            Err(error) if error.is_retryable() && !context.end.is_cancelled() => {
                tracing::info!(%key, %error, "cannot claim a session; retrying");
                let pause = backoff.pause(&*context.clock);
                context.end.run_until_cancelled(pause).await;
            }
            outcome => return outcome,
        }
    }
}

async fn try_claim(context: &Context, key: &Key) -> Result<Claim, lease::Error> {
    if !context.presence.is_present() {
        // Others believe that this worker is gone, and would end what it claims.
        return Ok(Claim::No);
    }
    let mut kept = true;
    let changed = sessions::change(&*context.records.authority, key, |loaded, now| {
        kept = loaded.lease.is_some();
        session::claim(loaded, context.keeper.holder(), now)
    });
    Ok(match changed.await? {
        Changed::Done { session, .. } => Claim::Ours(Box::new(session), kept),
        Changed::Declined(Unclaimed::Start(session), _) => Claim::Ours(session, kept),
        Changed::Declined(Unclaimed::End(ending), _) => Claim::Stray(ending),
        Changed::Declined(Unclaimed::Leave, _) | Changed::Missing => Claim::No,
    })
}

/// From the claim to a playable stream.
async fn start(
    context: &Context,
    session: &Session,
    kept: bool,
    held: &mut Held,
    orders: &mut watch::Receiver<Order>,
) -> Result<(), Ending> {
    let outcome = tokio::select! {
        outcome = prepare(context, session, kept, held) => outcome,
        ending = ordered(orders) => return Err(ending),
    };
    let start = match &outcome {
        Ok(()) => Start::Started,
        Err(Ending::Busy(_)) => Start::RejectedBusy,
        Err(Ending::NoTuner(_)) => Start::RejectedNoTuner,
        Err(_) => Start::Failed,
    };
    context.metrics.started(start);
    outcome
}

/// Both leases, and then the stream, for as long as both are held.
async fn prepare(
    context: &Context,
    session: &Session,
    kept: bool,
    held: &mut Held,
) -> Result<(), Ending> {
    if !kept {
        // It expired before anybody here listened.
        return Err(Ending::Expired);
    }
    let service = session::service_key(&session.service_ref)
        .map_err(|error| Ending::Impossible(error.to_string()))?;
    let service = acquire(context, session, Want::one(service), Ending::Busy).await?;
    let service_lost = service.lost();
    held.service = Some(service);
    let want = Want::Any(context.tuner_keys.clone());
    let tuner = acquire(context, session, want, Ending::NoTuner).await?;
    let tuner_lost = tuner.lost();
    held.tuner = Some(tuner);
    context.metrics.slot_taken();
    tokio::select! {
        outcome = launch(context, session, held) => outcome,
        why = service_lost => Err(lost("service", &why)),
        why = tuner_lost => Err(lost("tuner", &why)),
    }
}

/// From the leases to `running`.
async fn launch(context: &Context, session: &Session, held: &mut Held) -> Result<(), Ending> {
    let (Some(service), Some(tuner)) = (&held.service, &held.tuner) else {
        return Err(Ending::LeaseLost("not held".into()));
    };
    let profile = context
        .options
        .profiles
        .get(&session.profile)
        .ok_or_else(|| {
            Ending::PipelineFailed(format!("this worker has no profile {}", session.profile))
        })?;
    let source = context
        .options
        .source_template
        .as_ref()
        .map(|template| pipeline::source_url(template, &session.service_ref))
        .transpose()
        .map_err(|error| Ending::PipelineFailed(error.to_string()))?;
    // Launches wait for each other here; nobody waits for another one's stream to become playable.
    let launching = context
        .starts
        .acquire()
        .await
        .map_err(|_| Ending::Shutdown)?;
    let slot = tuner.key().id().to_owned();
    let dir = context.output_dir(session.session_id);
    output::create(&dir, &context.mark).await.map_err(|error| {
        Ending::PipelineFailed(format!("cannot make {}: {error}", dir.display()))
    })?;
    let job = Job {
        session: session.session_id.to_string(),
        source,
        start_ms: session.start_ms,
        profile: profile.clone(),
        dir,
        token: tuner.token(),
        deadline: service.deadline().min(tuner.deadline()),
        stop_limit_ms: context.options.stop_limit_ms,
    };
    let started = Pipeline::start(job, &context.launcher, context.clock.clone())
        .map_err(|failure| ending_of(&failure))?;
    drop(launching);
    let pipeline = held.pipeline.insert(started);
    let until = context.clock.boot().plus(context.options.start_limit_ms);
    loop {
        pipeline.extend(service.deadline().min(tuner.deadline()));
        tokio::select! {
            ready = pipeline.ready(until) => break ready,
            () = context.pause(context.extend_every()) => {}
        }
    }
    .map_err(|failure| ending_of(&failure))?;
    // A stop that arrived meanwhile has changed the state, and then this does not apply.
    let key = session::key(session.session_id);
    let running = context
        .records
        .insist(&key, |loaded, now| session::ready(loaded, &slot, now))
        .await
        .map_err(|error| Ending::PipelineFailed(error.to_string()))?;
    match running {
        Changed::Done { .. } | Changed::Declined(Declined::State(State::Running), _) => Ok(()),
        Changed::Declined(..) | Changed::Missing => Err(Ending::Stopped),
    }
}

fn lost(what: &'static str, why: &leasehold_client::Loss) -> Ending {
    Ending::LeaseLost(format!("{what}: {why}"))
}

/// A request that may have been granted without an answer. Whoever stops repeating it gives the slot back.
struct Unanswered<'a> {
    keeper: &'a Keeper,
    request: Option<Acquire>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.keeper.abandon(request);
        }
    }
}

/// One lease for the session. While the authority is out of reach it is asked again: the session's own
/// lease bounds how long that can go on.
async fn acquire(
    context: &Context,
    session: &Session,
    want: Want,
    refused: fn(String) -> Ending,
) -> Result<Guard, Ending> {
    let worker = context.keeper.holder().clone();
    let request = session.request(want, worker, context.options.lease_ttl);
    let mut backoff = super::retries();
    let mut unanswered = Unanswered {
        keeper: &context.keeper,
        request: None,
    };
    loop {
        let answer = context.keeper.acquire(request.clone()).await;
        unanswered.request = match &answer {
            Err(keeper::Error::Failed(error)) if !error.has_no_side_effects() => {
                Some(request.clone())
            }
            _ => None,
        };
        match answer {
            Ok(mut guards) if guards.len() == 1 => return Ok(guards.remove(0)),
            Ok(_) => {
                let why = "granted something else than asked for";
                return Err(Ending::LeaseLost(why.into()));
            }
            Err(refusal @ keeper::Error::Refused(_)) => return Err(refused(refusal.to_string())),
            Err(keeper::Error::Failed(error)) if error.is_retryable() => {
                tracing::info!(session = %session.session_id, %error, "cannot acquire a lease");
                backoff.pause(&*context.clock).await;
            }
            Err(keeper::Error::Stopped) => return Err(Ending::Shutdown),
            Err(error) => return Err(Ending::LeaseLost(error.to_string())),
        }
    }
}

/// Streams until something ends it.
async fn stream(context: &Context, held: &mut Held, orders: &mut watch::Receiver<Order>) -> Ending {
    let (Some(service), Some(tuner), Some(pipeline)) =
        (&held.service, &held.tuner, &mut held.pipeline)
    else {
        return Ending::PipelineFailed("not started".into());
    };
    let (service_lost, tuner_lost) = (service.lost(), tuner.lost());
    tokio::pin!(service_lost, tuner_lost);
    loop {
        pipeline.extend(service.deadline().min(tuner.deadline()));
        let renewed = context.pause(context.extend_every());
        tokio::select! {
            why = &mut service_lost => return lost("service", &why),
            why = &mut tuner_lost => return lost("tuner", &why),
            ending = ordered(orders) => return ending,
            failure = pipeline.failed(context.options.stall_limit_ms) => return ending_of(&failure),
            () = renewed => {}
        }
    }
}

async fn ordered(orders: &mut watch::Receiver<Order>) -> Ending {
    loop {
        let order = *orders.borrow_and_update();
        if let Some(ending) = order.ending() {
            return ending;
        }
        if orders.changed().await.is_err() {
            return Ending::Shutdown;
        }
    }
}

fn ending_of(failure: &Failure) -> Ending {
    let why = failure.to_string();
    match failure {
        Failure::Timeout(_) => Ending::PipelineTimeout(why),
        Failure::Start(_) | Failure::Ended(_) => Ending::PipelineFailed(why),
        Failure::Deadline(_) => Ending::LeaseLost(why),
    }
}

/// First nothing runs any more; then, in one atomic step, the session is over and its leases are free.
/// Released before, recovery could take the channel's next owner for a leftover; released after, the
/// channel would be busy for nobody.
async fn finish(context: &Context, key: &Key, held: Held, ending: Ending) {
    if let Some(pipeline) = held.pipeline {
        pipeline.stop().await;
    }
    let release: Vec<LeaseRef> = [&held.service, &held.tuner]
        .into_iter()
        .flatten()
        .map(|guard| LeaseRef::from(&guard.lease()))
        .collect();
    let changed = context
        .records
        .insist(key, |loaded, now| {
            session::end(loaded, &ending, &release, now)
        })
        .await;
    match changed {
        Ok(Changed::Done { previous, session }) => {
            if session.reason == Reason::LeaseExpired {
                super::reaper::log_expired(key, previous);
                context.metrics.expired(previous);
            }
            let reason = serde_json::to_value(session.reason).unwrap_or_default();
            tracing::info!(%key, state = session.state.as_str(), reason = reason.as_str(), detail = session.reason_detail, "session over");
        }
        Ok(Changed::Declined(..) | Changed::Missing) => {}
        Err(error) => tracing::error!(%key, %error, "cannot record the end of a session"),
    }
    if held.tuner.is_some() {
        context.metrics.slot_given_back();
    }
    output::remove(&context.output_dir_of(key)).await;
}
