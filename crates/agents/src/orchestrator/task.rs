//! The life of one session in a worker: claimed, given its leases, streamed, and ended in one step.

use std::sync::Arc;

use lease::{
    Acquire, Key, LeaseRef, Want,
    session::{Reason, Session, State},
};
use leasehold_client::{Guard, keeper};
use tokio::sync::watch;

use super::{
    Context,
    metrics::Start,
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

/// Runs a session to its end. A session that another worker claimed is left alone.
pub(super) async fn run(context: Arc<Context>, key: Key, mut orders: watch::Receiver<Order>) {
    let session = match claim(&context, &key).await {
        Ok(Some(session)) => session,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%key, %error, "cannot claim a session; the next scan tries again");
            return;
        }
    };
    let mut held = Held::default();
    let ending = match start(&context, &session, &mut held, &mut orders).await {
        Ok(()) => stream(&context, &mut held, &mut orders).await,
        Err(ending) => ending,
    };
    finish(&context, &key, held, ending).await;
}

/// `new → starting` in one atomic step; whoever is second loses quietly.
async fn claim(context: &Context, key: &Key) -> Result<Option<Session>, lease::Error> {
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
        Changed::Done(session) => Some(session),
        // An earlier attempt of ours whose answer was lost.
        Changed::Declined(session)
            if session.state == State::Starting && session.worker.as_ref() == Some(&worker) =>
        {
            Some(session)
        }
        Changed::Declined(_) | Changed::Missing => None,
    })
}

/// From the claim to a playable stream.
async fn start(
    context: &Arc<Context>,
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

async fn prepare(context: &Arc<Context>, session: &Session, held: &mut Held) -> Result<(), Ending> {
    let service = Key::new("service", &session.service_ref)
        .map_err(|error| Ending::new(State::Ended, Reason::PipelineFailed).detail(&error))?;
    held.service = Some(
        acquire(
            context,
            session,
            Want::one(service),
            Reason::LeaseBusy,
            "REJECTED_BUSY",
        )
        .await?,
    );
    let slots = context.tuner_keys.clone();
    let tuner = acquire(
        context,
        session,
        Want::Any(slots),
        Reason::NoTuner,
        "REJECTED_NO_TUNER",
    )
    .await?;
    let slot = tuner.key().id().to_owned();
    let (token, deadline) = (tuner.token(), tuner.deadline());
    held.tuner = Some(tuner);
    context.metrics.slot_taken();

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
    // Starts wait for each other here; nothing else does.
    let _start = context
        .starts
        .acquire()
        .await
        .map_err(|_| Ending::new(State::Stopped, Reason::Shutdown))?;
    let job = Job {
        session: session.session_id.to_string(),
        source,
        start_ms: session.start_ms,
        profile: profile.clone(),
        dir: context.output_dir(session.session_id),
        token,
        deadline,
        stop_limit_ms: context.options.stop_limit_ms,
    };
    let started = Pipeline::start(job, &context.launcher, context.clock.clone())
        .await
        .map_err(|failure| ending_of(&failure))?;
    let pipeline = held.pipeline.insert(started);
    pipeline
        .ready(context.options.start_limit_ms)
        .await
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
    let mut pause_ms = 50;
    loop {
        match context.keeper.acquire(request.clone()).await {
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
                tracing::warn!(session = %session.session_id, %error, "cannot ask for a lease");
                context.pause(pause_ms).await;
                pause_ms = (pause_ms * 2).min(2_000);
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
    let lost = |what: &'static str, why: leasehold_client::Lost| {
        Ending::new(State::Failed, Reason::LeaseLost).detail(&format!("{what}: {why}"))
    };
    let (service_lost, tuner_lost) = (service.lost(), tuner.lost());
    tokio::pin!(service_lost, tuner_lost);
    // Renewals move the deadline; the child's guardian must hear of it well before the old one.
    let interval = context.options.lease_ttl.millis() / 6;
    loop {
        pipeline.extend(service.deadline().min(tuner.deadline()));
        let renewed = context.pause(interval);
        tokio::select! {
            why = &mut service_lost => return lost("service", why),
            why = &mut tuner_lost => return lost("tuner", why),
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
    };
    Ending::new(State::Failed, reason).detail(failure)
}

/// First nothing runs any more; then, in one atomic step, the session is over and its leases are free.
/// Released before, recovery could take the channel's next owner for a leftover; released after, the
/// channel would be busy for nobody.
async fn finish(context: &Arc<Context>, key: &Key, held: Held, ending: Ending) {
    if let Some(pipeline) = held.pipeline {
        pipeline.stop().await;
    }
    let mut release: Vec<LeaseRef> = [&held.service, &held.tuner]
        .into_iter()
        .flatten()
        .map(|guard| LeaseRef::from(&guard.lease()))
        .collect();
    match context.records.own_lease(key).await {
        Ok(own) => release.extend(own),
        // It ends by itself.
        Err(error) => tracing::warn!(%key, %error, "cannot look up a session's lease"),
    }
    let mut previous = State::New;
    let changed = context
        .records
        .insist(key, &release, |session, now| {
            previous = session.state;
            // A stop that was asked for stays the reason.
            let reason = match (session.reason, ending.reason) {
                (Reason::ClientStop, Reason::Shutdown) => Reason::ClientStop,
                (_, reason) => reason,
            };
            let state = match (session.state, ending.state) {
                (State::Running | State::Stopping, State::Ended) => State::Failed,
                (_, state) => state,
            };
            session.outcome = ending.outcome.map(str::to_owned);
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
            tracing::info!(%key, state = session.state.as_str(), reason = ?session.reason, detail = session.reason_detail, "session over");
        }
        Ok(Changed::Declined(_) | Changed::Missing) => {}
        Err(error) => tracing::error!(%key, %error, "cannot write a session's end"),
    }
    if held.tuner.is_some() {
        context.metrics.slot_given_back();
    }
    pipeline::remove_output(&context.output_dir_of(key)).await;
}
