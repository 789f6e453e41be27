//! How a session begins: `put_session_with_idempotency`.

use std::sync::Arc;

use uuid::Uuid;

use super::{INTENT_KIND, Reason, SERVICE_KIND, Session, State, idempotency_key, key};
use crate::{
    Acquire, Expect, Holder, Invalid, Key, Labels, REQUEST, Record, TENANT, Transaction, Ttl,
    UnixMillis, Want, Write,
};

/// A start that was asked for, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is streamed.
    pub service_ref: String,
    /// How.
    pub profile: String,
    /// From where, for catch-up.
    pub start_ms: Option<u64>,
    /// Names the request.
    pub correlation_id: String,
    /// The tenant of whoever asks.
    pub tenant: Option<String>,
}

impl Session {
    /// A session that nobody works on yet. `reserved`: its service is reserved for it, see [`reserve`].
    pub fn new(session_id: Uuid, request: Request, reserved: bool, now: UnixMillis) -> Self {
        Self {
            idempotency_key: idempotency_key(
                &request.service_ref,
                &request.profile,
                request.start_ms,
            ),
            session_id,
            service_ref: request.service_ref,
            profile: request.profile,
            start_ms: request.start_ms,
            state: State::New,
            reason: Reason::None,
            reason_detail: None,
            outcome: None,
            stop_reason: None,
            correlation_id: request.correlation_id,
            created_at: now,
            updated_at: now,
            worker: None,
            tuner_slot: None,
            tenant: request.tenant,
            reserved,
        }
    }

    /// The key of the record that maps its idempotency key to it.
    pub(super) fn intent_key(&self) -> Key {
        intent_key(self.tenant.as_deref(), &self.idempotency_key)
            .expect("a session was accepted under a well-formed key")
    }

    /// The key of the record that reserves its service, if it has one.
    pub(super) fn reservation(&self) -> Option<Key> {
        let key = service_key(&self.service_ref).ok();
        key.filter(|_| self.reserved)
    }

    /// The request for the lease that heartbeats keep.
    fn own_lease(&self, ttl: Ttl) -> Result<Acquire, Invalid> {
        let holder = Holder::new(&self.session_id.to_string(), "session")?;
        let mut request = Acquire::one(key(self.session_id), holder, ttl);
        if let Some(tenant) = &self.tenant {
            request.labels = Labels::new([(TENANT.to_owned(), tenant.clone())].into())?;
        }
        Ok(request)
    }

    /// The request for a lease that its worker needs for it. The worker's proven death ends it (L15). A
    /// session has one tuner, however often it is asked for: its id is that of the request, too (L5).
    pub fn request(&self, want: Want, worker: Holder, ttl: Ttl) -> Acquire {
        let mut labels = vec![
            ("session".to_owned(), key(self.session_id).to_string()),
            (REQUEST.to_owned(), self.session_id.to_string()),
        ];
        let tenant = self.tenant.clone();
        labels.extend(tenant.map(|tenant| (TENANT.to_owned(), tenant)));
        let mut request = Acquire::of(want, worker, ttl);
        request.release_on_death = true;
        request.labels = Labels::new(labels.into_iter().collect()).unwrap_or_default();
        request
    }
}

/// Where an idempotency key, or the record of a service, points to, as it was read.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// The record that points.
    pub pointer: Option<Record>,
    /// The record of the session it points to.
    pub session: Option<Record>,
}

impl Mapping {
    /// The session it points to, unless that is over or gone.
    fn under_way(&self) -> Option<Session> {
        let found = Session::from_record(self.session.as_ref()?).ok();
        found.filter(|session| !session.state.is_terminal())
    }

    /// Lets it point to a session, if nobody changed it meanwhile.
    fn point(&self, pointer: Key, session: &Session, transaction: &mut Transaction) {
        transaction.expect.push(Expect {
            key: pointer.clone(),
            revision: self.pointer.as_ref().map(|record| record.revision),
        });
        let target: Arc<str> = format!("\"{}\"", key(session.session_id)).into();
        transaction.writes.push(Write {
            key: pointer,
            value: Some(target),
            note: None,
        });
    }
}

/// What to do with a start.
#[derive(Clone, Debug)]
pub enum Put {
    /// The same start is under way: answer with that session, publish nothing.
    Replay(Box<Session>),
    /// Put everything down in this one step. On a conflict read the mapping and decide again.
    Commit(Box<Transaction>),
}

/// The key of the record that maps an idempotency key to a session. Tenants do not share sessions:
/// what one started, another may not see.
pub fn intent_key(tenant: Option<&str>, idempotency_key: &str) -> Result<Key, Invalid> {
    match tenant {
        Some(tenant) => Key::new(INTENT_KIND, &format!("{tenant}/{idempotency_key}")),
        None => Key::new(INTENT_KIND, idempotency_key),
    }
}

/// The key of a service: of the lease that makes a session the only one of it, and of the record that
/// reserves it.
pub fn service_key(service_ref: &str) -> Result<Key, Invalid> {
    Key::new(SERVICE_KIND, service_ref)
}

/// The session that an intent record, or the record of a service, points to.
pub fn intended(pointer: &Record) -> Result<Key, Invalid> {
    pointer.value.trim_matches('"').parse()
}

/// `put_session_with_idempotency`: the mapping, the session, its start event and its lease appear together
/// or not at all. A terminal or missing session frees the key.
pub fn start(session: &Session, mapping: &Mapping, ttl: Ttl) -> Result<Put, Invalid> {
    if let Some(existing) = mapping.under_way() {
        return Ok(Put::Replay(Box::new(existing)));
    }
    let mut transaction = Transaction {
        acquire: Some(session.own_lease(ttl)?),
        ..Transaction::default()
    };
    let intent = intent_key(session.tenant.as_deref(), &session.idempotency_key)?;
    mapping.point(intent, session, &mut transaction);
    transaction.expect.push(Expect {
        key: key(session.session_id),
        revision: None,
    });
    transaction.writes.push(session.to_write());
    Ok(Put::Commit(Box::new(transaction)))
}

/// A session that is under way has the service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// The key of that session.
    pub by: Key,
}

/// Reserves the session's service in the step in which the session appears: from then on, until it is
/// over, no other session of that service is accepted by such a step. `service` is the record of the
/// service as it was read.
pub fn reserve(
    session: &Session,
    service: &Mapping,
    transaction: &mut Transaction,
) -> Result<(), Reserved> {
    let Some(pointer) = session.reservation() else {
        return Ok(());
    };
    if let Some(other) = service.under_way()
        && other.session_id != session.session_id
    {
        return Err(Reserved {
            by: key(other.session_id),
        });
    }
    service.point(pointer, session, transaction);
    Ok(())
}
