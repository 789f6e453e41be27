//! The life of one session in a worker: claimed, given its leases, streamed, and ended in one step.

use lease::{
    Acquire, Key, LeaseRef, Want,
    session::{Reason, Session, State},
};
use leasehold_client::{Guard, Keeper, keeper};
use tokio::sync::watch;

use super::{
    Context,
    metrics::Start,
    output,
    pipeline::{self, Failure, Job, Pipeline},
    records::Changed,
};

/// What a session's task is told from outside.
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

/// How a session is to end.
struct Ending {
    state: State,
    reason: Reason,
    outcome: Option<&'static str>,
    detail: Option<String>,
}

impl Ending {
    fn new(state: State, reason: Reason) -> Self {
        Self {
            state,
            reason,
            outcome: None,
            detail: None,
        }
    }

    fn detail(mut self, detail: &impl ToString) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    fn ordered(order: Order) -> Option<Self> {
        match order {
            Order::Go => None,
            Order::Stop | Order::Gone => Some(Self::new(State::Stopped, Reason::ClientStop)),
            Order::Expired => Some(Self::new(State::Stopped, Reason::LeaseExpired)),
            Order::Shutdown => Some(Self::new(State::Stopped, Reason::Shutdown)),
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
    /// It is this worker's, and it is to be started.
    Ours(Box<Session>),
    /// It is this worker's and was at work, but nothing of it runs here: only its end is missing.
    Stray(State),
    /// It is somebody else's, or over.
    No,
}

/// Runs a session to its end. A session that another worker claimed is left alone.
pub(super) async fn run(context: &Context, key: &Key, mut orders: watch::Receiver<Order>) {
    let mut held = Held::default();
    let ending = match claim(context, key).await {
        Ok(Claim::Ours(session)) => match start(context, &session, &mut held, &mut orders).await {
            Ok(()) => stream(context, &mut held, &mut orders).await,
            Err(ending) => ending,
        },
        Ok(Claim::Stray(State::Stopping)) => Ending::new(State::Stopped, Reason::ClientStop),
        Ok(Claim::Stray(_)) => Ending::new(State::Failed, Reason::LeaseLost)
            .detail(&"its worker could not write down how it ended"),
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
    let worker = context.keeper.holder().clone();
    let changed = context
        .records
        .change(key, &[], |session, now| {
            let claimed = session.become_state(State::Starting, Reason::None, now);
            session.worker = Some(worker.clone());
            claimed
        })
        .await?;
    Ok(match changed {
        Changed::Done(session) => Claim::Ours(Box::new(session)),
        Changed::Declined(session) if session.worker.as_ref() == Some(&worker) => {
            match session.state {
                // An earlier attempt of ours whose answer was lost.
                State::Starting => Claim::Ours(Box::new(session)),
                State::Running | State::Stopping => Claim::Stray(session.state),
                _ => Claim::No,
            }
        }
        Changed::Declined(_) | Changed::Missing => Claim::No,
    })
}

/// From the claim to a playable stream.
async fn start(
    context: &Context,
    session: &Session,
    held: &mut Held,
    orders: &mut watch::Receiver<Order>,
) -> Result<(), Ending> {
    let outcome = tokio::select! {
        outcome = prepare(context, session, held) => outcome,
        ending = ordered(orders) => return Err(ending),
    };
    let start = match &outcome {
        Ok(()) => Start::Started,
        Err(ending) => match ending.reason {
            Reason::LeaseBusy => Start::RejectedBusy,
            Reason::NoTuner => Start::RejectedNoTuner,
            _ => Start::Failed,
        },
    };
    context.metrics.started(start);
    outcome
}

/// Both leases, and then the stream, for as long as both are held.
async fn prepare(context: &Context, session: &Session, held: &mut Held) -> Result<(), Ending> {
    let own = lease::session::key(session.session_id);
    // It may have expired before anybody here listened. When that cannot be told now, the scan tells.
    if let Ok(None) = context.records.authority.lease(own).await {
        return Err(Ending::new(State::Stopped, Reason::LeaseExpired));
    }
    let service = lease::session::service_key(&session.service_ref)
        .map_err(|error| Ending::new(State::Ended, Reason::PipelineFailed).detail(&error))?;
    let want = Want::one(service);
    let service = acquire(context, session, want, Reason::LeaseBusy, "REJECTED_BUSY").await?;
    let service_lost = service.lost();
    held.service = Some(service);
    let want = Want::Any(context.tuner_keys.clone());
    let tuner = acquire(context, session, want, Reason::NoTuner, "REJECTED_NO_TUNER").await?;
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
        return Err(Ending::new(State::Failed, Reason::LeaseLost));
    };
    let failed = |error: String| Ending::new(State::Failed, Reason::PipelineFailed).detail(&error);
    let profile = context
        .options
        .profiles
        .get(&session.profile)
        .ok_or_else(|| failed(format!("this worker has no profile {}", session.profile)))?;
    let source = context
        .options
        .source_template
        .as_ref()
        .map(|template| pipeline::source_url(template, &session.service_ref))
        .transpose()
        .map_err(|error| failed(error.to_string()))?;
    // Launches wait for each other here; nobody waits for another one's stream to become playable.
    let launching = context
        .starts
        .acquire()
        .await
        .map_err(|_| Ending::new(State::Stopped, Reason::Shutdown))?;
    let slot = tuner.key().id().to_owned();
    let dir = context.output_dir(session.session_id);
    output::create(&dir, &context.mark)
        .await
        .map_err(|error| failed(format!("cannot make {}: {error}", dir.display())))?;
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
    let key = lease::session::key(session.session_id);
    let running = context
        .records
        .insist(&key, &[], |session, now| {
            session.tuner_slot = Some(slot.clone());
            session.become_state(State::Running, Reason::None, now)
        })
        .await
        .map_err(|error| failed(error.to_string()))?;
    match running {
        Changed::Done(_) => Ok(()),
        Changed::Declined(session) if session.state == State::Running => Ok(()),
        Changed::Declined(_) | Changed::Missing => {
            Err(Ending::new(State::Stopped, Reason::ClientStop))
        }
    }
}

fn lost(what: &'static str, why: &leasehold_client::Loss) -> Ending {
    Ending::new(State::Failed, Reason::LeaseLost).detail(&format!("{what}: {why}"))
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
    reason: Reason,
    outcome: &'static str,
) -> Result<Guard, Ending> {
    let mut request = Acquire::of(
        want,
        context.keeper.holder().clone(),
        context.options.lease_ttl,
    );
    request.release_on_death = true;
    request.labels = super::labels(session);
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
                return Err(Ending::new(State::Failed, Reason::LeaseLost)
                    .detail(&"granted something else than asked for"));
            }
            Err(keeper::Error::Refused(refusal)) => {
                let mut ending =
                    Ending::new(State::Ended, reason).detail(&keeper::Error::Refused(refusal));
                ending.outcome = Some(outcome);
                return Err(ending);
            }
            Err(keeper::Error::Failed(error)) if error.is_retryable() => {
                tracing::info!(session = %session.session_id, %error, "cannot acquire a lease");
                backoff.pause(&*context.clock).await;
            }
            Err(keeper::Error::Stopped) => {
                return Err(Ending::new(State::Stopped, Reason::Shutdown));
            }
            Err(error) => return Err(Ending::new(State::Failed, Reason::LeaseLost).detail(&error)),
        }
    }
}

