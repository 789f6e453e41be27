//! Random moves. They name things by small numbers, so that every sequence makes sense against any
//! state and can be shrunk.

use proptest::{collection::vec, option, prelude::*};

/// How many keys there are.
pub(super) const KEYS: u8 = 4;
/// How many holders there are: half of them are second incarnations of the other half.
pub(super) const HOLDERS: u8 = 6;
/// How many records there are.
pub(super) const RECORDS: u8 = 3;

/// Picks the newest lease, however many there are (five apart).
const NEWEST: u8 = 167;

/// Which length of time: see `Run::span`. 0 is short.
pub(super) type Span = u8;

/// One move.
#[derive(Clone, Debug)]
pub(super) enum Move {
    /// Ask for keys.
    Acquire(Ask),
    /// A waiter goes away.
    Abandon(u8),
    /// Keep some leases as one holder: each its own or a foreign one.
    Renew {
        holder: u8,
        leases: Vec<(u8, Option<Span>, bool)>,
    },
    /// Keep everything that the holder of a lease has.
    RenewAll(u8),
    /// Give a lease back, as its holder or as another.
    Release { lease: u8, stranger: Option<u8> },
    /// Take a lease away.
    Revoke(u8),
    /// Died, succeeded or left.
    Depart { how: u8, holder: u8 },
    /// Offer a lease.
    Offer {
        lease: u8,
        successor: u8,
        prepare: Span,
        drain: Span,
        confirm: Span,
    },
    /// Prepare for a key.
    Prepare { key: u8, holder: u8 },
    /// Hand a lease over.
    HandOver(u8),
    /// Confirm a lease.
    Confirm(u8),
    /// Call a handoff off.
    Cancel { key: u8, holder: u8 },
    /// A whole handoff: offered, prepared and committed.
    Succeed {
        lease: u8,
        successor: u8,
        limit: Option<u32>,
    },
    /// Change records.
    Commit {
        expect: Vec<(u8, Expectation)>,
        writes: Vec<(u8, bool)>,
        acquire: Option<Ask>,
        release: Vec<u8>,
    },
    /// Let time pass.
    Pass(u8),
    /// Let time pass without a tick.
    Lapse(u8),
}

/// What a transaction expects of a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expectation {
    /// As it is now.
    Current,
    /// As it was some time ago, or not there.
    Old(u8),
    /// Not there.
    Absent,
}

/// A request for keys.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub keys: Vec<u8>,
    pub any: bool,
    pub holder: u8,
    pub ttl: Span,
    pub hold: Option<Span>,
    pub on_death: bool,
    pub wait: Option<Span>,
    pub limit: Option<u32>,
    pub force: bool,
    pub tenant: bool,
    pub request: Option<u8>,
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (0..KEYS).prop_map(|key| vec![key]),
        2 => Just((0..KEYS).collect::<Vec<_>>())
            .prop_shuffle()
            .prop_flat_map(|keys| (Just(keys), 1..=usize::from(KEYS)))
            .prop_map(|(keys, count)| keys[..count].to_vec()),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![1 => Just(0_u8), 3 => 1..3_u8]
}

