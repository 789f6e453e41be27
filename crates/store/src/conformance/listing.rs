//! Looking without touching: lists, lookups and verdicts.

use lease::{Acquire, Key, Labels, Lease, LeaseQuery, Status, Token, Verdict};

use super::{Harness, Stage};

fn query(stage: &Stage<'_>) -> LeaseQuery {
    LeaseQuery {
        kind: Some(stage.kind().to_owned()),
        limit: 100,
        ..LeaseQuery::default()
    }
}

fn ids(leases: &[Lease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.key.id()).collect()
}

/// Kind, id, holder, status and tenant.
pub async fn lists_follow_every_filter(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let bound = |id: &str, holder: &str, tenant: &str| Acquire {
        labels: Labels::new([("tenant".into(), tenant.into())].into()).expect("well-formed"),
        ..stage.ask(id, holder)
    };
    stage.grant(bound("a", "ann", "acme")).await;
    stage.grant(bound("b", "bob", "acme")).await;
    stage.grant(bound("c", "ann", "globex")).await;
    let young = Acquire {
        holder: stage.incarnation("ann", "2"),
        ..stage.ask("d", "ann")
    };
    stage.grant(young).await;
    let gone = stage.take("e", "ann").await;
    stage.release(&gone).await;
    let elsewhere = Acquire {
        want: lease::Want::one(stage.other_kind("x", "a")),
        ..stage.ask("a", "ann")
    };
    stage.grant(elsewhere).await;

    let all = stage.list(query(&stage)).await;
    assert_eq!(ids(&all), ["a", "b", "c", "d"], "live ones of one kind");
    let ann = LeaseQuery {
        holder: Some(stage.holder("ann").name),
        ..query(&stage)
    };
    let found = stage.list(ann.clone()).await;
    assert_eq!(ids(&found), ["a", "c", "d"], "any incarnation");
    let everywhere = LeaseQuery {
        kind: None,
        ..ann.clone()
    };
    assert_eq!(stage.list(everywhere).await.len(), 4, "any kind");
    let tenant = LeaseQuery {
        tenant: Some("acme".into()),
        ..query(&stage)
    };
    assert_eq!(ids(&stage.list(tenant.clone()).await), ["a", "b"]);
    let both = LeaseQuery {
        holder: ann.holder.clone(),
        ..tenant.clone()
    };
    assert_eq!(ids(&stage.list(both).await), ["a"]);
    let one = LeaseQuery {
        id: Some("c".into()),
        ..query(&stage)
    };
    assert_eq!(stage.list(one.clone()).await, [all[2].clone()]);
    let mismatch = LeaseQuery {
        tenant: Some("acme".into()),
        ..one
    };
    assert_eq!(stage.list(mismatch).await, []);
    let active = LeaseQuery {
        status: Some(Status::Active),
        ..query(&stage)
    };
    assert_eq!(stage.list(active).await, all);
    let nobody = LeaseQuery {
        holder: Some(stage.holder("zoe").name),
        ..query(&stage)
    };
    assert_eq!(stage.list(nobody).await, []);
}

/// Pages in the order of keys, which is the order of their bytes.
pub async fn lists_are_paged_in_the_order_of_keys(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let names = ["b", "a-1", "a", "B", "a:1", "ä", "a1", "a.1", "10", "9"];
    for id in names {
        stage.take(id, "ann").await;
    }
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    for limit in [1, 3, names.len(), 100] {
        let mut found: Vec<Key> = Vec::new();
        loop {
            let page = stage
                .authority
                .leases(LeaseQuery {
                    after: found.last().cloned(),
                    limit,
                    ..query(&stage)
                })
                .await
                .expect("a list is answered");
            assert!(page.items.len() <= limit);
            found.extend(page.items.into_iter().map(|lease| lease.key));
            assert!(found.len() <= names.len(), "no double: {found:?}");
            if !page.more {
                break;
            }
        }
        let found: Vec<_> = found.iter().map(Key::id).collect();
        assert_eq!(found, sorted, "in pages of {limit}");
    }
}

/// A lease has a name of its own, also after it ended.
pub async fn a_lease_is_found_by_its_id_after_its_end(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let find = async |lease: &Lease| {
        stage
            .authority
            .lease_by_id(lease.id)
            .await
            .expect("answered")
    };
    let lease = stage.take("a", "ann").await;
    assert_eq!(find(&lease).await.as_ref(), Some(&lease));
    stage.release(&lease).await;
    let next = stage.take("a", "bob").await;
    assert_ne!(lease.id, next.id);
    let found = find(&lease).await.expect("the history has it");
    assert_eq!(found.status, Status::Released);
    assert_eq!(
        (found.id, found.key, found.holder, found.token),
        (lease.id, lease.key, lease.holder, lease.token)
    );
    assert_eq!(find(&next).await.as_ref(), Some(&next));
    let unknown = lease::LeaseId(uuid::Uuid::new_v4());
    let found = stage.authority.lease_by_id(unknown).await;
    assert_eq!(found.expect("answered"), None);
}

/// What a receiver asks, answered in the order it asked.
pub async fn verdicts_tell_whether_a_token_counts(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let old = stage.take("a", "ann").await;
    assert_eq!(stage.verdict("a", old.token).await, Verdict::Current);
    stage.release(&old).await;
    assert_eq!(stage.verdict("a", old.token).await, Verdict::Ended);
    let new = stage.take("a", "bob").await;
    let other = stage.take_short("b", "ann").await;
    stage.lapse().await;
    let newer = Token::new(new.token.get() + 1).expect("within range");
    let asked = vec![
        (stage.key("a"), newer),
        (stage.key("a"), old.token),
        (stage.key("never"), new.token),
        (stage.key("a"), new.token),
        (stage.key("b"), other.token),
        (stage.key("never"), Token::ZERO),
        (stage.key("a"), new.token),
    ];
    let verdicts = stage.authority.check(asked).await.expect("answered");
    let stale = Verdict::Stale { latest: new.token };
    assert_eq!(
        verdicts,
        [
            Verdict::Unknown,
            stale,
            Verdict::Unknown,
            Verdict::Current,
            Verdict::Ended,
            Verdict::Unknown,
            Verdict::Current,
        ]
    );
    let none = stage.authority.check(vec![]).await.expect("answered");
    assert!(none.is_empty());
}
