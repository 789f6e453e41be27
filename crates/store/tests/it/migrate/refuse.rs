//! What a move refuses, how it is called off, and that servers respect a closed store.

use std::sync::Arc;

use lease::{Acquire, Authority, LeaseRef, Renew, Renewal, Renewals};
use leasehold_store::{
    OpenError,
    migrate::{Error, Options, Phase, Side, abort, migrate},
};

use super::stage::{Backends, acquire, close, grant, holder, key, open, ttl, url};

const REPLACE: Options = Options {
    dry_run: false,
    replace: true,
    cut_off: false,
};

async fn attempt(from: &str, to: &str, options: Options) -> Result<(), Error> {
    let moved = migrate(&url(from), &url(to), options, &mut |_| {}).await;
    moved.map(drop)
}

/// L3: whatever the target gave out, the source must have given out more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_l3_a_target_with_a_larger_token_is_refused_and_left_alone() {
    let backends = Backends::start().await;
    for (number, to) in [(1, "embedded"), (2, "postgres"), (3, "redis")] {
        let here = backends.url("embedded", &format!("source_{number}"), 0);
        let there = backends.url(to, &format!("target_{number}"), number);
        let ours = grant(&here, "job:a").await;
        let theirs = grant(&there, "job:a").await;
        for options in [Options::default(), REPLACE] {
            let refused = attempt(&here, &there, options).await;
            let Err(Error::LargerToken {
                key: name,
                target,
                source_token,
            }) = refused
            else {
                panic!("{to}: {refused:?}")
            };
            assert_eq!(name, key("job:a"), "{to}");
            assert_eq!((target, source_token), (theirs, ours), "{to}");
        }
        // Neither was touched or closed.
        assert!(grant(&there, "job:a").await > theirs, "{to}");
        grant(&there, "job:b").await;

        // Now the source is ahead with both, but the target holds something of its own.
        grant(&here, "job:a").await;
        grant(&here, "job:b").await;
        let refused = attempt(&here, &there, Options::default()).await;
        assert!(
            matches!(refused, Err(Error::NotEmpty { keys: 2, .. })),
            "{to}: {refused:?}"
        );
        let newest = grant(&here, "job:b").await;
        attempt(&here, &there, REPLACE).await.expect("asked for");
        assert!(grant(&there, "job:b").await > newest, "{to}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_store_is_not_two_and_nothing_is_no_store() {
    let backends = Backends::start().await;
    let here = backends.url("redis", "", 1);
    grant(&here, "job:a").await;
    assert!(matches!(
        attempt(&here, &here, REPLACE).await,
        Err(Error::Same)
    ));
    // The same one under another name: found out by its maintenance, which is taken off again.
    let alias = here.replace("127.0.0.1", "localhost");
    let refused = attempt(&here, &alias, REPLACE).await;
    assert!(matches!(refused, Err(Error::Same)), "{refused:?}");
    grant(&here, "job:a").await;
    let refused = attempt("memory:", &here, REPLACE).await;
    assert!(matches!(refused, Err(Error::Memory)), "{refused:?}");
    for (number, sort) in [(5, "embedded"), (6, "postgres"), (7, "redis")] {
        let empty = backends.url(sort, "nothing_here", number);
        let refused = attempt(&empty, &here, REPLACE).await;
        assert!(
            matches!(refused, Err(Error::NoStore)),
            "{sort}: {refused:?}"
        );
    }
}

/// A server at work is in the way; cut off, it changes nothing any more and says that it did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_server_at_work_is_in_the_way_and_can_be_cut_off() {
    let backends = Backends::start().await;
    let embedded = backends.url("embedded", "busy", 0);
    let store = open(&embedded).await.expect("it opens");
    let there = backends.url("redis", "", 9);
    let refused = attempt(&embedded, &there, REPLACE).await;
    assert!(
        matches!(refused, Err(Error::Open(Side::Source, _))),
        "{refused:?}"
    );
    close(store).await;

    for (number, sort) in [(1, "postgres"), (2, "redis")] {
        let here = backends.url(sort, "busy", number);
        let there = backends.url("embedded", &format!("next_{number}"), 0);
        let store = open(&here).await.expect("it opens");
        let authority = store.authority();
        let request = Acquire::one(key("job:a"), holder("worker"), ttl(60_000));
        let lease = acquire(&*authority, request.clone()).await;
        let refused = attempt(&here, &there, Options::default()).await;
        assert!(
            matches!(
                refused,
                Err(Error::AtWork {
                    side: Side::Source,
                    ..
                })
            ),
            "{sort}: {refused:?}"
        );
        let cut_off = Options {
            cut_off: true,
            ..Options::default()
        };
        attempt(&here, &there, cut_off).await.expect("asked for");
        changes_nothing(&authority, &lease, sort).await;
        drop((authority, store));

        // Its holder goes on at the new place.
        let store = open(&there).await.expect("it opens");
        let renewed = store.authority().renew(renewal(&lease)).await;
        let renewed = renewed.expect("an answer");
        let kept = renewed[0].outcome.as_ref().expect("it is still held");
        assert_eq!(kept.token, lease.token, "{sort}");
        close(store).await;
    }
}

