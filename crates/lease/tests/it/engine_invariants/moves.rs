//! Random moves on a small world: few keys and holders, so that they meet.

use lease::engine::{Options, RenewalEvents};
use proptest::{collection::vec, option, prelude::*};

/// How many keys there are.
pub const KEYS: u8 = 4;

/// One move. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub enum Move {
    Acquire {
        keys: Vec<u8>,
        any: bool,
        holder: u8,
        ttl_ms: u64,
        hold_ms: Option<u64>,
        on_death: bool,
        wait_ms: u64,
        limit: Option<u32>,
        force: bool,
    },
    Abandon(u8),
    Renew {
        lease: u8,
        ttl_ms: Option<u64>,
    },
    RenewAll(u8),
    Release {
        lease: u8,
        stranger: bool,
    },
    Revoke(u8),
    Depart {
        how: u8,
        holder: u8,
    },
    Offer {
        lease: u8,
        successor: u8,
        ms: u64,
    },
    Prepare(u8),
    HandOver(u8),
    Confirm(u8),
    Cancel(u8),
    Commit {
        record: u8,
        put: bool,
        key: u8,
        release: u8,
    },
    /// Time passes, with or without a tick after it.
    Pass {
        ms: u64,
        tick: bool,
    },
    /// An orderly stop, or a crash.
    Restart(bool),
}

impl Move {
    /// Whether it may leave somebody waiting, which no restart survives.
    pub fn waits(&self) -> bool {
        matches!(self, Self::Acquire { wait_ms, .. } if *wait_ms > 0)
    }
}

fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![1..20_u64, 20..2_000_u64]
}

fn acquire() -> impl Strategy<Value = Move> {
    (
        (vec(0..KEYS, 1..4), any::<bool>(), 0..6_u8, millis()),
        (option::weighted(0.3, millis()), any::<bool>()),
        (
            prop_oneof![Just(0), millis()],
            option::weighted(0.2, 1..3_u32),
            prop::bool::weighted(0.1),
        ),
    )
        .prop_map(
            |((mut keys, any, holder, ttl_ms), (hold_ms, on_death), (wait_ms, limit, force))| {
                keys.sort_unstable();
                keys.dedup();
                Move::Acquire {
                    keys,
                    any,
                    holder,
                    ttl_ms,
                    hold_ms,
                    on_death,
                    wait_ms,
                    limit,
                    force: force && !any,
                }
            },
        )
}

/// A sequence of moves.
pub fn moves(longest: usize) -> impl Strategy<Value = Vec<Move>> {
    let byte = any::<u8>;
    vec(
        prop_oneof![
            8 => acquire(),
            1 => byte().prop_map(Move::Abandon),
            3 => (byte(), option::weighted(0.3, millis()))
                .prop_map(|(lease, ttl_ms)| Move::Renew { lease, ttl_ms }),
            1 => byte().prop_map(Move::RenewAll),
            4 => (byte(), prop::bool::weighted(0.2))
                .prop_map(|(lease, stranger)| Move::Release { lease, stranger }),
            2 => byte().prop_map(Move::Revoke),
            1 => (0..3_u8, byte()).prop_map(|(how, holder)| Move::Depart { how, holder }),
            2 => (byte(), byte(), millis())
                .prop_map(|(lease, successor, ms)| Move::Offer { lease, successor, ms }),
            2 => byte().prop_map(Move::Prepare),
            2 => byte().prop_map(Move::HandOver),
            1 => byte().prop_map(Move::Confirm),
            1 => byte().prop_map(Move::Cancel),
            2 => (byte(), any::<bool>(), byte(), byte()).prop_map(|(record, put, key, release)| {
                Move::Commit { record, put, key, release }
            }),
            6 => (millis(), any::<bool>()).prop_map(|(ms, tick)| Move::Pass { ms, tick }),
            1 => any::<bool>().prop_map(Move::Restart),
        ],
        1..=longest,
    )
}

/// Settings down to the smallest: keys are forgotten immediately, or never.
pub fn options() -> impl Strategy<Value = Options> {
    let renewals = prop_oneof![
        Just(RenewalEvents::Off),
        Just(RenewalEvents::Live),
        Just(RenewalEvents::Kept),
    ];
    let idle_ms = prop_oneof![Just(0), 1..500_u64, Just(3_600_000)];
    (renewals, 0..4_usize, idle_ms).prop_map(|(renewals, idle_keys, idle_ms)| Options {
        renewals,
        idle_keys,
        idle_ms,
    })
}