/// A request that stores decide on their fast path: one key, and nothing special.
fn plain() -> impl Strategy<Value = Ask> {
    (0..KEYS, 0..HOLDERS, span(), any::<bool>()).prop_map(|(key, holder, ttl, tenant)| Ask {
        tenant,
        ..plain_ask(key, holder, ttl)
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    (
        (keys(), any::<bool>(), 0..HOLDERS, span()),
        (
            option::weighted(0.2, span()),
            any::<bool>(),
            option::weighted(0.4, span()),
            option::weighted(0.2, 1..4_u32),
        ),
        (
            prop::bool::weighted(0.1),
            any::<bool>(),
            option::weighted(0.3, 0..2_u8),
        ),
    )
        .prop_map(
            |(
                (keys, any, holder, ttl),
                (hold, on_death, wait, limit),
                (force, tenant, request),
            )| Ask {
                keys,
                any,
                holder,
                ttl,
                hold,
                on_death,
                wait,
                limit,
                force,
                tenant,
                request,
            },
        )
}

fn expectation() -> impl Strategy<Value = Expectation> {
    prop_oneof![
        4 => Just(Expectation::Current),
        1 => any::<u8>().prop_map(Expectation::Old),
        1 => Just(Expectation::Absent),
    ]
}

fn commit() -> impl Strategy<Value = Move> {
    (
        vec((0..RECORDS, expectation()), 0..3),
        vec((0..RECORDS, any::<bool>()), 0..3),
        option::weighted(0.4, ask()),
        vec(any::<u8>(), 0..3),
    )
        .prop_map(|(expect, mut writes, acquire, release)| {
            writes.sort_by_key(|&(record, _)| record);
            writes.dedup_by_key(|&mut (record, _)| record);
            Move::Commit {
                expect,
                writes,
                acquire: acquire.map(|ask| Ask { wait: None, ..ask }),
                release,
            }
        })
}

fn handoff() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (any::<u8>(), 0..HOLDERS, span(), span(), span()).prop_map(
            |(lease, successor, prepare, drain, confirm)| Move::Offer {
                lease,
                successor,
                prepare,
                drain,
                confirm,
            },
        ),
        3 => (0..KEYS, 0..HOLDERS).prop_map(|(key, holder)| Move::Prepare { key, holder }),
        3 => any::<u8>().prop_map(Move::HandOver),
        2 => any::<u8>().prop_map(Move::Confirm),
        1 => (0..KEYS, 0..HOLDERS).prop_map(|(key, holder)| Move::Cancel { key, holder }),
        4 => (any::<u8>(), 0..HOLDERS, option::weighted(0.3, 0..3_u32)).prop_map(
            |(lease, successor, limit)| Move::Succeed {
                lease,
                successor,
                limit,
            },
        ),
    ]
}

fn step() -> impl Strategy<Value = Move> {
    let renewal = (any::<u8>(), option::weighted(0.2, span()), any::<bool>());
    prop_oneof![
        7 => ask().prop_map(Move::Acquire),
        5 => plain().prop_map(Move::Acquire),
        1 => any::<u8>().prop_map(Move::Abandon),
        3 => (0..HOLDERS, vec(renewal, 1..5))
            .prop_map(|(holder, leases)| Move::Renew { holder, leases }),
        2 => any::<u8>().prop_map(Move::RenewAll),
        6 => (any::<u8>(), option::weighted(0.2, 0..HOLDERS))
            .prop_map(|(lease, stranger)| Move::Release { lease, stranger }),
        2 => any::<u8>().prop_map(Move::Revoke),
        1 => (0..3_u8, 0..HOLDERS).prop_map(|(how, holder)| Move::Depart { how, holder }),
        6 => handoff(),
        3 => commit(),
        4 => (0..5_u8).prop_map(Move::Pass),
        3 => (0..8_u8).prop_map(Move::Lapse),
    ]
}

/// A plain request.
fn plain_ask(key: u8, holder: u8, ttl: Span) -> Ask {
    Ask {
        keys: vec![key],
        any: false,
        holder,
        ttl,
        hold: None,
        on_death: false,
        wait: None,
        limit: None,
        force: false,
        tenant: false,
        request: None,
    }
}

/// Nobody has anything.
fn clear() -> Vec<Move> {
    let depart = |holder| [1, 2].map(|how| Move::Depart { how, holder });
    (0..3).flat_map(depart).collect()
}

/// One who waits and may have no more by now, another behind it, and the key comes free: the first is
/// refused for good, and the second served.
fn refused_waiter(first: u8) -> Vec<Move> {
    let [owner, refused, served] = [0, 1, 2].map(|place| (first + place) % 3);
    let wait = |holder, limit| Ask {
        wait: Some(2),
        limit,
        ..plain_ask(0, holder, 2)
    };
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(1, refused, 2)),
        Move::Acquire(plain_ask(0, owner, 2)),
        Move::Acquire(wait(refused, Some(1))),
        Move::Acquire(wait(served, None)),
        Move::Depart {
            how: 2,
            holder: owner,
        },
    ]);
    moves
}