/// Streams until something ends it.
async fn stream(context: &Context, held: &mut Held, orders: &mut watch::Receiver<Order>) -> Ending {
    let (Some(service), Some(tuner), Some(pipeline)) =
        (&held.service, &held.tuner, &mut held.pipeline)
    else {
        return Ending::new(State::Failed, Reason::PipelineFailed);
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
        if let Some(ending) = Ending::ordered(*orders.borrow_and_update()) {
            return ending;
        }
        if orders.changed().await.is_err() {
            return Ending::new(State::Stopped, Reason::Shutdown);
        }
    }
}

fn ending_of(failure: &Failure) -> Ending {
    let reason = match failure {
        Failure::Timeout(_) => Reason::PipelineTimeout,
        Failure::Start(_) | Failure::Ended(_) => Reason::PipelineFailed,
        Failure::Deadline(_) => Reason::LeaseLost,
    };
    Ending::new(State::Failed, reason).detail(failure)
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
    let mut previous = State::New;
    let changed = context
        .records
        .insist(key, &release, |session, now| {
            previous = session.state;
            // A stop that was asked for stays the reason.
            let (state, reason, outcome) = match (session.state, ending.state) {
                (State::Stopping, State::Ended) => (State::Stopped, Reason::ClientStop, None),
                (State::Running, State::Ended) => (State::Failed, ending.reason, ending.outcome),
                (_, state) => (state, ending.reason, ending.outcome),
            };
            let reason = match (session.reason, reason) {
                (Reason::ClientStop, Reason::Shutdown) => Reason::ClientStop,
                (_, reason) => reason,
            };
            session.outcome = outcome.map(str::to_owned);
            session.reason_detail.clone_from(&ending.detail);
            if reason == Reason::LeaseExpired {
                session.stop_reason = Some("LEASE_EXPIRED".into());
            }
            session.become_state(state, reason, now)
        })
        .await;
    match changed {
        Ok(Changed::Done(session)) => {
            if session.reason == Reason::LeaseExpired {
                super::reaper::log_expired(key, previous);
                context.metrics.expired(previous);
            }
            let reason = serde_json::to_value(session.reason).unwrap_or_default();
            tracing::info!(%key, state = session.state.as_str(), reason = reason.as_str(), detail = session.reason_detail, "session over");
        }
        Ok(Changed::Declined(_) | Changed::Missing) => {}
        Err(error) => tracing::error!(%key, %error, "cannot record the end of a session"),
    }
    if held.tuner.is_some() {
        context.metrics.slot_given_back();
    }
    output::remove(&context.output_dir_of(key)).await;
}
