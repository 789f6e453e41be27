//! Bugs that tests plant, one at a time, to show that a test catches each (`make mutants`).
//!
//! They exist only with the feature `planted-bugs`, which only tests enable, and then only in
//! a process whose environment names one. Without the feature [`planted`] is the constant `false`, and
//! nothing is left of it in the program.

/// Names the bug of a process: the [`Bug::name`] of one.
pub const VARIABLE: &str = "LEASEHOLD_PLANTED_BUG";

/// Whose tests notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// `crates/lease`.
    Kernel,
    /// `crates/store`.
    Store,
    /// `crates/client`.
    Client,
    /// `crates/server`.
    Server,
}

/// A bug by its [`Bug::name`], what is wrong, and the tests of which each must notice it.
pub type Row = (&'static str, &'static str, &'static [&'static str]);

impl Room {
    /// The bugs that the tests of this room notice, with those tests.
    pub fn table(self, noticed_by: impl Fn(Bug) -> &'static [&'static str]) -> Vec<Row> {
        let bugs = Bug::ALL.iter().filter(|bug| bug.room() == self);
        bugs.map(|bug| (bug.name(), bug.what(), noticed_by(*bug)))
            .collect()
    }
}

macro_rules! bugs {
    ($($room:ident { $($bug:ident $what:literal)* })*) => {
        /// A bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(
                #[doc = $what]
                $bug,
            )*)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$($(Self::$bug,)*)*];

            /// What [`VARIABLE`] says for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$bug => stringify!($bug),)*)*
                }
            }

            /// What is wrong.
            pub const fn what(self) -> &'static str {
                match self {
                    $($(Self::$bug => $what,)*)*
                }
            }

            /// Whose tests notice.
            pub const fn room(self) -> Room {
                match self {
                    $($(Self::$bug => Room::$room,)*)*
                }
            }
        }
    };
}

bugs! {
    Kernel {
        FloorNotFolded "tokens of forgotten keys are not folded into the floor"
        FloorIgnored "a new token ignores the floor"
        LastTokenIgnored "a new token ignores the last one of its key"
        LimitCountsLapsed "a limit counts leases that lapsed and are not expired yet"
        BatchCountsAsOne "several keys count as one for a limit"
        WaiterSkipped "whoever waits behind one that is refused for good is not served"
        LastWaiterFirst "the last waiter is served first"
        RevisionGap "a revision is left out now and then"
        RenewalLate "a renewal is accepted in the moment of the lapse"
        LapseLate "a lease expires 1 ms late"
        TransactionOvertakes "a transaction overtakes waiters before the tick"
        DeadHoldersWaitServed "a holder that died is served as a waiter"
        ExpiryMovesBack "a renewal moves the expiry backwards"
        CrashShortens "after a crash a lease has less than it had"
        VerifierMute "the verifier of histories never says anything"
        VerifierMissesGaps "the verifier of histories misses gaps"
        VerifierMissesDisorder "the verifier of histories misses disorder"
        EndedSessionGoesOn "a session leaves a terminal state"
        IntentOutlivesSession "an idempotency key outlives its session"
    }
    Store {
        HandoffLosesLabels "a handoff loses the labels, and so the tenant"
        HandoffLosesPolicy "a handoff loses the outage policy"
        Namesake "a namesake in another tenant is the same holder"
        DeathTakesAll "a proven death releases what did not ask for it"
        AbandonedWaitServed "a waiter that went away is served"
        HoldIgnored "the grace of hold is ignored"
        PoolGivesOwnSlot "a pool gives a holder the slot it has"
        StrangerOwns "a stranger renews and releases"
        SealsUnread "an event that was changed after it was sealed is not reported"
        WatchIgnoresTenant "a watch of one tenant carries the changes of all"
        CrossedGrantKept "a grant that crosses with the end of its wait is kept"
        DeadReplicaServedByPostgres "PostgreSQL serves the waiter of a dead replica"
        DeadReplicaServedByRedis "Redis serves the waiter of a dead replica"
        PresenceWithoutExpiry "the plain keys in Redis, presence among them, never expire"
    }
    Client {
        DeadlineFromAnswer "a holder counts its deadline from the answer, not from the request"
        OwnershipIsAFlag "ownership is a flag that somebody must clear"
        ErrorIsALoss "a failed renewal is taken for a loss"
    }
    Server {
        IdentityWithoutTenant "streams do not tell namesakes of two tenants apart"
        TenantsSeeEachOther "a caller that is bound to a tenant sees what others have"
    }
}

/// Whether this bug is planted in this process.
#[cfg(feature = "planted-bugs")]
pub fn planted(bug: Bug) -> bool {
    static PLANTED: std::sync::LazyLock<Option<Bug>> = std::sync::LazyLock::new(|| {
        let name = std::env::var(VARIABLE).ok()?;
        let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
        assert!(bug.is_some(), "{VARIABLE}={name} names no bug");
        bug.copied()
    });
    *PLANTED == Some(bug)
}

/// Nothing is planted in a program that is not a test.
#[cfg(not(feature = "planted-bugs"))]
#[inline]
pub const fn planted(_: Bug) -> bool {
    false
}