/// A lease lapses while somebody waits for it, and before the tick a transaction asks for the key.
fn overtaking(first: u8) -> Vec<Move> {
    let [owner, waiter, late] = [0, 1, 2].map(|place| (first + place) % 3);
    let wait = Ask {
        wait: Some(2),
        ..plain_ask(0, waiter, 2)
    };
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(0, owner, 0)),
        Move::Acquire(wait),
        Move::Lapse(1),
        Move::Commit {
            expect: Vec::new(),
            writes: Vec::new(),
            acquire: Some(plain_ask(0, late, 1)),
            release: Vec::new(),
        },
    ]);
    moves
}

/// A lease has lapsed and nobody has expired it yet: it counts for no limit.
fn lapsed_beside_a_limit(holder: u8) -> Vec<Move> {
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(1, holder, 0)),
        Move::Lapse(1),
        Move::Acquire(Ask {
            limit: Some(1),
            ..plain_ask(0, holder, 2)
        }),
    ]);
    moves
}

/// A holder with two leases dies, and one of them asked to be released then.
fn death(holder: u8) -> Vec<Move> {
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(0, holder, 2)),
        Move::Acquire(Ask {
            on_death: true,
            ..plain_ask(1, holder, 2)
        }),
        Move::Depart { how: 0, holder },
    ]);
    moves
}

/// A request for a slot is repeated, also after its slot has lapsed, and another one is made beside it.
fn repeated_request(holder: u8) -> Vec<Move> {
    let ask = |request| {
        Move::Acquire(Ask {
            keys: vec![2, 0, 1],
            any: true,
            request: Some(request),
            ..plain_ask(0, holder, 0)
        })
    };
    let mut moves = clear();
    moves.extend([ask(0), ask(1), ask(0), ask(1), Move::Lapse(1), ask(0)]);
    moves
}

/// A lease is renewed at the moment at which it lapses, by its name or with all that its holder has.
fn late_renewal(holder: u8) -> Vec<Move> {
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(0, holder, 0)),
        Move::Lapse(1),
        Move::Renew {
            holder,
            leases: vec![(NEWEST, None, false)],
        },
        Move::Acquire(plain_ask(1, holder, 0)),
        Move::Lapse(1),
        Move::RenewAll(NEWEST),
    ]);
    moves
}

/// A lease is given back at the moment at which it lapses: that is an expiry.
fn late_release(holder: u8) -> Vec<Move> {
    let mut moves = clear();
    moves.extend([
        Move::Acquire(plain_ask(0, holder, 0)),
        Move::Lapse(1),
        Move::Release {
            lease: NEWEST,
            stranger: None,
        },
    ]);
    moves
}

/// A transaction expects a record not to be there that another has just put.
fn wrong_expectation(record: u8) -> Vec<Move> {
    let put = |expect| Move::Commit {
        expect,
        writes: vec![(record, true)],
        acquire: None,
        release: Vec::new(),
    };
    vec![
        put(Vec::new()),
        put(vec![(record, Expectation::Absent)]),
        put(vec![(record, Expectation::Current)]),
    ]
}

/// A sequence of moves, with scenes among them that chance alone would seldom play.
pub(super) fn moves(longest: usize) -> impl Strategy<Value = Vec<Move>> {
    let part = prop_oneof![
        100 => step().prop_map(|step| vec![step]),
        1 => (0..3_u8).prop_map(refused_waiter),
        1 => (0..3_u8).prop_map(overtaking),
        1 => (0..3_u8).prop_map(lapsed_beside_a_limit),
        1 => (0..3_u8).prop_map(death),
        1 => (0..3_u8).prop_map(late_renewal),
        1 => (0..3_u8).prop_map(late_release),
        1 => (0..RECORDS).prop_map(wrong_expectation),
        1 => (0..3_u8).prop_map(repeated_request),
    ];
    vec(part, 1..=longest).prop_map(move |parts| {
        let mut moves = parts.concat();
        moves.truncate(longest);
        moves
    })
}