fn renewal(lease: &lease::Lease) -> Renew {
    Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal::of(lease)]),
    }
}

async fn changes_nothing(authority: &Arc<dyn Authority>, lease: &lease::Lease, sort: &str) {
    let renewed = authority.renew(renewal(lease)).await;
    assert!(renewed.is_err(), "{sort}: {renewed:?}");
    let all = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::All,
    };
    let renewed = authority.renew(all).await;
    assert!(renewed.is_err(), "{sort}: {renewed:?}");
    let request = Acquire::one(key("job:b"), holder("worker"), ttl(60_000));
    let acquired = authority.acquire(request).await;
    assert!(acquired.is_err(), "{sort}: {acquired:?}");
    let released = authority.release(LeaseRef::from(lease)).await;
    assert!(released.is_err(), "{sort}: {released:?}");
}

/// Called off, everything is as before; and an unfinished target is not served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_an_unfinished_move_is_not_served_and_can_be_called_off() {
    let backends = Backends::start().await;
    for (number, from, to) in [
        (1, "embedded", "postgres"),
        (2, "postgres", "redis"),
        (3, "redis", "embedded"),
    ] {
        let here = backends.url(from, &format!("here_{number}"), number);
        let there = backends.url(to, &format!("there_{number}"), number + 10);
        grant(&here, "job:a").await;
        let nothing = abort(&url(&here), &url(&there)).await;
        assert!(matches!(nothing, Err(Error::NothingToAbort)), "{nothing:?}");
        // Broken off in the middle: whoever tells about the progress takes the whole move down.
        let (source, target) = (url(&here), url(&there));
        let broken = tokio::spawn(async move {
            let stop = &mut |_| panic!("broken off");
            let _ = migrate(&source, &target, Options::default(), stop).await;
        });
        broken.await.expect_err("it was broken off");
        for (store, phase) in [(&here, Phase::Leaving), (&there, Phase::Arriving)] {
            match open(store).await.map(drop) {
                Err(OpenError::Maintenance(maintenance)) => {
                    assert_eq!(maintenance.phase, phase, "{store}");
                }
                other => panic!("{store}: {other:?}"),
            }
        }
        abort(&url(&here), &url(&there)).await.expect("called off");
        let newest = grant(&here, "job:a").await;
        // And then it is made after all.
        attempt(&here, &there, Options::default())
            .await
            .expect("it moves");
        assert!(grant(&there, "job:a").await > newest, "{from} to {to}");
        let late = abort(&url(&here), &url(&there)).await;
        assert!(matches!(late, Err(Error::Finished(_))), "{late:?}");
    }
}
