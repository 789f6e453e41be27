//! Pools: any free slot in one atomic step (L5).

use std::collections::BTreeSet;

use lease::{Acquire, Acquired, Cause, EventKind, Holder};

use super::{Harness, Stage};

/// The order is the one configured, not the alphabet's.
pub async fn l5_the_first_free_slot_in_order(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let pool = ["c", "a", "b"];
    let mut slots = Vec::new();
    for holder in ["ann", "bob", "cid"] {
        slots.push(stage.grant(stage.ask_any(pool, holder)).await);
    }
    let order: Vec<_> = slots.iter().map(|lease| lease.key.clone()).collect();
    assert_eq!(order, stage.keys(pool));
    // A slot that comes free is found again, with a larger token.
    assert!(stage.release(&slots[1]).await);
    let again = stage.grant(stage.ask_any(pool, "dan")).await;
    assert_eq!(again.key, stage.key("a"));
    assert!(again.token > slots[1].token);
}

/// A full pool refuses and names the first slot's holder.
pub async fn l5_a_full_pool_is_refused(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let first = stage.grant(stage.ask_any(["b", "a"], "ann")).await;
    stage.grant(stage.ask_any(["b", "a"], "bob")).await;
    let refusal = stage.refuse(stage.ask_any(["b", "a"], "cid")).await;
    assert_eq!(refusal.key, stage.key("b"));
    assert_eq!(super::stage::held(refusal), (first.holder, first.token));
    assert_eq!(stage.events().await.len(), 2, "nothing happened");
}

/// A slot that a holder has already is not free for it.
pub async fn l5_one_holder_may_have_several_slots(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let request = || Acquire {
        limit: Some(2),
        ..stage.ask_any(["a", "b", "c"], "ann")
    };
    let first = stage.grant(request()).await;
    let second = stage.grant(request()).await;
    assert_eq!([first.key, second.key].to_vec(), stage.keys(["a", "b"]));
    let refusal = stage.refuse(request()).await;
    assert_eq!(refusal.cause, Cause::Limit { limit: 2 });
    assert_eq!(stage.live("c").await, None);
}

/// Twenty ask for five slots at the same time.
pub async fn l5_racers_share_a_pool_without_doubles(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let racers: Vec<_> = (0..20)
        .map(|racer| {
            let request = stage.ask_any(["a", "b", "c", "d", "e"], &format!("racer-{racer}"));
            let authority = stage.authority.clone();
            tokio::spawn(async move { authority.acquire(request).await })
        })
        .collect();
    let mut keys = Vec::new();
    for racer in racers {
        let answer = racer.await.expect("a racer does not panic");
        if let Acquired::Granted { leases, .. } = answer.expect("a racer is answered") {
            keys.extend(leases.into_iter().map(|lease| lease.key));
        }
    }
    let distinct: BTreeSet<_> = keys.iter().cloned().collect();
    assert_eq!((keys.len(), distinct.len()), (5, 5), "each slot once");
    let kinds: Vec<_> = stage.events().await.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [EventKind::LeaseAcquired; 5]);
}

/// A request that names itself gets the slot it has, with its token, for as long as its lease lives.
pub async fn l5_a_repeated_request_has_one_slot(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let request = |holder: Holder, id: &str| {
        let mut request = stage.ask_any(["a", "b", "c"], "ann");
        request.holder = holder;
        request.labels = request.labels.with_request(id).expect("a well-formed id");
        request
    };
    let ann = stage.holder("ann");
    let first = stage.grant(request(ann.clone(), "one")).await;
    let asked = stage.authority.acquire(request(ann.clone(), "one")).await;
    let Ok(Acquired::Granted { leases, fresh }) = asked else {
        panic!("granted again, not {asked:?}");
    };
    assert!(!fresh, "nothing new was granted");
    assert_eq!(
        leases
            .iter()
            .map(|it| (it.id, it.token))
            .collect::<Vec<_>>(),
        [(first.id, first.token)]
    );
    // Another request, and another process with the same request, are granted slots of their own.
    let second = stage.grant(request(ann.clone(), "two")).await;
    assert_eq!(second.key, stage.key("b"));
    let third = stage
        .grant(request(stage.incarnation("ann", "2"), "one"))
        .await;
    assert_eq!(third.key, stage.key("c"));
    // In a full pool too.
    let again = stage.grant(request(ann.clone(), "two")).await;
    assert_eq!((again.id, again.token), (second.id, second.token));
    // What was given back is not granted again: it is a new request then.
    assert!(stage.release(&first).await);
    let anew = stage.grant(request(ann, "one")).await;
    assert_eq!(anew.key, first.key);
    assert!(anew.token > first.token);
}
